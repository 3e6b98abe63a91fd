"""`longrm evaluate --set judge.rubrics=item` to its end: the summary's metrics of criteria, where they are known."""

import json
from dataclasses import replace

import pytest

from longrm.cli.commands import cli
from longrm.data import write
from longrm.types import Criterion
from longrm.worlds import WorldPlan, generate
from longrm.worlds.words_tokenizer import load_tokenizer

N, ERROR = 600, 0.25
ITEM = ("--set", "judge.rubrics=item")


@pytest.fixture(scope="module")
def rows():
    return list(generate(WorldPlan("checklist", 300), N, load_tokenizer("approximate")))


@pytest.fixture
def evaluated(tmp_path):
    def run(rows, model, *more):
        bench, out = tmp_path / "pairs.jsonl", tmp_path / "run"
        write(bench, rows)
        arguments = ["--model", model, "--bench", f"file:{bench}", "--out", str(out), *more]
        cli.main(["evaluate", *arguments], standalone_mode=False)
        summary = json.loads((out / "summary.json").read_text())
        accuracy = summary["metrics"]["overall"]["pair_accuracy"]
        return accuracy, summary["failures"].get("criteria_against")

    return run


def ranked(row, by_criterion, weights=(1, 1, 1)):
    """The row with such gold by its criteria: 1 is for the response that gold ranks first, -1 is against it."""
    ranks = list(row.ranks)
    told = [ranks if sign > 0 else ranks[::-1] for sign in by_criterion]
    rubrics = tuple(Criterion(one.text, weight) for one, weight in zip(row.rubrics, weights, strict=True))
    return replace(row, rubrics=rubrics, metadata={**row.metadata, "criterion_ranks": told})


def near(value, expected):
    """Within four standard errors of a mean of independent comparisons."""
    return abs(value - expected) <= 4 * (expected * (1 - expected) / N) ** 0.5


def test_of_pairs_with_one_broken_criterion_none_is_against_the_verdict(rows, evaluated):
    accuracy, against = evaluated(rows, f"simulated:{ERROR}", *ITEM)
    assert near(accuracy["value"], 1 - ERROR)
    assert (against["value"], against["n"]) == (0, N)


@pytest.mark.parametrize(("weights", "right", "against"), [((1, 1, 1), 1, 1 / 3), ((1, 3, 1), 0, 2 / 3)])
def test_criteria_that_weigh_less_than_the_others_are_against_the_verdict(
    rows, evaluated, weights, right, against
):
    few = [ranked(row, (1, -1, 1), weights) for row in rows[:20]]
    accuracy, found = evaluated(few, "simulated:0", *ITEM)
    assert accuracy["value"] == right
    assert (found["value"], found["n"]) == (pytest.approx(against), 60)


def test_errors_by_criteria_that_agree_are_independent(rows, evaluated):
    agreeing = [ranked(row, (1, 1, 1)) for row in rows]
    accuracy, against = evaluated(agreeing, f"simulated:{ERROR}", *ITEM)
    one, two = 3 * ERROR * (1 - ERROR) ** 2, 3 * ERROR**2 * (1 - ERROR)
    assert near(accuracy["value"], 1 - two - ERROR**3)
    # One of three is against the others where one or two err; with one draw for all of them it never were.
    assert near(3 * against["value"], one + two)
