from collections import Counter
from pathlib import Path

import pytest

from longrm.benchmarks.leval import Leval
from longrm.errors import ConfigError, DataError
from longrm.types import text_of

REAL = Path(__file__).parents[3] / "shared" / "data" / "leval"
DOCUMENT = "Quill wrote the code. " * 30


def row(evaluation: str, document: str = DOCUMENT, **asked: str) -> dict:
    return {
        "input": document,
        "instructions": list(asked),
        "outputs": list(asked.values()),
        "evaluation": evaluation,
    }


@pytest.fixture
def folder(put, tmp_path):
    """A small L-Eval: rows of one task, and the answers of three models to each question."""

    def make(task: str, rows: list[dict], **answers: list[str]) -> str:
        put(f"leval/data/{task}.jsonl", *rows)
        asked = [pair for r in rows for pair in zip(r["instructions"], r["outputs"], strict=True)]
        for model, texts in answers.items():
            lines = [
                {"query": query, "gt": gold, f"{model}-x_pred": text}
                for (query, gold), text in zip(asked, texts, strict=False)
            ]
            put(f"leval/predictions/{model}/{task}.pred.jsonl", *lines)
        return f"leval:{tmp_path}/leval"

    return make


def test_pairs_are_answers_that_are_clearly_apart(folder, bench):
    path = folder(
        "qa",
        [row("f1", who="Quill the clerk")],
        good=["Quill clerk"],  # F1 1
        fair=["Quill clerk then"],  # F1 0.8
        poor=["Noreth"],  # F1 0
    )
    pairs = list(bench(path, Leval(gap=0.3)).comparisons)
    assert [pair.id for pair in pairs] == ["qa/1/good+poor", "qa/1/fair+poor"]
    assert [len(list(bench(path, Leval(gap=gap)).comparisons)) for gap in (0.19, 0.9, 1.0)] == [3, 1, 1]
    first = pairs[0]
    assert [text_of(response) for response in first.responses] == ["Quill clerk", "Noreth"]
    assert (first.ranks, first.metadata["metric"], first.metadata["models"]) == (
        (1, 2),
        [1.0, 0.0],
        ["good", "poor"],
    )
    text = text_of(first.prompt)
    (context,) = first.context
    assert text[context.start : context.end] == DOCUMENT
    assert text[first.question.start : first.question.end] == "who"
    assert (first.metadata["task"], first.metadata["subtype"], first.metadata["length"]) == ("qa", "f1", 256)


def test_rankings_may_tie_but_not_altogether(folder, bench):
    rows = [row("exam", which="B", what="A"), row("exam", "Other.", when="C")]
    path = folder("quiz", rows, a=["B", "C", "A"], b=["(B)", "B", "(A)"], c=["A", "A", "(A) x"])
    found = list(bench(path, Leval(responses=3)).comparisons)
    assert [(c.id, c.ranks) for c in found] == [("quiz/1/a+b+c", (1, 1, 2)), ("quiz/2/c+a+b", (1, 2, 2))]
    assert len({c.group for c in found}) == 1


def test_what_is_left_out_is_counted(folder, bench, counts):
    first, second = row("f1", q1="red", q2="blue", q3="green"), row("exam", "Other.", free="The sea")
    again = {**first, "evaluation": "LLM"}
    path = folder(
        "qa",
        [first, second, again],
        a=["red", " ", "green", "sea"],
        b=["red", "blue", "green", "sky"],
        c=["gold", "gold", "green", "sand"],
    )
    loaded = bench(path)
    assert [c.id for c in loaded.comparisons] == ["qa/1/a+c", "qa/2/b+c"]
    assert counts(loaded) == {
        "repeated_documents": 1,
        "empty_answers": 1,
        "identical_answers": 3,
        "not_scorable": 1,
        "too_few_answers": 1,
    }
    assert loaded.audit.findings["identical_answers"].examples[0] == "qa/1, b"


def test_predictions_out_of_line_are_left_out_and_counted(folder, put, bench, counts):
    path = folder("qa", [row("f1", q1="red", q2="blue")], a=["red", "blue"], b=["gold", "gold"])
    lines = [{"query": "q1", "gt": "red", "c_pred": "gray"}, {"query": "q2", "gt": "BLUE", "c_pred": "gray"}]
    put("leval/predictions/c/qa.pred.jsonl", *lines)
    put("leval/predictions/c/lost.pred.jsonl", *lines)
    put("leval/data/silent.jsonl", row("f1", q="a"))
    loaded = bench(path)
    assert [c.id for c in loaded.comparisons] == ["qa/1/a+b", "qa/1/a+c", "qa/2/a+b"]
    assert counts(loaded) == {"misaligned_predictions": 1, "no_documents": 1, "no_predictions": 1}
    assert loaded.audit.findings["misaligned_predictions"].examples == ("qa/2, c",)


def test_lines_that_are_missing_or_surplus_are_counted(folder, put, bench, counts):
    asked = row("f1", q1="red", q2="blue")
    path = folder("qa", [asked], a=["red", "blue"], b=["gold"], c=["gray", "gray"])
    lines = [
        {"query": f"q{n}", "gt": gold, "c_pred": "gray"} for n, gold in ((1, "red"), (2, "blue"), (3, "?"))
    ]
    put("leval/predictions/c/qa.pred.jsonl", *lines, lines[-1])
    loaded = bench(path)
    assert [c.id for c in loaded.comparisons] == ["qa/1/a+b", "qa/1/a+c", "qa/2/a+c"]
    assert counts(loaded) == {"missing_predictions": 1, "surplus_predictions": 2}
    assert loaded.audit.findings["missing_predictions"].examples == ("qa/2, b",)
    assert loaded.audit.findings["surplus_predictions"].examples == ("qa/3, c", "qa/4, c")


def test_answers_that_are_no_texts_are_named_or_empty(folder, put, bench, counts):
    path = folder("qa", [row("f1", q="red")], a=["red"], b=["gold"])
    answer = {"query": "q", "gt": "red"}
    file = put("leval/predictions/c/qa.pred.jsonl", answer | {"c_pred": None})
    loaded = bench(path)
    assert len(list(loaded.comparisons)) == 1
    assert counts(loaded) == {"empty_answers": 1}
    put("leval/predictions/c/qa.pred.jsonl", answer | {"c_pred": ["red"]})
    with pytest.raises(DataError, match="line 1, field 'c_pred': needs a text") as caught:
        list(bench(path).comparisons)
    assert str(caught.value).startswith(str(file))


def test_halves_of_surrogate_pairs_become_question_marks(folder, bench):
    path = folder("qa", [row("f1", q="red\ud83d")], a=["red\ud83d"], b=["gold"])
    (pair,) = bench(path).comparisons
    assert text_of(pair.responses[0]) == "red?"


def test_one_document_with_many_rows_is_no_repetition(folder, bench, counts):
    path = folder("gsm", [row("f1", q1="red"), row("f1", q2="blue")], a=["red", "blue"], b=["x", "y"])
    loaded = bench(path)
    assert len({c.group for c in loaded.comparisons}) == 1
    assert len(list(loaded.comparisons)) == 2
    assert counts(loaded) == {}


def test_tasks_can_be_chosen(folder, bench):
    folder("one", [row("f1", q1="red")], a=["red"], b=["x"])
    path = folder("two", [row("f1", q1="red")], a=["red"], b=["x"])
    assert [c.id for c in bench(path, Leval(tasks=("two",))).comparisons] == ["two/1/a+b"]
    with pytest.raises(ConfigError, match="no task 'tow'; did you mean 'two'"):
        bench(path, Leval(tasks=("tow",)))


def test_another_folder_is_refused(tmp_path, bench):
    with pytest.raises(DataError, match="no L-Eval here"):
        bench(f"leval:{tmp_path}")


@pytest.mark.real
@pytest.mark.skipif(not REAL.is_dir(), reason="the real data does not lie beside the checkout")
def test_the_real_answers_are_in_line_and_clearly_apart(bench):
    slow = {"review_summ", "paper_assistant"}  # ROUGE-L of long answers takes seconds
    tasks = tuple(sorted({file.stem for file in (REAL / "data").iterdir()} - slow))
    loaded = bench(f"leval:{REAL}", Leval(tasks=tasks))
    found = list(loaded.comparisons)
    findings = {kind: finding.count for kind, finding in loaded.audit.findings.items()}
    assert Counter(c.metadata["subtype"] for c in found) == {"f1": 261, "exam": 206, "rouge": 34}
    assert Counter(c.metadata["length"] for c in found) == {
        4096: 32,
        8192: 228,
        16384: 113,
        32768: 102,
        65536: 26,
    }
    assert len({c.group for c in found}) == 94
    assert len({c.id for c in found}) == len(found)
    assert findings["misaligned_predictions"] == 0
    assert findings["repeated_documents"] == 9
    assert loaded.audit.findings["no_predictions"].examples == ("sci_fi",)
    assert findings["no_documents"] == 3  # codeU
    assert findings["not_scorable"] == 250  # numbers of gsm100, topics of topic_retrieval_longchat
    # The better answer is neither always the longer one nor always the shorter one.
    for metric in ("f1", "rouge", "exam"):
        pairs = [c.responses for c in found if c.metadata["subtype"] == metric]
        shorter = sum(len(text_of(better)) < len(text_of(worse)) for better, worse in pairs) / len(pairs)
        assert 0.3 < shorter < 0.7


@pytest.mark.real
@pytest.mark.skipif(not REAL.is_dir(), reason="the real data does not lie beside the checkout")
def test_shifted_predictions_are_all_out_of_line(tmp_path, bench):
    (tmp_path / "data").symlink_to(REAL / "data")
    for model in ("turbo-16k-0613", "vicuna-13b-16k"):
        name = f"predictions/{model}/natural_question.pred.jsonl"
        (tmp_path / name).parent.mkdir(parents=True)
        lines = (REAL / name).read_text().splitlines(keepends=True)
        (tmp_path / name).write_text("".join([*lines[1:], lines[0]]))
    loaded = bench(f"leval:{tmp_path}", Leval(tasks=("natural_question",)))
    assert list(loaded.comparisons) == []
    assert loaded.audit.findings["misaligned_predictions"].count == 2 * 104
