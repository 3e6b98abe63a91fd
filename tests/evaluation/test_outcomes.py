import numpy as np
import pytest

from longrm.evaluation.estimates import metrics_for, wilson
from longrm.evaluation.judge_behavior import accuracy, failures, outcome_rates
from longrm.evaluation.table import JudgmentTable, scored_table
from longrm.types import Outcome, Trial

OPTIONS = {"seed": 0, "resamples": 200}


def test_three_readings_of_every_outcome(judgment):
    records = [
        judgment("right", scores=(2.0, 1.0)),
        judgment("tie", scores=(1.0, 1.0)),
        judgment("wrong", scores=(0.0, 1.0)),
        *(judgment(name, outcome=Outcome(name)) for name in ("unparsed", "refused", "truncated", "too_long")),
        judgment("error", outcome=Outcome.ERROR),
        judgment("unknown", ranks=None, scores=(1.0, 0.0)),
    ]
    found = accuracy(scored_table(records), **OPTIONS)
    assert {name: (metric["value"], metric["n"]) for name, metric in found.to_dict().items()} == {
        "strict": (1.5 / 7, 7),
        "chance_credit": ((1.5 + 4 * 0.5) / 7, 7),
        "answered": (1.5 / 3, 3),
    }
    assert found.strict.value == metrics_for(scored_table(records))["pair_accuracy"].value
    rates = outcome_rates(JudgmentTable.of(records), **OPTIONS)
    assert {name: rate.value for name, rate in rates.items()} == {
        "answered": 4 / 9,
        **dict.fromkeys(("unparsed", "refused", "truncated", "too_long", "error"), 1 / 9),
    }
    assert (rates["error"].low, rates["error"].high) == pytest.approx(wilson(1 / 9, 9))


def test_chance_is_that_of_each_comparison(judgment):
    records = [
        judgment("pair", outcome=Outcome.UNPARSED),
        judgment("four", ranks=(4, 1, 2, 3), outcome=Outcome.UNPARSED),
        judgment("two best", ranks=(1, 1, 2), outcome=Outcome.UNPARSED),
        judgment("right", ranks=(1, 2, 3), scores=(3.0, 2.0, 1.0)),
    ]
    found = accuracy(scored_table(records), **OPTIONS)
    assert found.chance_credit.value == pytest.approx((1 / 2 + 1 / 4 + 2 / 3 + 1) / 4)
    assert found.strict.value == metrics_for(scored_table(records))["top1"].value == 1 / 4


def test_intervals_resample_the_groups(clustered):
    records = clustered(np.random.default_rng(0), 30, 6, 0.7, 0.5)
    found = accuracy(scored_table(records), seed=0, resamples=1000).strict
    naive = wilson(found.value, found.n)
    assert (found.n, found.groups) == (180, 30)
    assert found.high - found.low > 1.4 * (naive[1] - naive[0])


# Two are for the first response, one is for the second, and one for neither.
CRITERIA = ((0.5, 0.0), (0.7, 0.1), (0.0, 0.1), (0.2, 0.2))


def test_each_pattern_is_counted_over_what_can_show_it(judgment):
    trials = (
        Trial(
            order=(0, 1), outcome=Outcome.ANSWERED, scores=(1.0, 0.0), explanation="[[A]]", contradicted=True
        ),
        Trial(order=(1, 0), outcome=Outcome.UNPARSED),
        Trial(order=(0, 1), outcome=Outcome.TRUNCATED),
    )
    records = [
        judgment("three", "g", outcome=Outcome.UNPARSED, trials=trials, context_check="unanswered"),
        judgment("one", "g", scores=(1.0, 0.0), contradicted=False, context_check="same"),
        judgment("two", scores=(1.0, 0.0), contradicted=False, context_check="changed", criteria=CRITERIA),
        judgment("no text", outcome=Outcome.REFUSED),
        judgment("too long", outcome=Outcome.TOO_LONG),
        judgment("gold unknown", ranks=None, scores=(1.0, 0.0), context_check="changed"),
    ]
    found = failures(JudgmentTable.of(records), **OPTIONS)
    rates = found.to_dict().items()
    assert {name: (metric["value"], metric["n"], metric["groups"]) for name, metric in rates} == {
        "format_missed": (2 / 6, 6, 3),
        "context_ignored": (1 / 3, 3, 3),
        "contradicted": (1 / 3, 3, 2),
        "criteria_against": (1 / 3, 3, 1),
    }
