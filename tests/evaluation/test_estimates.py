import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score
from statsmodels.stats.proportion import proportion_confint

from longrm.evaluation.estimates import (
    assumed_design,
    bootstrap_interval,
    expanded_reach,
    metrics_for,
    paired_difference,
    ratio,
    unanimity_bounds,
    wilson,
)
from longrm.evaluation.metrics import METRICS
from longrm.evaluation.table import BINS, RankedSample, recoded, resample_counts, resampled_sums, scored_table
from longrm.types import Outcome


def value(records, name, **options):
    return metrics_for(scored_table(records), resamples=100, **options)[name].value


def test_pairs_by_hand(judgment):
    records = [
        judgment("right", scores=(2.0, 1.0)),
        judgment("tie", scores=(1.0, 1.0)),
        judgment("wrong", scores=(0.0, 3.0)),
        judgment("refused", outcome=Outcome.REFUSED),
        judgment("error", outcome=Outcome.ERROR),
        judgment("unknown", ranks=None, scores=(1.0, 0.0)),
        judgment("gold tie", ranks=(1, 1), scores=(1.0, 0.0)),
    ]
    metrics = metrics_for(scored_table(records))
    assert list(metrics) == ["pair_accuracy", "auc_margin", "auc_pooled"]
    accuracy = metrics["pair_accuracy"]
    assert (accuracy.value, accuracy.n, accuracy.groups) == (1.5 / 4, 4, 4)
    # Chosen 2, 1, 0 against rejected 1, 1, 3: of nine, 2 > 1 twice and 1 = 1 twice.
    assert metrics["auc_pooled"].value == pytest.approx((2 + 2 / 2) / 9)
    # Margins 1, 0, -3 against -1, 0, 3: 1>-1, 1>0, 0>-1 win and 0=0 ties.
    assert metrics["auc_margin"].value == pytest.approx(3.5 / 9)
    assert (metrics["auc_margin"].n, metrics["auc_pooled"].n) == (3, 6)


@pytest.mark.parametrize(
    ("n", "position", "exact"), [(2, 1 / 2, 1 / 2), (3, 1 / 3, 1 / 6), (4, 1 / 4, 1 / 24)]
)
def test_random_orders_earn_the_chance_levels(judgment, n, position, exact):
    rng = np.random.default_rng(n)
    ranks = tuple(range(1, n + 1))
    records = [judgment(str(k), ranks=ranks, ranking=rng.permutation(n).tolist()) for k in range(6000)]
    # A lone N = 3 comparison makes the metrics of orders appear for pairs too.
    records.append(judgment("extra", ranks=(1, 2, 3), ranking=(0, 1, 2)))
    metrics, table = metrics_for(scored_table(records), resamples=200), scored_table(records)
    levels = {name: metric.chance_on(table) for name, metric in METRICS.items()}
    for name, level in {
        "pair_accuracy": 0.5,
        "top1": 1 / n,
        "position_match": position,
        "exact_order": exact,
    }.items():
        assert levels[name] == pytest.approx(level, abs=1e-3)
        assert metrics[name].value == pytest.approx(level, abs=0.02)
    assert levels["kendall_tau"] == 0
    assert metrics["kendall_tau"].value == pytest.approx(0, abs=0.03)
    assert metrics["auc_margin"].value is None  # orders have no scores to rank


def test_areas_and_tau_equal_the_field(judgment):
    rng = np.random.default_rng(3)
    records, chosen, rejected, margins, taus = [], [], [], [], []
    for k in range(300):
        ranks = rng.permutation([1, 2, 2, 3])
        scores = np.round(rng.normal(size=4) - 0.4 * ranks, 1)  # rounded: with ties
        records.append(judgment(str(k), str(k // 3), ranks=ranks.tolist(), scores=scores.tolist()))
        chosen += scores[ranks == 1].tolist()
        rejected += scores[ranks > 1].tolist()
        margins += [scores[i] - scores[j] for i in range(4) for j in range(4) if ranks[i] < ranks[j]]
        taus.append(stats.kendalltau(scores, -ranks).statistic)
    metrics = metrics_for(scored_table(records))
    pooled = roc_auc_score([1] * len(chosen) + [0] * len(rejected), chosen + rejected)
    margin = roc_auc_score([1] * len(margins) + [0] * len(margins), margins + [-m for m in margins])
    assert metrics["auc_pooled"].value == pytest.approx(pooled)
    assert metrics["auc_margin"].value == pytest.approx(margin)
    assert metrics["kendall_tau"].value == pytest.approx(np.mean(taus))


@pytest.mark.parametrize("decimals", [0, 1, 6])
def test_resampled_areas_are_those_of_the_repeated_rows(decimals):
    rng = np.random.default_rng(decimals)
    group = recoded(np.sort(rng.integers(0, 40, 400)))
    scores = np.concatenate([rng.normal(0.7, 1, 400), rng.normal(0, 1, 400)]).round(decimals)
    row, positive = np.tile(np.arange(400), 2), np.arange(800) < 400
    sample = RankedSample(scores, row, positive, rows=400)
    drawn = sample.replicates(group, seed=0, resamples=20)
    for replicate, weight in zip(
        drawn, np.concatenate([*resample_counts(int(group.max()) + 1, 0, 20)]), strict=True
    ):
        times = weight[group[row]].astype(int)
        repeated = [np.repeat(column, times) for column in (scores, row, positive)]
        expected = RankedSample(*repeated, rows=400).value
        assert replicate == pytest.approx(expected, abs=1e-3 if np.unique(scores).size > BINS else 1e-6)
    assert np.std(drawn) > 0.01  # far above that tolerance


def test_wilson_is_the_fields_and_used_for_single_outcomes_only(judgment):
    records = [judgment(str(k), scores=(1.0, 0.0) if k < 37 else (0.0, 1.0)) for k in range(40)]
    expected = proportion_confint(37, 40, method="wilson")
    assert wilson(37 / 40, 40) == pytest.approx(expected)
    for right in (0, 40):  # where the limit is the value itself
        assert wilson(right / 40, 40) == pytest.approx(proportion_confint(right, 40, method="wilson"))
    metric = metrics_for(scored_table(records))["pair_accuracy"]
    assert (metric.low, metric.high) == pytest.approx(expected)
    tied = [*records, judgment("tie", scores=(0.0, 0.0))]
    assert metrics_for(scored_table(tied))["pair_accuracy"].low != pytest.approx(
        wilson(37.5 / 41, 41)[0], abs=1e-6
    )


def test_unanimous_groups_do_not_collapse_the_interval(judgment):
    records = [judgment(f"{g}-{k}", f"g{g}", scores=(1.0, 0.0)) for g in range(64) for k in range(8)]
    for metric in metrics_for(scored_table(records)).values():
        assert (metric.value, metric.high) == (1.0, 1.0)
        # More independent outcomes than groups, and fewer than pairs.
        assert wilson(1.0, 64)[0] < metric.low < wilson(1.0, 512)[0]
    lone, single = np.zeros(64, np.int64), np.arange(64)
    assert unanimity_bounds(1.0, lone, (0.0, 1.0))[0] == pytest.approx(wilson(1.0, 1)[0])
    assert unanimity_bounds(0.0, single, (-1.0, 1.0)) == pytest.approx((-0.0566, 0.0566), abs=1e-4)
    halves = [judgment(f"{g}", f"g{g // 2}", scores=(0.0, float(g % 2))) for g in range(40)]
    one_of_two = metrics_for(scored_table(r for r in halves if r.scores))["pair_accuracy"]
    assert one_of_two.low < one_of_two.value < one_of_two.high


@pytest.mark.parametrize("places", ["apart", "together"])
@pytest.mark.parametrize(("groups", "size"), [(16, 16), (32, 4), (64, 8)])
def test_a_better_model_never_has_a_lower_limit(groups, size, places):
    group = np.repeat(np.arange(groups), size)
    # Wrong comparisons each in another group, or all in the same one.
    order = (
        np.argsort(np.tile(np.arange(size), groups), kind="stable")
        if places == "apart"
        else np.arange(group.size)
    )
    found = []
    for wrong in range(groups // 2 if places == "apart" else size):
        right = np.ones(group.size)
        right[order[:wrong]] = 0
        found.append(ratio(right, np.ones(group.size), group, seed=0, resamples=10))
        mirrored = ratio(1 - right, np.ones(group.size), group, seed=0, resamples=10)
        assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((found[-1].low, found[-1].high))
        assert found[-1].low <= found[-1].value <= found[-1].high
    low = np.array([one.low for one in found])
    assert (np.diff(low) <= 1e-12).all()
    assert low[0] - low[1] < 10 / group.size, "no jump at 100%"


@pytest.mark.parametrize(("groups", "accuracy"), [(16, 0.97), (32, 0.97), (32, 0.99), (64, 0.99)])
def test_intervals_near_one_cover_where_groups_agree(groups, accuracy):
    rng = np.random.default_rng(0)
    size, correlation, runs = 16, 0.3, 1500
    spread = (1 - correlation) / correlation
    rates = rng.beta(accuracy * spread, (1 - accuracy) * spread, (runs, groups))
    right = rng.random((runs, groups, size)) < rates[..., None]
    group, ones = np.repeat(np.arange(groups), size), np.ones(groups * size)
    found = [ratio(one.ravel() * 1.0, ones, group, seed=0, resamples=100) for one in right]
    # A bootstrap over groups covers 0.87 to 0.91: often a few groups have a single error each, and no other shows how
    # much they may depend.
    assert (
        np.mean([one.low <= accuracy <= one.high for one in found]) > 0.93 - 2 * (0.93 * 0.07 / runs) ** 0.5
    )


def test_the_bootstrap_interval_of_skewed_groups_is_scipys():
    groups = 400
    sample = np.random.default_rng(0).exponential(size=groups) ** 2
    drawn = resampled_sums(np.arange(groups), sample[:, None], seed=0, resamples=20_000)[:, 0] / groups
    low, high = bootstrap_interval(sample.mean(), drawn, np.arange(groups), (0.0, np.inf))
    peer = stats.bootstrap((sample,), np.mean, n_resamples=20_000, method="BCa", rng=1).confidence_interval
    assert (low, high) == pytest.approx(tuple(peer), rel=0.01)
    plain = np.quantile(drawn, [0.025, 0.975])
    assert plain[1] < 0.98 * high  # negative control: percentiles alone are cut short on the long side


@pytest.mark.parametrize("groups", [2, 3, 16])
def test_limits_of_few_groups_are_wider_by_closed_form(groups):
    t = stats.t.ppf(0.975, df=groups - 1)
    assert expanded_reach(groups) == pytest.approx(
        [-t * (groups / (groups - 1)) ** 0.5, t * (groups / (groups - 1)) ** 0.5]
    )


@pytest.mark.parametrize(
    ("size", "design"), [(1, 1.0), (2, 1.62), (4, 1 + 0.62 * 3**0.5), (16, 1 + 0.62 * 15**0.5)]
)
def test_the_assumed_design_effect_grows_with_the_size_of_groups(size, design):
    assert assumed_design(np.repeat(np.arange(20), size)) == pytest.approx(design)
    assert assumed_design(np.zeros(size, np.int64)) == size, "a lone group is one outcome"


def test_replicates_that_equal_the_value_are_half_below_it():
    """A symmetric distribution has no bias to correct, however much of it is at the value."""
    side = np.linspace(0.01, 1, 300)
    drawn = np.concatenate([-side, np.zeros(400), side])
    many = np.arange(10_000)  # groups, so that the limits are those of the normal distribution
    expected = np.quantile(drawn, [0.025, 0.975])
    assert bootstrap_interval(0.0, drawn, many, (-2.0, 2.0)) == pytest.approx(tuple(expected), abs=1e-3)


def test_intervals_cover_where_independence_would_not(clustered):
    truth, runs = 0.75, 300
    covered = naive = 0
    for seed in range(runs):
        records = clustered(np.random.default_rng(seed), 40, 8, truth, 0.3)
        metric = metrics_for(scored_table(records), seed=seed, resamples=400)["pair_accuracy"]
        covered += metric.low <= truth <= metric.high
        low, high = wilson(metric.value, metric.n)
        naive += low <= truth <= high
    assert 0.925 <= covered / runs <= 0.985
    assert naive / runs < 0.85  # negative control: pairs of one group taken as independent


def test_paired_difference_by_hand_and_against_the_unpaired(judgment):
    rng = np.random.default_rng(1)
    hard = rng.random(300) < 0.3
    a, b = [], []
    for k in range(300):
        right_a = not hard[k]
        right_b = right_a and rng.random() < 0.9
        for side, right in ((a, right_a), (b, right_b)):
            side.append(judgment(str(k), f"g{k // 2}", scores=(1.0, 0.0) if right else (0.0, 1.0)))
    difference = paired_difference(a, b)
    metric_a, metric_b = (metrics_for(scored_table(side))["pair_accuracy"] for side in (a, b))
    assert difference.value == pytest.approx(metric_a.value - metric_b.value)
    assert (difference.n, difference.groups) == (300, 150)
    reverse = paired_difference(b, a)
    assert reverse.value == pytest.approx(-difference.value)
    # What both get wrong cancels: narrower than the two intervals put together.
    assert (
        difference.high - difference.low
        < 0.6 * ((metric_a.high - metric_a.low) ** 2 + (metric_b.high - metric_b.low) ** 2) ** 0.5
    )
    same = paired_difference(a, a)
    assert same.value == 0
    assert same.low < 0 < same.high
    assert paired_difference(a, list(reversed(b))).value == difference.value
