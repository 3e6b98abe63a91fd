"""`longrm synthesize judge-prompts`: comparisons become prompts whose gold is what a perfect judge would answer."""

import json
from collections import Counter
from dataclasses import replace

import pytest

import longrm
from longrm.benchmarks.probe import Probe, comparisons
from longrm.data import write
from longrm.data.files import find_files, raw_rows
from longrm.errors import ConfigError, DataError, RunError
from longrm.synthesis.recipes.judge_prompts import RECIPE, synthesize
from longrm.types import Comparison, text_of
from longrm.worlds import WorldPlan, generate, words_tokenizer

CELLS = [{"lengths": [128], "groups": 3, "per_group": 2}, {"lengths": [256], "groups": 2, "per_group": 2}]


@pytest.fixture(scope="module")
def data():
    """Comparisons of two responses and of four, of which gold ties the last two."""
    graded = generate(WorldPlan("records", 128, responses=4), 4, words_tokenizer())
    return [
        *generate(WorldPlan("records", 128), 6, words_tokenizer()),
        *(replace(row, ranks=tuple(min(rank, 3) for rank in row.ranks)) for row in graded),
    ]


@pytest.fixture
def pairs(data, tmp_path):
    path = tmp_path / "pairs.jsonl"
    write(path, data)
    return path


def run(out, **settings):
    return synthesize(RECIPE.resolve(None, settings), out)


def rows_of(out):
    return [row.checked() for row in raw_rows(find_files(out))]


def all_right(rows, data):
    """The verdicts of a judge that knows the ranks of the data, on the responses that the prompt shows."""
    known, texts = {row.id: row for row in data}, []
    for row in rows:
        content, truth = row["prompt"][-1]["content"], known[row["id"]]
        places = {
            index: content.find(f">\n{text_of(response)}\n</response>")
            for index, response in enumerate(truth.responses)
        }
        shown = sorted((index for index in places if places[index] >= 0), key=places.get)
        ranks = [truth.ranks[index] for index in shown]
        best_first = sorted(range(len(shown)), key=ranks.__getitem__)
        letters = ["ABCD"[position] for position in best_first]
        texts.append(
            {
                "pointwise": f"[[{10 - ranks[0]}]]",
                "pairwise": f"[[{letters[0]}]]",
                "listwise": f"[[{' > '.join(letters)}]]",
            }[row["format"]]
        )
    return texts


def test_a_perfect_judge_has_the_full_reward_in_every_format(data, pairs, tmp_path):
    formats = ["pairwise", "listwise", "pointwise"]
    counts = run(tmp_path / "out", source=f"file:{pairs}", formats=formats)["counts"]
    rows = rows_of(tmp_path / "out")
    # Of four responses gold orders five pairs of six.
    assert Counter(row["format"] for row in rows) == {
        "pairwise": 2 * (6 + 4 * 5),
        "listwise": 2 * 10,
        "pointwise": 6 * 2 + 4 * 4,
    }
    assert counts["rows"] == len(rows)
    assert counts["steps"]["pairs"] == {"in": 6 + 4 * 6, "kept": 6 + 4 * 5, "dropped": {"tied": 4}}
    reward = longrm.verdict_reward(correct=1.0, consistent=1.0)
    texts = all_right(rows, data)
    scores = reward.judge(rows, texts, [None] * len(rows))
    assert {score.terms["correct"] for score in scores} == {1.0}
    assert {score.terms.get("consistent") for score in scores} == {1.0, None}
    wrong = reward.judge(rows, texts[::-1], [None] * len(rows))
    assert sum(score.terms["correct"] for score in wrong) < 0.6 * len(rows)


def test_ties_contradictions_and_unknown_orders_are_dropped_and_counted(pairs, tmp_path):
    first, second, third, *_, fifth = rows = list(generate(WorldPlan("records", 128), 6, words_tokenizer()))
    swapped = replace(first, id="swapped", responses=first.responses[::-1], ranks=first.ranks)
    turned = replace(second, id="turned", responses=second.responses[::-1], ranks=second.ranks[::-1])
    elsewhere = replace(
        first,
        id="elsewhere",
        prompt=third.prompt,
        context=(),
        question=None,
        evidence=(),
        ranks=first.ranks[::-1],
    )
    tied = replace(fifth, id="tied", ranks=(1, 1))
    path = tmp_path / "data.jsonl"
    write(path, [*rows, swapped, turned, elsewhere, tied])
    counts = run(tmp_path / "out", source=f"file:{path}")["counts"]
    # `swapped` contradicts the first; `turned` is the second again, and `elsewhere` has another prompt.
    kept = {row.id for row in rows} - {first.id} | {"turned", "elsewhere"}
    assert {row["id"] for row in rows_of(tmp_path / "out")} == kept
    dropped = {"contradictory": 2, "tied": 1}
    assert counts["steps"]["comparisons"] == {"in": 10, "kept": 7, "dropped": dropped}


def test_rows_with_an_unknown_order_are_dropped(tmp_path):
    data = tmp_path / "data.jsonl"
    rows = [
        {"prompt": "Who?", "responses": ["Quill.", "Noreth."]},
        {"prompt": "Who?", "chosen": "a", "rejected": "b"},
    ]
    data.write_text(json.dumps(rows[0]) + "\n")
    assert run(tmp_path / "out", source=f"file:{data}")["counts"]["steps"]["comparisons"]["dropped"] == {
        "order_unknown": 1
    }


def test_a_published_benchmark_is_a_source(tmp_path):
    data = tmp_path / "rm.jsonl"
    row = {
        "id": 8,
        "prompt": "Who?",
        "chosen": ["a", "b", "c"],
        "rejected": ["d", "e", "f"],
        "domain": "chat",
    }
    data.write_text(json.dumps(row) + "\n")
    run(tmp_path / "out", source=f"rm-bench:{data}", solve=True)
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 2 * 9
    assert {row["id"] for row in rows} == {"chat/8"}
    assert rows[0]["answer"] == ["a", "b", "c"]


def test_gold_answers_of_the_data_are_used(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text(
        json.dumps({"prompt": "Who?", "chosen": "It is Quill.", "rejected": "No.", "answer": "Quill"})
    )
    run(tmp_path / "out", source=f"file:{data}", solve=True)
    assert [row["answer"] for row in rows_of(tmp_path / "out")] == [["Quill"]] * 2


def test_rows_without_gold_answers_of_their_own_are_counted(tmp_path):
    data = tmp_path / "data.jsonl"
    pairs = [
        {"prompt": f"{n}?", "chosen": "Yes.", "rejected": "No.", "answer": "Yes" * (n < 1)} for n in range(3)
    ]
    data.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    steps = run(tmp_path / "out", source=f"file:{data}", solve=True)["counts"]["steps"]
    assert steps["gold answers"] == {"in": 6, "kept": 2, "dropped": {"not_in_data": 4}}
    assert "gold answers" not in run(tmp_path / "plain", source=f"file:{data}")["counts"]["steps"]


def test_worlds_are_drawn_with_another_seed_than_evaluations_use(tmp_path):
    probe = {"probe.cells": CELLS}
    run(tmp_path / "out", source="probe", tokenizer="judge_words", **probe)
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 2 * (3 * 2 + 2 * 2)
    evaluated = {text_of(one.prompt) for one in comparisons(Probe.resolve(None, {"cells": CELLS}))}
    run(tmp_path / "same", source="probe", tokenizer="judge_words", **probe, **{"probe.seed": Probe().seed})

    def seen(out):
        return [
            any(prompt in row["prompt"][-1]["content"] for prompt in evaluated)
            for row in rows_of(tmp_path / out)
        ]

    assert not any(seen("out"))
    assert all(seen("same"))


def test_a_template_is_for_one_format_and_part_of_the_run(pairs, tmp_path):
    template = tmp_path / "mine.jinja"
    template.write_text("{{ context }} {{ question }} {{ responses[0] }} or {{ responses[1] }}?")
    settings = {"source": f"file:{pairs}", "template": str(template), "reading.limit": 3}
    run(tmp_path / "out", **settings)
    assert all(row["prompt"][-1]["content"].endswith("?") for row in rows_of(tmp_path / "out"))
    template.write_text(template.read_text() + " Answer.")
    with pytest.raises(RunError, match="prompts"):
        run(tmp_path / "out", **settings)
    with pytest.raises(ConfigError, match="template"):
        run(tmp_path / "other", **settings, formats=["pairwise", "listwise"])


def test_judgments_are_no_source(tmp_path):
    message = ({"role": "user", "content": "Rate it."},)
    answers = tuple(({"role": "assistant", "content": text},) for text in ("[[7]]", "[[2]]"))
    write(tmp_path / "data.jsonl", [Comparison("one", "g", message, answers, (1, 2), role="judgment")])
    with pytest.raises(DataError, match="one"):
        run(tmp_path / "out", source=f"file:{tmp_path / 'data.jsonl'}")
