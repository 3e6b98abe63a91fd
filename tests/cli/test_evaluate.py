"""The output and exit status of `longrm evaluate`, for complete and incomplete runs."""

import json
from dataclasses import replace

import pytest

from longrm import reward_models
from longrm.cli.commands import cli
from longrm.cli.evaluate import print_evaluation
from longrm.data import write
from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import parse_summary
from longrm.reward_models import RewardModel
from longrm.runs.records import JudgmentRecord
from longrm.types import Criterion, Cut, Judgment, Outcome, Trial, message_text
from longrm.worlds import WorldPlan, generate, words_tokenizer
from longrm.worlds.words_tokenizer import load_tokenizer


class Reader(RewardModel):
    """Answers prompts under 2,000 characters; longer ones get the given outcome."""

    def __init__(self, outcome):
        self.name, self._outcome = "reader", outcome

    def judge(self, queries):
        sizes = [len("".join(map(message_text, query.prompt))) for query in queries]
        return [
            Judgment(Outcome.ANSWERED, scores=(1.0, 0.0))
            if size < 2000 or self._outcome is None
            else Judgment(self._outcome, detail=f"{size:,} > 2,000 tokens")
            for size in sizes
        ]


@pytest.mark.parametrize("outcome", [None, Outcome.TOO_LONG, Outcome.ERROR])
def test_a_run_without_all_answers_is_incomplete(longrm, tmp_path, monkeypatch, outcome):
    rows = [row for size in (64, 512) for row in generate(WorldPlan("records", size), 6, words_tokenizer())]
    write(tmp_path / "pairs.jsonl", rows)
    monkeypatch.setattr(reward_models, "load", lambda name, **_: Reader(outcome))
    bench = f"file:{tmp_path / 'pairs.jsonl'}"
    done = longrm("evaluate", "--model", "reader", "--bench", bench, "--out", tmp_path / "run")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    by_length = summary["metrics"]["by_length"]
    assert by_length["64"]["pair_accuracy"]["value"] is not None
    assert summary["complete"] is (outcome is None)
    if outcome is None:
        assert done.status == 0
        return
    assert done.status == 1
    assert by_length["512"]["pair_accuracy"]["value"] is None
    assert ("2,000 tokens" if outcome is Outcome.TOO_LONG else "6 of 12") in done.error
    assert "512" in done.error
    assert ("the same command retries them" in done.error) is (outcome is Outcome.ERROR)
    again = longrm("evaluate", "--recorded", tmp_path / "run", "--bench", bench, "--out", tmp_path / "again")
    assert again.status == 1
    assert ("ended in errors" in again.error) is (outcome is Outcome.ERROR)
    assert "retries" not in again.error, "a record stays as it is"


def records(tasks=("Cite", "Code"), **changes):
    """24 pairs in both orders; the first shown wins in a third of them, the chosen one in the others."""
    found = []
    for number in range(24):
        biased = number % 3 == 0
        trials = tuple(
            Trial(
                order=order,
                outcome=Outcome.ANSWERED,
                scores=(1.0, 0.0) if not biased or order[0] == 0 else (0.0, 1.0),
            )
            for order in ((0, 1), (1, 0))
        )
        found.append(
            JudgmentRecord(
                id=f"{number}",
                group=f"{number}",
                outcome=Outcome.ANSWERED,
                ranks=(1, 2),
                order=(0, 1),
                scores=(0.5, 0.5) if biased else (1.0, 0.0),
                length=1024 << number % 2,
                task=tasks[number % len(tasks)],
                trials=trials,
                **changes,
            )
        )
    return found


def printed(capsys, monkeypatch, summary, columns=80):
    monkeypatch.setenv("COLUMNS", str(columns))
    print_evaluation(parse_summary(summary))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    return " ".join(out.split())


def summed(found, **options):
    return summarize(found, model="judge", bench="probe", resamples=100, **options).to_dict()


def test_lengths_that_narrow_the_boundary_are_suggested_for_a_probe(capsys, monkeypatch):
    summary = summed(records())
    summary["boundary"]["more_lengths"] = [1216, 1440, 1728]
    assert "1,216" not in printed(capsys, monkeypatch, summary), "the lengths of a file are given"
    summary["measured"] = {"tokenizer": "words", "worlds": ["records"], "depths": ["uniform"]}
    assert "lengths to narrow it 1,216, 1,440, 1,728" in printed(capsys, monkeypatch, summary)


@pytest.mark.parametrize("columns", [80, 50])
def test_everything_measured_is_printed_and_fits(capsys, monkeypatch, columns):
    found = records(
        cut=Cut("middle", 10), baselines={"longest": (0.0, 1.0), "overlap": (1.0, 0.0)}, characters=(5, 9)
    )
    summary = summed(found, scale="verdict", rule="judgebench")
    summary["audit"] = {
        "comparisons": 24,
        "findings": {"duplicates": {"what": "comparisons that came before", "count": 2, "examples": []}},
    }
    out = printed(capsys, monkeypatch, summary, columns)
    for text in (
        "judge on probe: pair accuracy 83.3% [",
        "context boundary",
        "all 83.3 [",
        "1024 83.3 [",
        "Cite 83.3 [",
        "mean 83.3 [",
        "24 answered, in 48 trials",
        "24 contexts, 240 tokens",
        "66.7 [",
        "−16.7 [",
        "66.67%",
        "comparisons that came before: 2",
    ):
        assert text in out, text
    assert "rules that the model does not beat overlap" in out, "it beats one of two"


def test_pairs_among_rankings_are_printed_alone(capsys, monkeypatch):
    several = {"order": (0, 1, 2), "ranks": (1, 2, 2), "scores": (0.0, 1.0, 2.0), "trials": ()}
    found = [replace(one, id=f"best of 3, {one.id}", **several) for one in records()]
    out = printed(capsys, monkeypatch, summed([*records(), *found]))
    assert "top-1 41.7%" in out
    assert "pairs alone, % 83.3 [" in out
    assert "n = 24" in out


def test_nothing_empty_is_printed(capsys, monkeypatch):
    plain = [replace(one, length=None, trials=(), scores=(1.0, 0.0)) for one in records(tasks=("one",))]
    out = printed(capsys, monkeypatch, summed(plain))
    assert out.endswith("outcomes 24 answered kappa with gold 1.00 [0.72, 1.00]")
    for absent in ("By task", "alone", "order", "baseline", "rule", "cut", "trials", "boundary", "None"):
        assert absent not in out, absent


def test_without_gold_there_is_no_accuracy(capsys, monkeypatch):
    record = replace(records()[1], ranks=None, length=None, task="", trials=())
    out = printed(capsys, monkeypatch, summed([record]))
    assert out == "judge on probe: accuracy undefined: no comparison has a gold order outcomes 1 answered"


# --- `longrm evaluate --set judge.rubrics=item` to its end: the summary's metrics of criteria, where they are known ---

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
