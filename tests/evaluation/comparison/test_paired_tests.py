"""The tests of paired judges, against every sign, statsmodels and scipy."""

from itertools import product

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from longrm.evaluation.compare import holm, mcnemar_p, sign_flip_p


def by_every_sign(gains):
    sums = np.array([np.dot(signs, gains) for signs in product((-1, 1), repeat=len(gains))])
    return np.mean(np.abs(sums) >= abs(gains.sum()) - 1e-9)


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5])
def test_sign_flips_are_all_signs_counted(parts):
    rng = np.random.default_rng(parts)
    found = []
    for _ in range(20):
        gains = np.round(rng.normal(0.8, 1.5, rng.integers(1, 13)) * parts) / parts
        found.append(sign_flip_p(gains))
        assert found[-1] == pytest.approx(by_every_sign(gains), abs=1e-12)
    assert min(found) < 0.1 < max(found)


def test_of_single_comparisons_the_sign_flips_are_mcnemars_exact_test():
    rng = np.random.default_rng(1)
    for _ in range(50):
        one, other = rng.integers(0, 40, 2)
        expected = mcnemar([[50, one], [other, 20]], exact=True).pvalue
        assert mcnemar_p(int(one), int(other)) == pytest.approx(expected)
        gains = np.repeat([1.0, -1.0, 0.0], [one, other, 70])
        assert sign_flip_p(gains) == pytest.approx(expected, abs=1e-12)
        # Negative control: four comparisons of each group that go together are no four observations.
        if abs(one - other) > 4:
            assert mcnemar_p(4 * int(one), 4 * int(other)) < 0.8 * sign_flip_p(4 * gains)


def test_small_p_values_are_told_and_the_smallest_are_bounded():
    gains = np.repeat([1.0, -1.0], [70, 15])
    expected = stats.binomtest(15, 85).pvalue
    assert 1e-10 < expected < 1e-8
    assert sign_flip_p(gains) == pytest.approx(expected, rel=1e-3)
    assert sign_flip_p(np.ones(2000)) == 1e-13
    assert sign_flip_p(np.ones(10)) == pytest.approx(2 / 2**10)


def test_holm_is_statsmodels():
    rng = np.random.default_rng(2)
    for n in (1, 2, 5, 12):
        p_values = (rng.random(n) ** 3).tolist()
        assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1])
    assert holm([]) == []
    assert holm([0.01, 0.04]) != pytest.approx(multipletests([0.01, 0.04], method="bonferroni")[1])
