import hashlib
import json

import pytest

from longrm.errors import ConfigError, DataError
from longrm.synthesis.inputs.input_settings import InputSettings

ROWS = [{"id": f"d{at}", "context": f"Text {at}.", "question": "Q?", "answer": f"A{at}."} for at in range(3)]


@pytest.fixture
def put(tmp_path):
    def write(name, rows):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


def inputs(**settings):
    return InputSettings.resolve(None, settings)


def test_documents_come_with_the_candidates_of_a_run_folder(put, tmp_path):
    answers = [{"document": "d0", "model": "m", "text": "x"}, {"document": "d2", "model": "m", "text": "y"}]
    (tmp_path / "run").mkdir()
    put("run/rows/rows-00000.jsonl", answers)
    given = inputs(documents={"path": put("d.jsonl", ROWS)}, candidates={"path": str(tmp_path / "run")})
    found = [(source.document.id, [c.text for c in source.candidates]) for source in given.read()]
    assert found == [("d0", ["x"]), ("d1", []), ("d2", ["y"])]
    first, second = given.provenance()
    assert (first["name"], first["license"], second["name"]) == ("d.jsonl", "unknown", "candidates")
    assert first["sha256"] == hashlib.sha256((tmp_path / "d.jsonl").read_bytes()).hexdigest()


def test_a_limit_of_documents_leaves_later_candidates_alone(put):
    answers = [{"document": f"d{at}", "model": "m", "text": "x"} for at in range(3)]
    settings = {"documents": {"path": put("d.jsonl", ROWS)}, "candidates": {"path": put("c.jsonl", answers)}}
    assert len(list(inputs(**settings).read())) == 3
    settings["documents"]["limit"] = 1
    assert [source.document.id for source in inputs(**settings).read()] == ["d0"]
    lost = settings["candidates"] | {"path": put("e.jsonl", [*answers, answers[0] | {"document": "d9"}])}
    with pytest.raises(DataError, match="field 'document': 'd9' is missing or comes earlier"):
        list(inputs(documents={"path": settings["documents"]["path"]}, candidates=lost).read())


def test_made_candidates_join_written_ones(put):
    same = [row | {"context": "One text."} for row in ROWS]
    answers = [{"document": "d1", "model": "m", "text": "x"}]
    given = inputs(
        documents={"path": put("d.jsonl", same)},
        candidates={"path": put("c.jsonl", answers), "synthetic": True},
    )
    _, second, _ = given.read()
    assert [(c.model, c.perturbation) for c in second.candidates] == [
        ("m", ""), ("gold", ""), ("gold", "answer_another_question"),
    ]  # fmt: skip


def comparison(number, **changed):
    span = lambda start, end: {"message": 0, "start": start, "end": end}  # noqa: E731  # said three times
    text = f"The jar holds {number} figs.\n\nHow many figs?"
    row = {
        "id": f"c{number}",
        "group": "g",
        "prompt": [{"role": "user", "content": text}],
        "responses": [
            [{"role": "assistant", "content": answer}] for answer in ("9 figs", f"{number} figs", "none")
        ],
        "ranks": [2, 1, 3],
        "context": [span(0, 22)],
        "question": span(23, 37),
        "evidence": [span(14, 15)],
    }
    return row | changed


def test_comparisons_are_documents_whose_responses_are_scored_candidates(put):
    path = put("w.jsonl", [comparison(3), comparison(5)])
    given = inputs(
        documents={"path": path, "format": "comparisons", "limit": 1}, candidates={"recorded": True}
    )
    (source,) = given.read()
    document = source.document
    assert (document.text, document.question, document.answer) == (
        "The jar holds 3 figs.\n", "How many figs?", "3 figs",
    )  # fmt: skip
    assert document.text[slice(*document.metadata["evidence"][0])] == "3"
    assert [(c.text, c.score) for c in source.candidates] == [("9 figs", 0.5), ("3 figs", 1.0), ("none", 0.0)]


@pytest.mark.parametrize("lost", ["context", "question", "ranks"])
def test_a_comparison_that_is_no_document_is_named(put, lost):
    row = comparison(3)
    del row[lost]
    given = inputs(
        documents={"path": put("w.jsonl", [row]), "format": "comparisons"}, candidates={"recorded": True}
    )
    with pytest.raises(DataError, match=r"w\.jsonl, line 1: a document needs one context"):
        list(given.read())


@pytest.mark.parametrize(
    ("candidates", "said"),
    [
        ({}, "no candidates: give candidates.path"),
        ({"path": "x", "recorded": True}, "or are the recorded ones, not both"),
        ({"recorded": True}, 'candidates.recorded needs documents.format = "leval" or "comparisons"'),
    ],
)
def test_settings_at_odds_are_refused(put, candidates, said):
    with pytest.raises(ConfigError, match=said):
        inputs(documents={"path": put("d.jsonl", ROWS)}, candidates=candidates)
