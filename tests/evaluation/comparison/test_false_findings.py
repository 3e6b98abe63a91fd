"""False findings between two judges of the same distribution, with dependent comparisons within groups."""

import numpy as np
import pytest
from scipy import stats

from longrm.evaluation.compare import compared_parts, holm
from longrm.evaluation.metrics import PAIR_ACCURACY
from longrm.evaluation.table import scored_table

LENGTHS = (1024, 4096, 16384, 65536)


def outcomes(rng, groups, per_group, accuracy):
    """Whether a judge is right; each group has a chance of its own, drawn anew by each judge."""
    chance = rng.beta(2 * accuracy, 2 * (1 - accuracy), groups)
    return (rng.random((groups, per_group)) < chance[:, None]).astype(float).ravel()


def findings(pairs, seed, groups, second=0.75):
    """Whether some length is found to differ: by what counts, and by McNemar's test as if all were independent."""
    rng = np.random.default_rng(seed)
    judges = (
        scored_table(pairs(outcomes(rng, groups, 8, level), lengths=LENGTHS, per_group=8))
        for level in (0.75, second)
    )
    parts = compared_parts(*judges, PAIR_ACCURACY, "by_length", seed=0, resamples=100).values()
    return min(part.p_holm for part in parts) < 0.05, min(holm([part.mcnemar.p for part in parts])) < 0.05


def rates(pairs, runs, groups, **options):
    return np.sum([findings(pairs, seed, groups, **options) for seed in range(runs)], axis=0).tolist()


def more_than_stated(found, runs):
    """The p value of so many false findings at a rate of 5%."""
    return stats.binomtest(found, runs, 0.05, alternative="greater").pvalue


@pytest.mark.parametrize("groups", [32, 64])
def test_judges_that_are_the_same_in_law_seldom_differ(pairs, groups):
    found, naive = rates(pairs, 100, groups)
    assert more_than_stated(found, 100) > 0.001
    assert more_than_stated(naive, 100) < 1e-6  # negative control


def test_a_judge_that_is_better_is_found(pairs):
    found, _ = rates(pairs, 20, 160, second=0.95)
    assert found == 20


@pytest.mark.full
@pytest.mark.parametrize("groups", [24, 96])
def test_judges_that_are_the_same_in_law_differ_at_the_stated_rate(pairs, groups):
    found, naive = rates(pairs, 1000, groups)
    assert more_than_stated(found, 1000) > 0.001
    assert more_than_stated(naive, 1000) < 1e-12  # negative control
    if groups == 96:
        assert found > 10  # nor is the test one that never finds anything
