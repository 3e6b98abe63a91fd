from itertools import product

import numpy as np
import pytest
from scipy.stats import norm

from longrm.evaluation.breakdown import _mean_of_parts, breakdown, empty_cells, missing_answers
from longrm.evaluation.estimates import metrics_for, unanimity_bounds
from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import MissingAnswers, parse_summary
from longrm.evaluation.table import JudgmentTable, scored_table
from longrm.types import Outcome

OPTIONS = {"seed": 3, "resamples": 200}


def divided(records):
    return breakdown(JudgmentTable.of(records), **OPTIONS)


@pytest.fixture
def mixed(judgment):
    """Pairs and rankings of two tasks, of which Summ is the larger and the harder."""
    rng = np.random.default_rng(0)
    records = []
    for k in range(240):
        task, length = ("Summ" if k % 4 else "Cite"), 4096 << k % 3
        n = (2, 2, 3, 4)[k % 5 % 4]
        subtype = str(n) if k % 5 > 1 or k % 7 == 0 else "same"
        scores = rng.normal(size=n) - np.arange(n) * (2.0 if task == "Cite" else 0.3)
        ranks = tuple(range(1, n + 1))
        extra = {"task": task, "subtype": subtype, "length": length}
        records.append(judgment(str(k), f"g{k // 3}", ranks=ranks, scores=scores.tolist(), **extra))
    return records


def test_buckets_are_the_metrics_of_their_records(mixed):
    found = divided(mixed)

    def expected(keep):
        return metrics_for(scored_table(record for record in mixed if keep(record)), **OPTIONS)

    assert found.overall == expected(lambda r: True)
    assert found.by_task["Cite"] == expected(lambda r: r.task == "Cite")
    assert found.by_subtype["3"] == expected(lambda r: r.subtype == "3")
    assert found.by_task_and_length["Summ"]["8192"] == expected(
        lambda r: r.task == "Summ" and r.length == 8192
    )
    assert list(found.by_subtype) == ["2", "3", "4", "same"]
    pairs = found.pairs
    assert pairs.overall == expected(lambda r: r.subtype == "same")
    assert pairs.by_task["Summ"] == expected(lambda r: r.subtype == "same" and r.task == "Summ")
    assert pairs.by_length["4096"] == expected(lambda r: r.subtype == "same" and r.length == 4096)
    assert pairs.overall["pair_accuracy"] != found.overall["pair_accuracy"]


def test_macro_weighs_tasks_alike_and_micro_comparisons(judgment):
    records = [
        judgment(f"{task}{k}", scores=(1.0, 0.0) if k < right else (0.0, 1.0), task=task, length=length)
        for task, n, right, length in (("A", 10, 10, 128), ("B", 30, 15, 256), ("", 10, 0, 128))
        for k in range(n)
    ]
    found = divided(records)
    assert found.overall["pair_accuracy"].value == 25 / 50
    by_task, by_length = found.macro.by_task, found.macro.by_length
    assert (by_task.value, by_task.n) == ((1 + 0.5) / 2, 40)  # what has no task is in no task
    assert (by_length.value, by_length.n) == ((10 / 20 + 15 / 30) / 2, 50)
    assert list(found.by_task) == ["A", "B"]
    assert found.pairs is None


def by_length(judgment, rng, rates, groups, *, shared, per_group=4):
    """Pairs at each rate; half of what makes one right or wrong is the context's, which all lengths may share."""
    contexts = {place: rng.normal(size=groups) for place in range(len(rates))}
    found = []
    for place, rate in enumerate(rates):
        own = contexts[0 if shared else place]
        for g, k in product(range(groups), range(per_group)):
            right = np.sqrt(0.5) * own[g] + np.sqrt(0.5) * rng.normal() < norm.ppf(rate)
            name = f"{g}" if shared else f"{place}-{g}"
            scores = (1.0, 0.0) if right else (0.0, 1.0)
            found.append(judgment(f"{place}-{g}-{k}", name, scores=scores, length=128 << place))
    return found


@pytest.mark.parametrize("shared", [False, True])
def test_the_interval_of_a_mean_over_lengths_covers_it_with_few_contexts_a_length(judgment, shared):
    rates, covered, naive, runs = (0.9, 0.8, 0.7), 0, 0, 100
    mean = np.mean(rates)
    for seed in range(runs):
        records = by_length(judgment, np.random.default_rng(seed), rates, 6, shared=shared)
        table = scored_table(records)
        found = _mean_of_parts(table, table.length > 0, table.length, {"seed": 0, "resamples": 200})
        covered += found.low <= mean <= found.high
        # As if every comparison were a context of its own.
        half = 1.96 * np.sqrt(found.value * (1 - found.value) / found.n)
        naive += abs(found.value - mean) <= half
    assert covered / runs >= 0.92
    assert naive / runs < 0.85, "contexts matter here"


def test_a_mean_over_lengths_goes_with_what_the_lengths_share(judgment):
    pairs = {True: [], False: []}
    for shared, seed in product(pairs, range(10)):
        records = by_length(judgment, np.random.default_rng(seed), (0.8,) * 4, 40, shared=shared)
        table = scored_table(records)
        found = _mean_of_parts(table, table.length > 0, table.length, {"seed": 0, "resamples": 200})
        pairs[shared].append(found.high - found.low)
    # Of independent lengths variances add up; those of one context go together.
    assert 1.3 < np.mean(pairs[True]) / np.mean(pairs[False]) < 2.0


def test_a_length_at_which_all_contexts_agree_is_not_taken_to_be_certain(judgment):
    split = [judgment(f"a{k}", scores=(1.0, 0.0) if k % 2 else (0.0, 1.0), length=128) for k in range(40)]
    sure = [judgment(f"b{k}", scores=(1.0, 0.0), length=256) for k in range(6)]
    one = divided(split).macro.by_length
    both = divided([*split, *sure]).macro.by_length
    # Half of the first one's, and at most as far below as six that agree may be wrong.
    assert both.high - both.value == pytest.approx((one.high - one.value) / 2)
    below = np.hypot(one.value - one.low, 1 - unanimity_bounds(1.0, np.arange(6), (0.0, 1.0))[0]) / 2
    assert both.value - both.low == pytest.approx(below)


# --- What was not answered, against counts by hand; a part that was answered and all wrong is the control ---

SAID = "31,333 > 4,096 tokens; prompt and longest response have more than the model reads; model_args.cut names it"


@pytest.fixture
def grid(judgment):
    """Pairs at two lengths and two depths: at 31,333 tokens nothing is answered, or everything and all wrong."""

    def made(*, answered):
        return [
            judgment(
                f"{length}-{depth}-{k}",
                outcome=Outcome.ANSWERED if answered or length == 4096 else Outcome.TOO_LONG,
                scores=(1.0, 0.0) if length == 4096 else (0.0, 1.0) if answered else (),
                detail="" if answered or length == 4096 else SAID,
                length=length,
                depth=depth,
                task="Cite",
            )
            for length in (4096, 31333)
            for depth in (0.0, 1.0)
            for k in range(4)
        ]

    return made


def summed(records):
    return parse_summary(summarize(records, model="m", bench="b", resamples=100).to_dict())


def test_a_part_without_an_answer_is_not_one_that_was_all_wrong(grid):
    silent, wrong = summed(grid(answered=False)), summed(grid(answered=True))
    for found, value in ((silent, None), (wrong, 0.0)):
        metrics = found.metrics
        assert metrics.by_length["31333"]["pair_accuracy"].value == value
        assert metrics.by_length_and_depth["31333"]["0.8-1.0"]["pair_accuracy"].value == value
        assert metrics.by_task_and_length["Cite"]["31333"]["pair_accuracy"].value == value
        # Where some were answered, what was not is wrong still.
        assert (
            metrics.overall["pair_accuracy"].value
            == metrics.by_depth["0.0-0.2"]["pair_accuracy"].value
            == 0.5
        )
    assert silent.metrics.macro.by_length.value is None
    assert wrong.metrics.macro.by_length.value == 0.5
    assert (silent.boundary.below, wrong.boundary.below) == (None, 31333)
    assert [*silent.boundary.effective_n] == ["4096"]
    assert (silent.complete, wrong.complete) == (False, True)


def test_missing_answers_are_counted_with_reasons(grid):
    found = missing_answers(JudgmentTable.of(grid(answered=False)))
    assert [*found.by_length] == ["31333"], "what was answered whole is not here"
    assert found.by_length["31333"].reason == "8 of 8 too long: 31,333 > 4,096 tokens"
    assert found.by_length_and_depth["31333"]["0.0-0.2"].reason == "4 of 4 too long: 31,333 > 4,096 tokens"
    assert (found.overall.comparisons, found.overall.answered, found.overall.outcomes) == (
        16,
        8,
        {Outcome.TOO_LONG: 8},
    )
    assert found.by_task_and_length["Cite"]["31333"].answered == 0
    assert [*empty_cells(found)] == ["at 31,333 tokens"], "its depths are not named again"
    assert missing_answers(JudgmentTable.of(grid(answered=True))) == MissingAnswers()


def test_a_depth_or_a_task_without_an_answer_is_named_and_makes_the_run_incomplete(judgment):
    def made(task, depth, *, answered):
        outcome = Outcome.ANSWERED if answered else Outcome.UNPARSED
        scores = (1.0, 0.0) if answered else ()
        return judgment(f"{task}{depth}", outcome=outcome, scores=scores, task=task, depth=depth, length=64)

    records = [made("A", 0.1, answered=True), made("A", 0.5, answered=False), made("B", 0.1, answered=False)]
    assert [*empty_cells(missing_answers(JudgmentTable.of(records)))] == [
        "at 64 tokens and depth 0.4-0.6",
        "in the task B",
    ]
    assert summed(records).complete is False
    assert summed(records[:1]).complete is True
