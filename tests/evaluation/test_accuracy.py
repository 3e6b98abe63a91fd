import numpy as np
import pytest

from longrm.evaluation.accuracy import accuracy, outcome_rates
from longrm.evaluation.intervals import wilson
from longrm.evaluation.metrics import metrics_for
from longrm.types import Outcome

OPTIONS = {"seed": 0, "resamples": 200}


def test_three_readings_of_every_outcome(judgment, scored):
    records = [
        judgment("right", scores=(2.0, 1.0)),
        judgment("tie", scores=(1.0, 1.0)),
        judgment("wrong", scores=(0.0, 1.0)),
        *(judgment(name, outcome=Outcome(name)) for name in ("unparsed", "refused", "truncated", "too_long")),
        judgment("error", outcome=Outcome.ERROR),
        judgment("unknown", ranks=None, scores=(1.0, 0.0)),
    ]
    found = accuracy(*scored(records), **OPTIONS)
    assert {name: (metric["value"], metric["n"]) for name, metric in found.items()} == {
        "strict": (1.5 / 7, 7),
        "chance_credit": ((1.5 + 4 * 0.5) / 7, 7),
        "answered": (1.5 / 3, 3),
    }
    assert found["strict"]["value"] == metrics_for(records)["pair_accuracy"].value
    rates = outcome_rates(records, **OPTIONS)
    assert {name: rate["value"] for name, rate in rates.items()} == {
        "answered": 4 / 9,
        **dict.fromkeys(("unparsed", "refused", "truncated", "too_long", "error"), 1 / 9),
    }
    assert (rates["error"]["low"], rates["error"]["high"]) == pytest.approx(wilson(1 / 9, 9))


def test_chance_is_that_of_each_comparison(judgment, scored):
    records = [
        judgment("pair", outcome=Outcome.UNPARSED),
        judgment("four", ranks=(4, 1, 2, 3), outcome=Outcome.UNPARSED),
        judgment("two best", ranks=(1, 1, 2), outcome=Outcome.UNPARSED),
        judgment("right", ranks=(1, 2, 3), scores=(3.0, 2.0, 1.0)),
    ]
    found = accuracy(*scored(records), **OPTIONS)
    assert found["chance_credit"]["value"] == pytest.approx((1 / 2 + 1 / 4 + 2 / 3 + 1) / 4)
    assert found["strict"]["value"] == metrics_for(records)["top1"].value == 1 / 4


def test_intervals_resample_the_groups(clustered, scored):
    records = clustered(np.random.default_rng(0), 30, 6, 0.7, 0.5)
    found = accuracy(*scored(records), seed=0, resamples=1000)["strict"]
    naive = wilson(found["value"], found["n"])
    assert (found["n"], found["groups"]) == (180, 30)
    assert found["high"] - found["low"] > 1.4 * (naive[1] - naive[0])


def test_of_nothing_all_is_undefined(scored):
    found = accuracy(*scored([]), **OPTIONS)
    assert all(metric["value"] is None for metric in found.values())
