from collections import Counter
from pathlib import Path

import pytest

from longrm.errors import DataError
from longrm.judging.judge_prompts import stated_answers
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


def test_a_pair_has_two_answers_whose_scores_are_clearly_apart(folder, bench):
    path = folder(
        "qa",
        [row("f1", who="Quill the clerk")],
        good=["Quill clerk"],  # F1 1
        fair=["Quill clerk then"],  # F1 0.8, a gap of 0.2, although 1 - 0.8 is less in floating point
        poor=["Noreth"],  # F1 0
    )
    pairs = list(bench(path.replace("leval:", "leval-all:")).comparisons)
    assert [pair.id for pair in pairs] == ["qa/1/good+fair", "qa/1/good+poor", "qa/1/fair+poor"]
    first = pairs[1]
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
    assert stated_answers(first) == ["Quill the clerk"]


def test_choices_are_right_or_wrong(folder, bench):
    rows = [row("exam", which="B", what="A"), row("exam", "Other.", when="C")]
    path = folder("quiz", rows, a=["B", "C", "A"], b=["(B)", "B", "(A)"], c=["A", "A", "(C) x"])
    pairs = list(bench(path.replace("leval:", "leval-all:")).comparisons)
    sides = ("1/a+c", "1/b+c", "2/c+a", "2/c+b", "3/c+a", "3/c+b")
    assert [pair.id for pair in pairs] == [f"quiz/{side}" for side in sides]
    assert len({pair.group for pair in pairs}) == 2


def test_questions_and_answers_left_out_are_counted(folder, bench, counts):
    first, second = row("f1", q1="red", q2="blue", q3="green"), row("exam", "Other.", free="The sea")
    again = {**first, "evaluation": "LLM"}
    path = folder(
        "qa",
        [first, second, again],
        a=["red", " ", "green", "sea"],
        b=["red", "blue", "green", "sky"],
        c=["gold", "gold", "green", "sand"],
    )
    loaded = bench(path.replace("leval:", "leval-all:"))
    assert [c.id for c in loaded.comparisons] == ["qa/1/a+c", "qa/2/b+c"]
    assert counts(loaded) == {
        "repeated_documents": 1,
        "empty_answers": 1,
        "identical_answers": 3,
        "not_scorable": 1,
        "too_few_answers": 1,
    }
    assert loaded.audit.findings["identical_answers"].examples[0] == "qa/1, b"


def test_misaligned_predictions_are_left_out_and_counted(folder, put, bench, counts):
    path = folder("qa", [row("f1", q1="red", q2="blue")], a=["red", "blue"], b=["gold", "gold"])
    lines = [{"query": "q1", "gt": "red", "c_pred": "gray"}, {"query": "q2", "gt": "BLUE", "c_pred": "gray"}]
    put("leval/predictions/c/qa.pred.jsonl", *lines)
    put("leval/predictions/c/lost.pred.jsonl", *lines)
    put("leval/data/silent.jsonl", row("f1", q="a"))
    loaded = bench(path.replace("leval:", "leval-all:"))
    assert [c.id for c in loaded.comparisons] == ["qa/1/a+b", "qa/1/a+c", "qa/2/a+b"]
    assert counts(loaded) == {"misaligned_predictions": 1, "no_documents": 1, "no_predictions": 1}
    assert loaded.audit.findings["misaligned_predictions"].examples == ("qa/2, c",)


def test_missing_and_surplus_lines_are_counted(folder, put, bench, counts):
    asked = row("f1", q1="red", q2="blue")
    path = folder("qa", [asked], a=["red", "blue"], b=["gold"], c=["gray", "gray"])
    lines = [
        {"query": f"q{n}", "gt": gold, "c_pred": "gray"} for n, gold in ((1, "red"), (2, "blue"), (3, "?"))
    ]
    put("leval/predictions/c/qa.pred.jsonl", *lines, lines[-1])
    loaded = bench(path.replace("leval:", "leval-all:"))
    assert [c.id for c in loaded.comparisons] == ["qa/1/a+b", "qa/1/a+c", "qa/2/a+c"]
    assert counts(loaded) == {"missing_predictions": 1, "surplus_predictions": 2}
    assert loaded.audit.findings["missing_predictions"].examples == ("qa/2, b",)
    assert loaded.audit.findings["surplus_predictions"].examples == ("qa/3, c", "qa/4, c")


def test_a_null_answer_is_empty_and_another_type_is_an_error(folder, put, bench, counts):
    path = folder("qa", [row("f1", q="red")], a=["red"], b=["gold"])
    answer = {"query": "q", "gt": "red"}
    file = put("leval/predictions/c/qa.pred.jsonl", answer | {"c_pred": None})
    loaded = bench(path.replace("leval:", "leval-all:"))
    assert len(list(loaded.comparisons)) == 1
    assert counts(loaded) == {"empty_answers": 1}
    put("leval/predictions/c/qa.pred.jsonl", answer | {"c_pred": ["red"]})
    with pytest.raises(DataError, match=f"{file}, line 1, field 'c_pred'"):
        bench(path.replace("leval:", "leval-all:"))  # before anything is judged


def test_several_rows_about_one_document_are_no_repetition(folder, bench, counts):
    path = folder("gsm", [row("f1", q1="red"), row("f1", q2="blue")], a=["red", "blue"], b=["x", "y"])
    loaded = bench(path.replace("leval:", "leval-all:"))
    assert len({c.group for c in loaded.comparisons}) == 1
    assert len(list(loaded.comparisons)) == 2
    assert counts(loaded) == {}


def test_pairs_whose_worse_answer_contains_the_gold_answer_are_left_out(folder, bench, counts):
    path = folder(
        "qa",
        [row("f1", who="Quill the clerk", when="On Monday")],
        short=["Quill, clerk!", "Monday"],
        long=["It was a Quill clerk of the town hall, I think", "On a Monday, or so they all say"],
        other=["Noreth", "In May, when the days are long and warm"],
    )
    sides = ["short+other", "long+other"]
    everything = [f"qa/{n}/{pair}" for n in (1, 2) for pair in ("short+long", *sides)]
    assert [c.id for c in bench(path.replace("leval:", "leval-all:")).comparisons] == everything
    loaded = bench(path)
    assert [c.id for c in loaded.comparisons] == [f"qa/{n}/{pair}" for n in (1, 2) for pair in sides]
    assert counts(loaded) == {"gold_in_worse": 2}
    assert loaded.audit.findings["gold_in_worse"].examples == ("qa/1/short+long", "qa/2/short+long")


def test_the_better_answer_is_as_often_the_longer_one(folder, bench, counts):
    golds = {f"q{n}": f"word{n} and more{n}" for n in range(8)}
    better = [*list(golds.values())[:6], "word6 more6", "word7 more7"]
    path = folder("qa", [row("f1", **golds)], good=better, poor=["x"] * 6 + ["y" * 40] * 2)
    loaded = bench(path)
    found = list(loaded.comparisons)
    # Six better answers are the longer one and two the shorter: of the six two are taken, far apart.
    assert [c.id for c in found] == [f"qa/{n}/good+poor" for n in (1, 4, 7, 8)]
    assert [c.id for c in bench(path).comparisons] == [c.id for c in found]
    assert counts(loaded) == {"unbalanced": 4}
    assert len(list(bench(path.replace("leval:", "leval-all:")).comparisons)) == 8


def test_summaries_may_contain_the_gold_answer(folder, bench, counts):
    gold = "Quill wrote the code and Noreth read it"
    worse = f"{gold} on a day in May, when the sea was calm and all the boats lay in the bay of the town"
    path = folder("summ", [row("rouge", what=gold)], good=[gold], poor=[worse], far=["nothing to see here"])
    loaded = bench(path)
    assert len(list(loaded.comparisons)) == 2
    assert "gold_in_worse" not in counts(loaded)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real data is not next to the checkout")
def test_the_real_answers_are_aligned_and_clearly_apart(bench):
    loaded = bench(f"leval-all:{REAL}")
    found = list(loaded.comparisons)
    findings = {kind: finding.count for kind, finding in loaded.audit.findings.items()}
    assert Counter(c.metadata["subtype"] for c in found) == {"f1": 266, "exam": 206, "rouge": 119}
    lengths = {4096: 30, 8192: 237, 16384: 138, 32768: 160, 65536: 26}
    assert Counter(c.metadata["length"] for c in found) == lengths
    assert len({c.group for c in found}) == 122
    assert len({c.id for c in found}) == len(found)
    assert findings["misaligned_predictions"] == 0
    assert findings["repeated_documents"] == 16
    assert loaded.audit.findings["no_predictions"].examples == ("sci_fi",)
    assert findings["no_documents"] == 3  # codeU
    assert findings["not_scorable"] == 250  # numbers of gsm100, topics of topic_retrieval_longchat
    shorter = [len(text_of(better)) < len(text_of(worse)) for better, worse in (c.responses for c in found)]
    of_f1 = [short for short, c in zip(shorter, found, strict=True) if c.metadata["subtype"] == "f1"]
    assert sum(of_f1) / len(of_f1) == pytest.approx(0.61, abs=0.005)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real data is not next to the checkout")
def test_the_better_real_answers_are_balanced_by_length(bench):
    loaded = bench(f"leval:{REAL}")
    sides: dict[str, list[int]] = {}
    for one in loaded.comparisons:
        better, worse = (len(text_of(response)) for response in one.responses)
        sides.setdefault(one.metadata["task"], []).append((better > worse) - (better < worse))
    assert sum(map(len, sides.values())) == 437
    assert {task: sum(leads) for task, leads in sides.items()} == dict.fromkeys(sides, 0)
    found = {kind: loaded.audit.findings[kind].count for kind in ("gold_in_worse", "unbalanced")}
    assert found == {"gold_in_worse": 41, "unbalanced": 113}
