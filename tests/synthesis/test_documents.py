"""Documents and candidates: readers, joining, synthetic candidates, and the settings that name them."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from longrm.benchmarks import leval
from longrm.benchmarks.answer_metrics import token_f1
from longrm.benchmarks.benchmark import Auditor
from longrm.errors import DataError
from longrm.synthesis.documents import (
    Candidate,
    Document,
    join_candidates,
    leval_documents,
    read_candidates,
    read_documents,
    read_texts,
    sentences,
    synthetic_candidates,
)
from longrm.synthesis.settings import CandidateRecipe

REAL = Path(__file__).parents[3] / "shared" / "data" / "leval"
ROW = {"context": "Quill wrote the code.", "question": "Who?", "answer": "Quill"}
ROWS = [{"id": f"d{at}", "context": f"Text {at}.", "question": "Q?", "answer": f"A{at}."} for at in range(3)]


def test_rows_become_documents(put):
    known = {"evidence": [[0, 5]], "steps": ["one"], "exemplars": [], "license": "mit"}
    path = put(
        "rows.jsonl",
        ROW,
        {**ROW, "id": 0, "task": "LongQA", "metric": "token_f1", "answer": "", **known},
        {**ROW, "id": ""},
    )
    first, second, third = read_documents(path)
    assert first == Document("1", *ROW.values())
    assert (second.id, second.task, second.metric, second.metadata) == ("0", "LongQA", "token_f1", known)
    assert third.id == "3"
    assert first.group == second.group != Document("1", "Another text.", "Who?", "").group


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"context": ""}, "context"),
        ({"answer": None}, "answer"),
        ({"metric": "rouge"}, "metric"),
        ({"id": ["a"]}, "id"),
        ({"evidence": [[0, 1], [2]]}, "evidence"),
        ({"steps": ["abc", 12]}, "steps"),
    ],
)
def test_a_bad_row_is_named_by_line_and_field(put, change, field):
    with pytest.raises(DataError, match=rf"rows\.jsonl, line 2, field '{field}'"):
        list(read_documents(put("rows.jsonl", ROW, {**ROW, **change})))


@pytest.fixture
def leval_folder(put, tmp_path):
    """L-Eval with one text and three questions, a repeated text, and a text without predictions."""
    asked = {"input": "Text.", "instructions": ["q1", "q2", "q3"], "outputs": ["red", "B", "7"]}
    rows = [{**asked, "evaluation": "exam"}, {"input": "More.", "instructions": ["q1"], "outputs": ["x"]}]
    put("data/quiz.jsonl", rows[0], {**rows[1], "evaluation": "f1"}, {**rows[0], "evaluation": "human"})
    put("data/silent.jsonl", {**rows[1], "evaluation": "rouge"})
    lines = [
        ("q1", "red", "rot"),
        ("q2", "B", "B"),
        ("q3", "8", "7"),
        ("q1", "x", " "),
        ("q1", "red", "again"),
    ]
    put(
        "predictions/m/quiz.pred.jsonl",
        *({"query": query, "gt": gold, "m_pred": text} for query, gold, text in lines),
    )
    put("predictions/m/lost.pred.jsonl", {"query": "q", "gt": "", "m_pred": "x"})
    return tmp_path


def test_the_answers_of_l_eval_are_joined_by_place_and_misfits_are_counted(leval_folder):
    auditor = Auditor(leval.FINDINGS)
    found = list(leval_documents(leval_folder, auditor))
    assert [(one.id, one.metric, [c.text for c in one.candidates]) for one in found] == [
        ("quiz/1", "token_f1", ["rot"]),
        ("quiz/2", "right_choices", ["B"]),
        ("quiz/3", "math_equality", []),  # its line names another gold answer
        ("quiz/4", "token_f1", []),  # empty
        ("silent/1", "rouge_l", []),
    ]
    counts = {kind: finding.count for kind, finding in auditor.findings.items() if finding.count}
    assert counts == {
        "misaligned_predictions": 1,
        "empty_answers": 1,
        "repeated_documents": 1,
        "no_documents": 1,
        "no_predictions": 1,
    }


@pytest.mark.skipif(not REAL.is_dir(), reason="needs the real data next to the checkout")
def test_the_real_l_eval_is_aligned():
    auditor = Auditor(leval.FINDINGS)
    found = list(leval_documents(REAL, auditor))
    assert len({document.id for document in found}) == len(found) == 1193
    assert len({document.group for document in found}) == 213
    assert sum(len(document.candidates) for document in found) == 2849
    assert Counter(document.metric for document in found) == {
        "right_choices": 374,
        "token_f1": 500,
        "rouge_l": 219,
        "math_equality": 100,
    }
    counts = {kind: finding.count for kind, finding in auditor.findings.items()}
    assert (counts["misaligned_predictions"], counts["repeated_documents"]) == (0, 16)
    # Read in another way: every question is in the data files under its number.
    task = "natural_question"
    rows = [json.loads(line) for line in (REAL / "data" / f"{task}.jsonl").read_text().splitlines()]
    flat = [pair for row in rows for pair in zip(row["instructions"], row["outputs"], strict=True)]
    for document in found:
        if document.task == task:
            assert (document.question, document.answer) == flat[int(document.id.split("/")[1]) - 1]


def texts(
    folder, questions="file,question,answer,task\na.txt,Who?,Quill,QA\nsub/b.md,What?,code,\na.txt,Why?,So,\n"
):
    (folder / "sub").mkdir()
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbfQuill wrote\r\nthe code.")
    (folder / "sub/b.md").write_text("# The code\n\nIs here.")
    (folder / "README.md").write_text("About this folder.")
    if questions:
        (folder / "questions.csv").write_text(questions)
    return folder


def test_texts_of_a_folder_become_documents_of_the_questions_about_them(tmp_path):
    found = [*read_documents(texts(tmp_path))]
    assert [(one.id, one.text, one.question, one.answer, one.task) for one in found] == [
        ("1", "Quill wrote\r\nthe code.", "Who?", "Quill", "QA"),
        ("2", "# The code\n\nIs here.", "What?", "code", ""),
        ("3", "Quill wrote\r\nthe code.", "Why?", "So", ""),
    ]
    assert found[1].metadata == {"file": "sub/b.md"}
    first = next(read_texts(tmp_path))
    assert (first.id, first.text) == ("README.md", "About this folder.")


def test_candidates_come_back_as_they_were(put):
    given = [Candidate("d1", "m", "yes", "cut", 0.5, {"share": 0.2}), Candidate("d1", "n", "no")]
    assert list(read_candidates(put("c.jsonl", *(one.to_row() for one in given)))) == given
    for change in ({"text": " "}, {"document": 3}, {"score": "high"}):
        with pytest.raises(DataError, match=rf"c\.jsonl, line 1, field '{next(iter(change))}'"):
            list(read_candidates(put("c.jsonl", given[1].to_row() | change)))


def test_documents_and_candidates_are_joined_in_order():
    documents = [Document(name, "text", "?", "a") for name in "abc"]
    answers = [Candidate("a", "m", "1"), Candidate("a", "n", "2"), Candidate("c", "m", "3")]
    found = list(join_candidates(documents, answers))
    assert [len(document.candidates) for document in found] == [2, 0, 1]
    assert found[0].candidates == tuple(answers[:2])
    with pytest.raises(DataError, match="field 'document': 'b'"):
        list(join_candidates(documents, [Candidate("c", "m", "3"), Candidate("b", "m", "1")]))


GOLD = "Quill wrote it. Noreth read it. Pell kept it. Arden sold it. Ivo lost it."
OTHERS = ["Mires burn at dusk. Gulls sleep by noon. Salt keeps fish well.", "Brass rings dull fast."]


def test_sentences_are_found_in_both_scripts():
    assert sentences('He said "No!" Then he left? It cost 3.5 crowns\nA line') == [
        'He said "No!"',
        "Then he left?",
        "It cost 3.5 crowns",
        "A line",
    ]
    assert sentences("我来了。你好！再见") == ["我来了。", "你好！", "再见"]
    assert sentences(" \n") == []


def test_synthetic_candidates_keep_sentences_of_the_gold_answer_and_replace_the_others():
    whole, more, less, other = synthetic_candidates(Document("d", "t", "q", GOLD), OTHERS, seed=0)
    own, foreign = sentences(GOLD), [text for answer in OTHERS for text in sentences(answer)]
    assert (whole.text, other.text in OTHERS) == (GOLD, True)
    for candidate, kept in ((more, 4), (less, 2)):
        parts = sentences(candidate.text)
        same = [part == mine for part, mine in zip(parts, own, strict=True)]
        assert sum(same) == kept == candidate.metadata["kept_sentences"]
        assert all(part in foreign for part, kept_here in zip(parts, same, strict=True) if not kept_here)
        assert abs(len(candidate.text) - len(GOLD)) < 0.4 * len(GOLD)  # length does not reveal it
    rates = [token_f1(one.text, GOLD) for one in (whole, more, less, other)]
    assert rates == sorted({*rates}, reverse=True)


def recipe(**settings):
    return CandidateRecipe.resolve(None, settings)


def test_documents_come_with_the_candidates_of_a_run_folder(put, tmp_path):
    answers = [{"document": "d0", "model": "m", "text": "x"}, {"document": "d2", "model": "m", "text": "y"}]
    put("run/rows/rows-00000.jsonl", *answers)
    given = recipe(documents={"path": str(put("d.jsonl", *ROWS))}, candidates={"path": str(tmp_path / "run")})
    assert [(one.id, [c.text for c in one.candidates]) for one in given.read()] == [
        ("d0", ["x"]),
        ("d1", []),
        ("d2", ["y"]),
    ]
    first, second = given.provenance()
    assert (first["name"], first["license"], second["name"]) == ("d.jsonl", "unknown", "candidates")
    assert first["sha256"] == hashlib.sha256((tmp_path / "d.jsonl").read_bytes()).hexdigest()


def test_synthetic_candidates_join_written_ones(put):
    same = [row | {"context": "One text."} for row in ROWS]
    written = put("c.jsonl", {"document": "d1", "model": "m", "text": "x"})
    given = recipe(
        documents={"path": str(put("d.jsonl", *same))}, candidates={"path": str(written), "synthetic": True}
    )
    _, second, _ = given.read()
    assert [(c.model, c.perturbation) for c in second.candidates] == [
        ("m", ""),
        ("gold", ""),
        ("gold", "answer_another_question"),
    ]


def comparison(number):
    def span(start, end):
        return {"message": 0, "start": start, "end": end}

    return {
        "id": f"c{number}",
        "group": "g",
        "prompt": [{"role": "user", "content": f"The jar holds {number} figs.\n\nHow many figs?"}],
        "responses": [
            [{"role": "assistant", "content": text}] for text in ("9 figs", f"{number} figs", "none")
        ],
        "ranks": [2, 1, 3],
        "context": [span(0, 22)],
        "question": span(23, 37),
        "evidence": [span(14, 15)],
    }


def test_comparisons_are_documents_whose_responses_are_scored_candidates(put):
    path = str(put("w.jsonl", comparison(3), comparison(5)))
    documents = {"path": path, "format": "comparisons", "limit": 1}
    (document,) = recipe(documents=documents, candidates={"recorded": True}).read()
    assert document.text == "The jar holds 3 figs.\n"
    assert (document.question, document.answer) == ("How many figs?", "3 figs")
    assert document.text[slice(*document.metadata["evidence"][0])] == "3"
    found = [(c.text, c.score) for c in document.candidates]
    assert found == [("9 figs", 0.5), ("3 figs", 1.0), ("none", 0.0)]
    (alone,) = recipe(documents=documents, candidates={"synthetic": True}).read()
    assert [c.model for c in alone.candidates] == ["gold"]
