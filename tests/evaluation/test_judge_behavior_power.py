import dataclasses

import numpy as np
import pytest

from longrm.evaluation.estimates import metrics_for, paired_difference
from longrm.evaluation.judge_behavior import against_baselines, comparisons_needed, recommended
from longrm.evaluation.table import scored_table

OPTIONS = {"seed": 0, "resamples": 400}
PAIRED = {"seed": 5, "resamples": 500}


def test_the_formula_by_hand():
    # (1.95996 + 1.64485)^2 = 12.9947; a tenth more is allowed for.
    assert comparisons_needed(0.75) == int(np.ceil(1.1 * 12.9947 * (0.75 * 0.25 + 0.65 * 0.35) / 0.01))
    assert comparisons_needed(0.75, 2.0) == pytest.approx(2 * comparisons_needed(0.75), abs=2)
    assert comparisons_needed(0.25) == comparisons_needed(0.75)
    assert 0 < comparisons_needed(1.0) < comparisons_needed(0.9)


def _right(rng, groups, per_group, rate, dependence):
    spread = (1 - dependence) / dependence
    shares = rng.beta(rate * spread, (1 - rate) * spread, groups) if per_group > 1 else np.full(groups, rate)
    return (rng.random((groups, per_group)) < shares[:, None]).astype(float).ravel()


def test_dependent_comparisons_ask_for_more(clustered, judgment):
    def needed(records):
        return recommended(scored_table(records), **OPTIONS).comparisons

    rng = np.random.default_rng(0)
    independent = clustered(rng, 800, 1, 0.75, 0.3)
    dependent = clustered(rng, 200, 4, 0.75, 0.5)
    assert needed(independent) == pytest.approx(comparisons_needed(0.75), rel=0.1)
    assert needed(dependent) == pytest.approx(comparisons_needed(0.75, 2.5), rel=0.25)
    # All right in ten groups of five: nothing shows how they depend, so that each group counts once.
    alike = [judgment(f"{k}", f"g{k // 5}", scores=(1.0, 0.0)) for k in range(50)]
    assert needed(alike) == comparisons_needed(1.0, 5.0)
    assert recommended(scored_table([]), **OPTIONS) is None


@pytest.fixture
def records(judgment):
    rng = np.random.default_rng(0)

    def scores(accuracy):
        return (1.0, 0.0) if rng.random() < accuracy else (0.0, 1.0)

    return [
        judgment(
            str(k),
            f"g{k // 2}",
            scores=scores(0.8),
            baselines={
                "random": scores(0.5),
                "strong": scores(0.8),
                **({"half": (0.0, 0.0)} if k < 50 else {}),
            },
        )
        for k in range(300)
    ]


def test_it_is_the_paired_difference_of_two_runs(records):
    found = against_baselines(scored_table(records), **PAIRED)
    others = [dataclasses.replace(record, scores=record.baselines["random"]) for record in records]
    assert found["random"].value == metrics_for(scored_table(others), **PAIRED)["pair_accuracy"]
    difference = dataclasses.asdict(paired_difference(records, others, **PAIRED))
    assert dataclasses.asdict(found["random"].difference) == pytest.approx(difference)


def test_only_what_is_clearly_worse_is_beaten(records):
    found = against_baselines(scored_table(records), **PAIRED)
    assert {name: row.beaten for name, row in found.items()} == {
        "half": True,
        "random": True,
        "strong": False,
    }
    assert (found["half"].value.value, found["half"].value.n) == (0.5, 50)
    assert against_baselines(scored_table([]), **OPTIONS) == {}
