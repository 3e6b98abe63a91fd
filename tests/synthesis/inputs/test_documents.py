import json
import re
from collections import Counter
from pathlib import Path

import pytest

from longrm.benchmarks import leval
from longrm.benchmarks.auditor import Auditor
from longrm.errors import ConfigError, DataError
from longrm.synthesis.inputs.documents import Document, read_answered, read_documents
from longrm.worlds.words_tokenizer import load_tokenizer

REAL = Path(__file__).parents[4] / "shared" / "data" / "leval"
ROW = {"context": "Quill wrote the code.", "question": "Who?", "answer": "Quill"}


def test_rows_become_documents(put):
    path = put(
        "rows.jsonl",
        ROW,
        {**ROW, "id": "b", "task": "LongQA", "metric": "token_f1", "license": "mit", "answer": ""},
    )
    first, second = read_documents(path)
    assert first == Document("1", *ROW.values())
    assert (second.id, second.task, second.metric, second.metadata) == (
        "b",
        "LongQA",
        "token_f1",
        {"license": "mit"},
    )
    assert first.group == second.group
    assert first.group != Document("1", "Another text.", "Who?", "").group


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"context": "", **{k: ROW[k] for k in ("question", "answer")}}, "field 'context': needs a text"),
        ({"context": "x", "question": "y"}, "field 'answer': needs a text, got None"),
        ({**ROW, "metric": "rouge"}, "did you mean 'rouge_l'"),
        ({**ROW, "id": ["a"]}, "field 'id': needs a text or a whole number"),
        ({**ROW, "evidence": 5}, r"field 'evidence': needs a list of spans .* got 5; rename"),
        ({**ROW, "evidence": [[0, 1], [2]]}, "field 'evidence': needs a list of spans"),
        ({**ROW, "exemplars": 7}, "field 'exemplars': needs a list of texts, got 7"),
        ({**ROW, "steps": "abc 12"}, "field 'steps': needs a list of texts, got 'abc 12'"),
        ({**ROW, "steps": ["abc", 12]}, "field 'steps': needs a list of texts"),
    ],
)
def test_a_bad_row_is_named(put, row, fault):
    with pytest.raises(DataError, match=fault) as caught:
        list(read_documents(put("rows.jsonl", ROW, row)))
    assert "rows.jsonl, line 2" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_are_read_one_by_one(put):
    path = put("rows.jsonl", ROW)
    with path.open("a") as file:
        file.write("{broken")
    rows = read_documents(path)
    assert next(rows).answer == "Quill"
    with pytest.raises(DataError, match="line 2: not valid JSON"):
        next(rows)


def test_an_unknown_format_is_refused(put):
    with pytest.raises(ConfigError, match="no format of documents 'jsonnl'; did you mean 'jsonl'"):
        read_documents(put("rows.jsonl", ROW), "jsonnl")


@pytest.fixture
def folder(put, tmp_path):
    """L-Eval with one text and three questions, a repeated text, and a text that nobody was asked about."""
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


def test_answers_are_joined_by_their_place_and_what_does_not_fit_is_counted(folder):
    auditor = Auditor(leval.FINDINGS)
    found = list(read_answered(folder, auditor))
    assert [(document.id, dict(answers)) for document, answers in found] == [
        ("quiz/1", {"m": "rot"}),
        ("quiz/2", {"m": "B"}),
        ("quiz/3", {}),  # its line names another gold answer
        ("quiz/4", {}),  # empty
        ("silent/1", {}),
    ]
    assert [document.metric for document, _ in found] == [
        "token_f1",
        "right_choices",
        "math_equality",
        "token_f1",
        "rouge_l",
    ]
    counts = {kind: finding.count for kind, finding in auditor.findings.items() if finding.count}
    assert counts == {
        "misaligned_predictions": 1,
        "empty_answers": 1,
        "repeated_documents": 1,
        "no_documents": 1,
        "no_predictions": 1,
    }


def test_the_folder_is_recognized_and_documents_need_no_answers(folder):
    found = [(d.id, d.metric, d.task) for d in read_documents(folder)]
    assert found[-1] == ("silent/1", "rouge_l", "silent")
    assert len(found) == 5


@pytest.mark.real
@pytest.mark.skipif(not REAL.is_dir(), reason="the real data does not lie beside the checkout")
def test_the_real_folder_is_in_line():
    auditor = Auditor(leval.FINDINGS)
    found = list(read_answered(REAL, auditor))
    assert len({document.id for document, _ in found}) == len(found) == 1193
    assert len({document.group for document, _ in found}) == 213
    assert sum(len(answers) for _, answers in found) == 2849
    assert Counter(document.metric for document, _ in found) == {
        "right_choices": 374,
        "token_f1": 500,
        "rouge_l": 219,
        "math_equality": 100,
    }
    counts = {kind: finding.count for kind, finding in auditor.findings.items()}
    assert counts["misaligned_predictions"] == 0
    assert counts["repeated_documents"] == 16
    # Read another way: every kept question stands in the data files, under its number.
    task = "natural_question"
    rows = [json.loads(line) for line in (REAL / "data" / f"{task}.jsonl").read_text().splitlines()]
    flat = [pair for row in rows for pair in zip(row["instructions"], row["outputs"], strict=True)]
    for document, _ in found:
        if document.task == task:
            number = int(document.id.split("/")[1])
            assert (document.question, document.answer) == flat[number - 1]


def test_an_id_of_0_is_one_and_lists_are_kept(put):
    told = {"evidence": [[0, 5]], "steps": ["one"], "exemplars": []}
    first, second = read_documents(put("rows.jsonl", {**ROW, "id": 0, **told}, {**ROW, "id": ""}))
    assert (first.id, second.id) == ("0", "2")
    assert first.metadata == told


def test_halves_of_surrogate_pairs_are_replaced(put):
    row = {**ROW, "context": "Quill \ud83d wrote 你好 😀.", "id": "a\udc00", "steps": ["x\ud800"]}
    (document,) = read_documents(put("rows.jsonl", row))
    assert document == Document("a?", "Quill ? wrote 你好 😀.", "Who?", "Quill", metadata={"steps": ["x?"]})
    assert load_tokenizer("words").count(document.text) > 4


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"metric": ["token_f1"]}, "field 'metric': needs a metric's name, got ['token_f1']"),
        ({"id": [1]}, "field 'id': needs a text or a whole number, got a list"),
        ({"id": float("nan")}, "field 'id': needs a text or a whole number, got nan"),
        ({"id": True}, "field 'id': needs a text or a whole number, got True"),
        ({"evidence": [[0, True]]}, "field 'evidence': needs a list of spans"),
        ({"context": ["a"]}, "field 'context': needs a text, got ['a']"),
    ],
)
def test_documents_of_other_types_are_named(change, problem, put):
    with pytest.raises(DataError, match=re.escape(f"rows.jsonl, line 1, {problem}")):
        list(read_documents(put("rows.jsonl", {**ROW, **change})))


ASKED = "file,question,answer,task\na.txt,Who?,Quill,QA\nsub/b.md,What?,code,\na.txt,Why?,So,\n"


def texts(folder, asked=ASKED, name="questions.csv"):
    (folder / "sub").mkdir()
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbfQuill wrote\r\nthe code.")
    (folder / "sub/b.md").write_text("# The code\n\nIs here.")
    (folder / "README.md").write_text("What this is.")
    if asked:
        (folder / name).write_text(asked)
    return folder


def test_texts_of_a_folder_become_documents_of_the_questions_about_them(tmp_path):
    found = [*read_documents(texts(tmp_path))]
    assert [(one.id, one.question, one.answer, one.task) for one in found] == [
        ("1", "Who?", "Quill", "QA"),
        ("2", "What?", "code", ""),
        ("3", "Why?", "So", ""),
    ]
    assert [one.text for one in found] == [
        "Quill wrote\r\nthe code.",
        "# The code\n\nIs here.",
        "Quill wrote\r\nthe code.",
    ]
    assert found[0].group == found[2].group != found[1].group
    assert found[1].metadata == {"file": "sub/b.md"}
    assert [*read_documents(tmp_path, "texts")] == found


def test_rows_with_a_readme_beside_them_are_rows(tmp_path):
    (tmp_path / "README.md").write_text("What this is.")
    (tmp_path / "train.jsonl").write_text(json.dumps(ROW) + "\n")
    assert [one.text for one in read_documents(tmp_path)] == [ROW["context"]]


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        (
            "",
            "3 texts, and no questions and gold answers about them: add questions.csv .* file, question, answer",
        ),
        (
            "file,question,answer\na.text,Who?,Quill\n",
            "row 1, field 'file': 'a.text' is none .*; did you mean 'a.txt'",
        ),
        (
            "file,question,answer\n../a.txt,Who?,Quill\n",
            "row 1, field 'file': '../a.txt' is none of the texts",
        ),
        ("file,question,answer\na.txt,,Quill\n", "row 1, field 'question': needs a text"),
        ("file,question\na.txt,Who?\n", "row 1, field 'answer': needs a text"),
    ],
)
def test_texts_that_nobody_asks_about_are_one_line(asked, fault, tmp_path):
    with pytest.raises(DataError, match=fault) as caught:
        list(read_documents(texts(tmp_path, asked)))
    assert "\n" not in str(caught.value)
