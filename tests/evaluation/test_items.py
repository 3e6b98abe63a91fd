"""Every column of the items is recomputed here from the lines of the logs, without the code that wrote it."""

import csv
import json
import math

import pandas as pd
import pyarrow.parquet as pq
import pytest

import longrm
from longrm.benchmarks import LoadedBenchmark
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.evaluation.items import ITEMS, ITEMS_CSV, SCHEMA
from longrm.evaluation.trials import JudgingSettings
from longrm.reward_models import RewardModel
from longrm.types import Comparison, Judgment, Outcome
from longrm.worlds import WorldPlan, generate, words_tokenizer

COUNT = 48


def rows(responses):
    """Comparisons of two lengths, some with tied gold, one without gold, one all tied."""
    made = []
    for length in (160, 320):
        plan = WorldPlan("records", length, responses=responses, per_group=3, seed=length)
        made += list(generate(plan, COUNT // 2, words_tokenizer()))
    changed = {0: None, 1: (1,) * responses}
    if responses > 2:
        changed |= {5: (1, 1, 2, 2), 6: (2, 1, 1, 3), 30: (3, 1, 2, 1)}
    return [
        Comparison(
            f"{number}-{one.id}",
            one.group,
            one.prompt,
            one.responses,
            changed.get(number, one.ranks),
            one.metadata,
            one.context,
            one.question,
            one.evidence,
        )
        for number, one in enumerate(made)
    ]


class Fickle(RewardModel):
    """Scores of few values, so that ties come; rankings now and then; and every other way to end."""

    name = "fickle"
    sees_order = True

    def judge(self, queries):
        return [self._judge(query) for query in queries]

    def _judge(self, query):
        number, n = int(query.id.partition("-")[0]), len(query.responses)
        if number in (7, 8, 9):
            outcome = (Outcome.UNPARSED, Outcome.TOO_LONG, Outcome.ERROR)[number - 7]
            return Judgment(outcome, detail=f'no "verdict", {outcome}')
        if number % 4 == 2:
            order = tuple(sorted(range(n), key=lambda at: (number * 7 + at * 5 + query.trial) % 11))
            return Judgment(Outcome.ANSWERED, ranking=order, attempts=2)
        values = tuple(float((number + at * (number % 3 + at) + query.trial) % 3) for at in range(n))
        half = tuple(value / 2 for value in values)
        criteria = (half, half) if number % 5 == 1 else ()
        return Judgment(
            Outcome.ANSWERED, values, prompt_tokens=number, explanation="so " * 9, criteria=criteria
        )


def judged(path, responses=2, orders="both", **judging):
    settings = Evaluation(
        model="x", bench="x", judging=JudgingSettings(orders=orders, resamples=100, **judging)
    )
    bench = LoadedBenchmark("test", rows(responses))
    return run_evaluation(settings, path, bench=bench, model=Fickle()).to_dict()


def logged(path, name):
    return {one["id"]: one for one in map(json.loads, (path / f"{name}.jsonl").read_text().splitlines())}


def worth(line):
    """Scores of a line of the log, or of its ranking: 1 for the best down to 0 in even steps."""
    if line["outcome"] != "answered":
        return None
    if line.get("scores"):
        return line["scores"]
    steps = len(line["ranking"]) - 1
    return [(steps - line["ranking"].index(response)) / steps for response in range(steps + 1)]


def credit(line, gold):
    """What a coin that breaks every tie for the best would earn on average."""
    if line["outcome"] == "error" or not gold or len(set(gold)) == 1:
        return None
    if (values := worth(line)) is None:
        return 0.0
    first = [rank for value, rank in zip(values, gold, strict=True) if value == max(values)]
    return first.count(min(gold)) / len(first)


def lead(line, gold):
    if (values := worth(line)) is None or not gold or len(set(gold)) == 1:
        return None
    right = [value for value, rank in zip(values, gold, strict=True) if rank == min(gold)]
    return max(right) - max(value for value, rank in zip(values, gold, strict=True) if rank != min(gold))


def trial(line):
    return {
        "outcome": line["outcome"],
        "order": line["order"],
        "scores": line.get("scores") or None,
        "ranking": line.get("ranking") or None,
        "reason": line.get("detail") or None,
        "attempts": line.get("attempts", 1),
        "contradicted": line.get("contradicted"),
        "criteria": line.get("criteria") or None,
    }


def expected(line, gold):
    trials = [trial(one) for one in line.get("trials") or [line]]
    return {
        **{name: line.get(name) for name in ("id", "group", "length", "tokens", "depth", "task", "subtype")},
        "gold": gold,
        "correct": credit(line, gold),
        "margin": lead(line, gold),
        **trial(line),
        "attempts": sum(one["attempts"] for one in trials),
        "cut_tokens": line.get("cut", {"tokens": 0})["tokens"],
        "context_check": line.get("context_check"),
        "solved": line.get("committed", {}).get("solved"),
        "trials": trials,
    }


@pytest.mark.parametrize(("responses", "orders"), [(2, "both"), (2, "one"), (4, "both"), (4, "one")])
def test_every_column_is_what_the_logs_say(tmp_path, responses, orders):
    judged(tmp_path / "run", responses, orders)
    gold = {name: line["ranks"] for name, line in logged(tmp_path / "run", "gold").items()}
    lines = logged(tmp_path / "run", "judgments")
    found = pq.read_table(tmp_path / "run" / ITEMS).to_pylist()
    assert len(found) == len(lines) == COUNT
    assert found == [expected(line, gold[name]) for name, line in lines.items()]
    assert {one["correct"] for one in found} >= {None, 0.0, 0.5, 1.0}
    # Negative control: gold of another comparison does not fit.
    assert found != [expected(line, [*reversed(gold[name] or [])]) for name, line in lines.items()]


@pytest.mark.parametrize("responses", [2, 4])
def test_the_mean_of_correct_is_the_main_metric(tmp_path, responses):
    summary = judged(tmp_path / "run", responses)
    items, metrics = longrm.read_run(tmp_path / "run"), summary["metrics"]
    main = "top1" if responses > 2 else "pair_accuracy"
    assert math.isclose(items.correct.mean(), metrics["overall"][main]["value"], rel_tol=1e-12)
    assert items.correct.count() == metrics["overall"][main]["n"]
    for column, parts in (("length", "by_length"), ("task", "by_task")):
        means = items.groupby(column).correct.mean()
        assert {str(key): value for key, value in means.items()} == pytest.approx(
            {key: part[main]["value"] for key, part in metrics[parts].items()}, rel=1e-12
        )
    # Negative control: answered rows alone have another mean.
    assert items[items.outcome == "answered"].correct.mean() != items.correct.mean()


def test_a_run_is_read_as_pandas_reads_its_file_and_as_its_logs_have_it(tmp_path):
    judged(tmp_path / "run", 4)
    items = longrm.read_run(str(tmp_path / "run"))
    pd.testing.assert_frame_equal(items, pd.read_parquet(tmp_path / "run" / ITEMS))
    (tmp_path / "run" / ITEMS).unlink()
    pd.testing.assert_frame_equal(items, longrm.read_run(tmp_path / "run"))


def test_the_csv_file_holds_the_same_rows(tmp_path):
    judged(tmp_path / "run", 4, context_check="swapped")
    with (tmp_path / "run" / ITEMS_CSV).open(newline="") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == SCHEMA.names
    for cells, row in zip(found, pq.read_table(tmp_path / "run" / ITEMS).to_pylist(), strict=True):
        for name, value in row.items():
            text = cells[name]
            read = text if isinstance(value, str) else None if text == "" else json.loads(text)
            assert read == value, name
