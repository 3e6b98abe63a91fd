import json
from dataclasses import replace

import numpy as np
import pytest

from longrm.evaluation.summarize import summarize
from longrm.types import Outcome


def summary_of(records):
    return summarize(records, model="m", bench="b", resamples=100).to_dict()


@pytest.fixture
def records(judgment):
    rng = np.random.default_rng(0)
    return [
        judgment(
            f"{length}-{k}",
            f"{length}-{k // 2}",
            scores=rng.normal((shift, 0.0), 1.0).tolist(),
            length=length,
            depth=float(rng.random()),
        )
        for length, shift in ((1024, 0.2), (128, 3.0), (64, 3.0), (512, 1.0))
        for k in range(60)
    ]


def test_parts_are_in_order_and_the_summary_is_plain_json(records):
    summary = summary_of(records)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert list(summary["metrics"]["by_length"]) == ["64", "128", "512", "1024"]
    assert list(summary["metrics"]["by_depth"]) == ["0.0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1.0"]
    assert summary["chance"] == {"pair_accuracy": 0.5, "auc_margin": 0.5, "auc_pooled": 0.5}
    assert summary["complete"] is True
    assert summary["boundary"]["metric"] == "pair_accuracy"


def test_nothing_is_lost_from_the_counts(judgment, records):
    odd = [
        judgment("error", outcome=Outcome.ERROR, length=2048, depth=1.0),
        judgment("refused", outcome=Outcome.REFUSED, length=64, depth=0.0),
        judgment("no gold", ranks=None, scores=(1.0, 0.0), length=64),
    ]
    summary = summary_of(records + odd)
    assert summary["complete"] is False
    outcomes = {"answered": 241, "unparsed": 0, "refused": 1, "truncated": 0, "too_long": 0, "error": 1}
    assert summary["counts"] == {
        "comparisons": 243,
        "groups": 123,
        "outcomes": outcomes,
        "without_gold": 1,
        "trials": {"total": 243, "outcomes": outcomes},
        "cut": {"comparisons": 0, "tokens": 0},
        "retried": 0,
        "context_check": None,
    }
    assert summary["metrics"]["overall"]["pair_accuracy"]["n"] == 241
    lost = summary["metrics"]["by_length"]["2048"]["pair_accuracy"]
    assert lost == {"value": None, "low": None, "high": None, "n": 0, "groups": 0}
    assert summary["metrics"]["by_length_and_depth"]["2048"]["0.8-1.0"]["pair_accuracy"] == lost
    assert "2048" not in summary["boundary"]["effective_n"]


def test_every_result_of_the_context_check_is_counted(judgment):
    states = ["same", "same", "changed", "unanswered", "impossible", ""]
    found = [
        replace(judgment(str(place), scores=(1.0, 0.0)), context_check=state)
        for place, state in enumerate(states)
    ]
    summary = summary_of(found)
    counted = {"same": 2, "changed": 1, "unanswered": 1, "impossible": 1}
    assert summary["counts"]["context_check"] == counted
    assert summary["failures"]["context_ignored"]["n"] == 3


def test_without_answers_there_is_no_boundary(judgment):
    silent = [judgment(str(k), outcome=Outcome.TOO_LONG, length=64 << k % 3) for k in range(30)]
    summary = summary_of(silent)
    assert summary["boundary"] is None
    one = [*silent, judgment("answered", scores=(1.0, 0.0), length=64)]
    assert summary_of(one)["boundary"]["status"] == "below_range"


def test_every_baseline_must_be_beaten(judgment):
    rng = np.random.default_rng(0)
    records = [
        judgment(
            str(k),
            scores=(1.0, 0.0) if k % 5 else (0.0, 1.0),
            baselines={"even": tuple(rng.random(2).tolist()), "same": (1.0, 0.0) if k % 5 else (0.0, 1.0)},
            attempts=1 + k % 2,
        )
        for k in range(100)
    ]
    summary = summary_of(records)
    assert {name: found["beaten"] for name, found in summary["baselines"].items()} == {
        "even": True,
        "same": False,
    }
    assert summary["beats_baselines"] is False
    assert summary["counts"]["retried"] == 50
