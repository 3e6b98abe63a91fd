import dataclasses

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.special import expit
from statsmodels.stats.power import normal_sample_size_one_tail

from longrm.evaluation.context_boundary import (
    BELOW_RANGE,
    BEYOND_RANGE,
    boundary_of,
    crossing,
    logistic_slope,
)
from longrm.evaluation.estimates import RESAMPLES
from longrm.evaluation.table import scored_table
from longrm.reporting.formatting import boundary_text
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome

LENGTHS = [128, 256, 512, 1024, 2048, 4096]


def context_boundary(records, *, threshold=None, seed=0, resamples=RESAMPLES):
    return boundary_of(scored_table(records), threshold=threshold, seed=seed, resamples=resamples)


def test_crossing_by_hand():
    x, n = np.arange(7.0, 12.0), np.full(5, 100.0)
    assert crossing(x, np.array([1.0, 0.9, 0.8, 0.6, 0.5]), n, 0.75) == pytest.approx(9.25)
    # 0.6 and 0.8 break the order and pool to 0.7 for equal n, to 0.75 for n of 1 and 3.
    bumpy = np.array([1.0, 0.9, 0.6, 0.8, 0.5])
    assert crossing(x, bumpy, n, 0.72) == pytest.approx(8 + 0.18 / 0.2)
    assert crossing(x, bumpy, np.array([1.0, 1, 1, 3, 1]), 0.72) == pytest.approx(10 + 0.03 / 0.25)
    assert crossing(x, np.full(5, 0.8), n, 0.75) == BEYOND_RANGE
    assert crossing(x, np.full(5, 0.7), n, 0.75) == BELOW_RANGE
    missed = np.array([1.0, np.nan, 0.5, 0.5, 0.5])
    assert crossing(x, missed, np.array([9.0, 0, 9, 9, 9]), 0.75) == pytest.approx(8.0)


@pytest.mark.parametrize("pairs", [1, 6])
def test_slope_equals_statsmodels(pairs):
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(60), 5)
    x = rng.integers(7, 13, 60).astype(float)[group]
    effect = 2 * rng.normal(size=60)[group]
    trials = rng.integers(1, pairs + 1, 300).astype(float)
    right = rng.binomial(trials.astype(int), expit(8 - 0.8 * x + effect)).astype(float)
    outcomes = np.column_stack([right, trials - right])
    model = sm.GLM(outcomes, sm.add_constant(x), family=sm.families.Binomial())
    clustered = model.fit(cov_type="cluster", cov_kwds={"groups": group})
    slope, error = logistic_slope(x, right, trials, group)
    assert (slope, error) == pytest.approx((clustered.params[1], clustered.bse[1]), rel=1e-6)
    assert error != pytest.approx(model.fit().bse[1], rel=0.1)  # negative control: not clustered


def test_no_finite_slope_is_none():
    x, group, ones = np.repeat([7.0, 8.0], 20), np.arange(40), np.ones(40)
    assert logistic_slope(x, ones, ones, group) is None  # all right
    assert logistic_slope(x, (x < 7.5).astype(float), ones, group) is None  # separated
    assert logistic_slope(np.full(40, 7.0), ones, ones, group) is None  # one length


def test_the_boundary_of_a_simulated_decay_is_found(decaying):
    inside = 0
    for seed in range(40):
        records = decaying(np.random.default_rng(seed), LENGTHS, 724.0, 2.0, 400)
        boundary = context_boundary(records, seed=seed, resamples=300)
        assert (boundary.tau, boundary.chance, boundary.metric) == (0.75, 0.5, "pair_accuracy")
        assert boundary.status == "resolved"
        assert (boundary.at_least, boundary.below) == (512, 1024)
        inside += boundary.estimate.low <= 724 <= boundary.estimate.high
        assert boundary.slope_per_doubling.high < 0
        assert boundary.headline == "boundary"
    assert inside >= 36  # 95% of 40 is 38


@pytest.mark.parametrize(
    ("truth", "steepness", "n", "widest"),
    [
        (2195, 8, 128, 0.6),  # accuracy 1.0 at 1,024 tokens, 0.84 at 2,048 and 0.50 at 4,096
        (2435, 20, 304, 1.0),  # 0.997 at 2,048 tokens and 0.50 at 4,096
        (1724, 20, 304, 1.0),
        (2435, 1.5, 128, 0.9),  # control: a fall over several steps
    ],
)
def test_an_interval_covers_a_fall_within_one_step_of_the_lengths(truth, steepness, n, widest):
    lengths, covered, narrowed, widths = [*LENGTHS[1:], 8192], 0, 0, []
    for seed in range(20):
        share = 0.5 + 0.5 * expit(-steepness * np.log2(np.array(lengths) / truth))
        right = np.random.default_rng(seed).binomial(n, share).tolist()
        boundary = context_boundary(curve(*((one, n) for one in right), lengths=lengths), resamples=200)
        low, high = boundary.estimate.low, boundary.estimate.high
        covered += low <= truth <= high
        widths.append(np.log2(high / low))
        narrowed += bool(boundary.more_lengths)
    assert covered >= 17, "straight lines between the lengths cover 0 with a steepness of 20, and half with 8"
    assert np.median(widths) < widest  # octaves
    assert (narrowed > 15) == (steepness == 20), "lengths in between narrow the interval of a steep fall only"
    if steepness == 20:
        step = (1024, 2048) if truth < 2048 else (2048, 4096)
        assert all(step[0] < length < step[1] for length in boundary.more_lengths)


def test_the_threshold_can_be_set(decaying):
    records = decaying(np.random.default_rng(0), LENGTHS, 700.0, 2.0, 300)
    # 0.5 + 0.5 / (1 + (L / 700)^2) = 0.6 at L = 1400.
    estimate = context_boundary(records, threshold=0.6, resamples=300).estimate
    assert estimate.value == pytest.approx(1400, rel=0.15)
    for threshold in (0.0, 1.0, 75.0):
        with pytest.raises(ValueError, match="accuracy threshold"):
            context_boundary(records, threshold=threshold)


def test_beyond_and_below_the_range(decaying):
    rng = np.random.default_rng(0)
    beyond = context_boundary(decaying(rng, LENGTHS, 1e6, 2.0, 200), resamples=200)
    assert (beyond.status, beyond.at_least, beyond.below) == ("beyond_range", 4096, None)
    assert (beyond.estimate.value, beyond.estimate.value_place) == (None, "beyond_range")
    assert beyond.above_chance_reach.tokens == 4096
    below = context_boundary(decaying(rng, LENGTHS, 10.0, 2.0, 200), resamples=200)
    assert (below.status, below.at_least, below.below) == ("below_range", None, 128)
    assert (below.estimate.value, below.estimate.value_place) == (None, "below_range")
    assert below.above_chance_reach.tokens is None


def test_a_bucket_that_straddles_the_threshold_leaves_the_boundary_unresolved(judgment):
    records = [
        judgment(f"{length}-{k}", scores=(1.0, 0.0) if k < right else (0.0, 1.0), length=length)
        for length, right in ((128, 40), (256, 28), (512, 12))
        for k in range(40)
    ]
    boundary = context_boundary(records, resamples=4000)
    # 28 of 40 is 0.70, below the threshold, but Wilson's upper limit is 0.82.
    assert (boundary.status, boundary.at_least, boundary.below) == ("unresolved", 128, 512)
    # A test of one proportion, 0.70 against 0.75, with 80% power; each comparison is its own group.
    needed = normal_sample_size_one_tail(0.05, 0.8, 0.025, std_null=0.1875**0.5, std_alternative=0.21**0.5)
    assert boundary.pairs_to_resolve == pytest.approx(needed, rel=0.08)
    # Every comparison twice, in one group: as many independent outcomes need twice the comparisons.
    twice = [dataclasses.replace(one, id=f"{one.id}-{copy}") for one in records for copy in range(2)]
    again = context_boundary(twice, resamples=4000)
    assert again.pairs_to_resolve == pytest.approx(2 * needed, rel=0.08)


def test_a_crossing_next_to_a_length_of_one_pair_has_bounds_and_no_value():
    boundary = context_boundary(curve((25, 25), (32, 32), (1, 1), (0, 25)), resamples=300)
    assert (boundary.at_least, boundary.below) == (256, 1024)
    assert ends(boundary) == (None, "undefined", 256.0, "within_range", 1024.0, "within_range")
    assert boundary.pairs_to_resolve is None, "one pair is no guess of the accuracy"
    assert "within [256, 1,024" in boundary_text(boundary)
    # Two of three right at one length: the boundary may be on either side of it.
    anywhere = context_boundary(curve((67, 100)), resamples=300)
    assert (anywhere.estimate.low_place, anywhere.estimate.high_place) == ("below_range", "beyond_range")
    unclear = "context boundary unclear: at 128 tokens, accuracy may be above or below 75%"
    assert boundary_text(anywhere) == unclear
    enough = context_boundary(curve((25, 25), (32, 32), (40, 40), (0, 25)), resamples=300)
    assert 512 < enough.estimate.value < 1024


def test_effective_n_shrinks_with_dependence(clustered):
    rng = np.random.default_rng(0)
    records = clustered(rng, 300, 8, 0.8, 0.3, 256) + clustered(rng, 300, 8, 0.7, 0.001, 512)
    effective = context_boundary(records, resamples=1000).effective_n
    # Design effect 1 + (8 - 1) 0.3 = 3.1.
    assert effective["256"] == pytest.approx(2400 / 3.1, rel=0.25)
    assert effective["512"] > 1800


def test_a_bucket_without_spread_takes_the_pooled_design_effect(judgment, clustered):
    perfect = [judgment(f"p{k}", f"p{k // 8}", scores=(1.0, 0.0), length=128) for k in range(800)]
    alone = context_boundary(perfect, resamples=200)
    assert alone.effective_n == {"128": 100.0}
    assert (alone.status, alone.slope_per_doubling.value) == ("beyond_range", None)
    pooled = context_boundary(
        perfect + clustered(np.random.default_rng(0), 100, 8, 0.6, 0.3, 256), resamples=200
    )
    assert pooled.effective_n["128"] == pytest.approx(pooled.effective_n["256"])


def test_best_of_four_falls_through_its_own_threshold(judgment):
    records = [
        judgment(
            f"{length}-{k}",
            ranks=(1, 2, 3, 4),
            scores=(1.0 if k % 10 < good else -1.0, 0.0, -0.5, -0.6),
            length=length,
        )
        for length, good in ((128, 10), (256, 9), (512, 4), (1024, 2))
        for k in range(200)
    ]
    boundary = context_boundary(records, resamples=200)
    assert (boundary.metric, boundary.chance, boundary.tau) == ("top1", 0.25, 0.625)
    # 0.9 at 256 and 0.4 at 512: 0.625 is 0.55 of the way.
    assert boundary.estimate.value == pytest.approx(256 * 2**0.55)
    assert (boundary.at_least, boundary.below, boundary.status) == (256, 512, "resolved")


@pytest.mark.parametrize("silent", [128, 512, 1024])
def test_a_length_without_any_answer_makes_no_boundary_and_one_with_an_answer_may(judgment, decaying, silent):
    records = decaying(np.random.default_rng(0), LENGTHS, 3000.0, 2.0, 40)
    gone = [dataclasses.replace(r, outcome=Outcome.TOO_LONG) if r.length == silent else r for r in records]
    without = [record for record in records if record.length != silent]
    assert context_boundary(gone, resamples=200) == context_boundary(without, resamples=200)
    one = [*gone, judgment("one", scores=(1.0, 0.0), length=silent)]
    assert context_boundary(one, resamples=200).below == silent, "strictly, all others there are wrong"


def curve(*buckets, per_group=1, lengths=LENGTHS):
    """Pairs with so many right of so many at each length, from 128 tokens up, in groups of that size."""
    return [
        JudgmentRecord(
            id=f"{length}-{k}",
            group=f"{length}-{k // per_group}",
            outcome=Outcome.ANSWERED,
            ranks=(1, 2),
            order=(0, 1),
            scores=(1.0, 0.0) if k < right else (0.0, 1.0),
            length=length,
        )
        for length, (right, n) in zip(lengths, buckets, strict=False)
        for k in range(n)
    ]


UNDEFINED = (None, "undefined") * 3


def ends(boundary):
    estimate = boundary.estimate
    return tuple(
        getattr(estimate, f"{end}{part}") for end in ("value", "low", "high") for part in ("", "_place")
    )


@pytest.mark.parametrize(
    ("shares", "found"),
    [
        ((50, 60, 85, 95), ("rising", None, 128)),
        ((50, 95), ("rising", None, 128)),
        ((50, 75, 75, 95), ("rising", None, 128)),
        ((95, 95, 60, 95), ("not_monotone", 256, 512)),
        ((95, 60, 95, 60), ("not_monotone", 128, 256)),
        ((50, 95, 50), ("not_monotone", None, 128)),
        # Controls: a rise that does not pass the threshold, or that the intervals do not resolve.
        ((85, 95), ("beyond_range", 256, None)),
        ((50, 60), ("below_range", None, 128)),
        ((95, 50, 62), ("resolved", 128, 256)),
        ((95, 95, 72, 95), ("unresolved", 256, None)),
        ((72, 95), ("unresolved", None, None)),
    ],
)
def test_a_curve_that_rises_through_the_threshold_has_no_boundary(shares, found):
    boundary = context_boundary(curve(*((2 * share, 200) for share in shares)), resamples=300)
    assert (boundary.status, boundary.at_least, boundary.below) == found
    if boundary.status in ("rising", "not_monotone"):
        assert ends(boundary) == UNDEFINED
        assert boundary.pairs_to_resolve is None, "no number of pairs makes it fall once"
    else:
        assert boundary.estimate.value_place != "undefined"
