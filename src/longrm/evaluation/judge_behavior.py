"""How a judge behaves beyond its accuracy: outcomes, failures, biases, votes, baselines and calibration."""

import math
from array import array
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Unpack, assert_never

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, ndtri

from longrm.evaluation import summary_schema as schema
from longrm.evaluation.estimates import LEVEL, bootstrap_interval, ratio
from longrm.evaluation.metrics import TOP1
from longrm.evaluation.table import (
    OUTCOMES,
    Bootstrap,
    FloatArray,
    IntArray,
    JudgmentTable,
    Mask,
    Ragged,
    ordered_pairs,
    ratio_replicates,
    recoded,
    top_responses,
)
from longrm.reward_models.baselines import BASELINES
from longrm.reward_models.trials import mean_scores
from longrm.runs.records import UNDEFINED, Estimate
from longrm.types import Outcome, Scale

DIFFERENCE, POWER = 0.1, 0.95
"""The accuracy difference between two judges that `recommended` comparisons detect, and with which power."""

SUBSETS = 32
"""Maximum number of subsets of votes in the mean of a point of the vote curve."""

_WITH_TEXT = (Outcome.ANSWERED, Outcome.UNPARSED, Outcome.TRUNCATED)
# Sizes are raised by this: the accuracy is itself an estimate, and bootstrap intervals are wider than normal theory's.
_ALLOWANCE = 1.1

EDGES = np.linspace(0.5, 1.0, 11).round(2)
"""Bins of confidence; an edge belongs to the bin below it."""

_SIMULATIONS = 400


def accuracy(table: JudgmentTable, **drawn: Unpack[Bootstrap]) -> schema.AccuracyReadings:
    """Accuracy with unanswered comparisons counted as wrong, as chance, or left out; undefined without any answer."""
    if not table.answered.any():
        return schema.AccuracyReadings(strict=UNDEFINED, chance_credit=UNDEFINED, answered=UNDEFINED)
    answered = table.answered.astype(np.float64)
    right, every = TOP1.credits(table).total, np.ones_like(answered)
    lucky = right + (1 - answered) * TOP1.credits(table, by_chance=True).total
    return schema.AccuracyReadings(
        strict=ratio(right, every, table.group, **drawn),
        chance_credit=ratio(lucky, every, table.group, **drawn),
        answered=ratio(right, answered, table.group, **drawn),
    )


def outcome_rates(table: JudgmentTable, **drawn: Unpack[Bootstrap]) -> dict[Outcome, Estimate]:
    """The share of comparisons with each outcome."""
    every = np.ones(len(table))
    return {
        outcome: ratio((table.outcome == code).astype(np.float64), every, table.group, **drawn)
        for code, outcome in enumerate(OUTCOMES)
    }


def failures(table: JudgmentTable, **drawn: Unpack[Bootstrap]) -> schema.FailureRates:
    """Rates of missed formats, ignored contexts and contradicted verdicts (LongRM, section 3)."""

    def rate(occurred: FloatArray, possible: FloatArray) -> Estimate | None:
        estimate = ratio(occurred, possible, table.group, **drawn)
        return estimate if estimate.n else None

    def trial_rate(occurred: Mask, possible: Mask) -> Estimate | None:
        row, n = table.trials.row, len(table)
        above, below = (np.bincount(row, hits, n) for hits in (occurred & possible, possible))
        return rate(above.astype(np.float64), below.astype(np.float64))

    trial = table.trial
    outcome, contradicted = (column[table.trials.flat] for column in (trial.outcome, trial.contradicted))
    with_text = np.isin(outcome, [OUTCOMES.index(one) for one in _WITH_TEXT]) & trial.explained
    return schema.FailureRates(
        format_missed=trial_rate(outcome != OUTCOMES.index(Outcome.ANSWERED), with_text),
        context_ignored=rate(
            (table.context_check == "same").astype(np.float64),
            np.isin(table.context_check, ("same", "changed")).astype(np.float64),
        ),
        contradicted=trial_rate(contradicted == 1, contradicted >= 0),
        padding_gained=rate(
            (table.padding_check == "gained").astype(np.float64),
            np.isin(table.padding_check, ("same", "gained", "lost")).astype(np.float64),
        ),
        criteria_against=rate(*table.criteria.astype(np.float64).T),
    )


def self_preference(
    table: JudgmentTable, names: Sequence[str], **drawn: Unpack[Bootstrap]
) -> schema.SelfPreference | None:
    """How often the judge, and gold, prefer the response of these writers, on pairs in which only one is theirs."""
    rows, won = list[int](), list[tuple[float, float]]()
    for row, (text, ranks, values) in enumerate(zip(table.writers, table.ranks, table.values, strict=True)):
        own = [writer in names for writer in text.split("\n")]
        if len(own) == len(ranks) == len(values) == 2 and sum(own) == 1:
            at = own.index(True)
            leads = values[at] - values[1 - at], ranks[1 - at] - ranks[at]
            rows.append(row)
            won.append((0.5 + 0.5 * np.sign(leads[0]), 0.5 + 0.5 * np.sign(leads[1])))
    if not rows:
        return None
    (judge, gold), group, every = np.array(won).T, table.group[rows], np.ones(len(rows))
    return schema.SelfPreference(
        judge=ratio(judge, every, group, **drawn),
        gold=ratio(gold, every, group, **drawn),
        difference=ratio(judge - gold, every, group, span=(-1.0, 1.0), **drawn),
    )


def trials_by_order(table: JudgmentTable) -> Iterator[dict[int, list[int]]]:
    """For every comparison its trials: their numbers by the number of the presented order, both as in `table.trial`."""
    orders = table.trial.order
    for trials in table.trials:
        votes: dict[int, list[int]] = {}
        for number in trials:
            votes.setdefault(int(orders[number]), []).append(number)
        yield votes


def position_bias(table: JudgmentTable, **drawn: Unpack[Bootstrap]) -> schema.PositionBias | None:
    """Consistency and position bias over the comparisons judged in several orders; None if there are none."""
    rows, consistent, first, alone = (
        list[int](),
        list[tuple[int, int]](),
        list[tuple[int, int]](),
        list[float](),
    )
    # How many answered trials prefer the response shown at a place (ties share), and how many answered trials there
    # are, [rows, places, 2].
    preferred = np.zeros((len(table), table.size.max(initial=0), 2))
    for row, (by_order, ranks) in enumerate(zip(trials_by_order(table), table.ranks, strict=True)):
        if len(by_order) < 2:
            continue
        judged = {
            order: [table.trial.values[number] for number in votes] for order, votes in by_order.items()
        }
        # Votes are averaged before their best response is compared with that of the other orders.
        means = [_mean_of_votes(votes) for votes in judged.values()]
        answered = all(means)
        rows.append(row)
        consistent.append((answered and len(set(map(top_responses, means))) == 1, answered))
        found = [
            (table.trial.orders[order], top_responses(values))
            for order, votes in judged.items()
            for values in votes
            if values
        ]
        decided = [order[0] in top for order, top in found if len(top) == 1 and len(ranks) == 2]
        first.append((sum(decided), len(decided)))
        # The mean top-1 credit of a single trial: the accuracy of a judge that is asked once.
        credit = [sum(ranks[i] == min(ranks) for i in top) / len(top) for _, top in found]
        alone.append(sum(credit) / sum(map(len, judged.values())))
        for place in range(len(ranks)):
            shares = [(order[place] in top) / len(top) for order, top in found]
            preferred[row, place] = sum(shares), len(shares)
    if not rows:
        return None
    group, right = table.group[rows], TOP1.credits(table).total[rows]
    sizes, preferred = table.size[rows], preferred[rows]

    def share(counts: Any) -> Estimate:
        above, below = np.array(counts, np.float64).T
        return ratio(above, below, group, **drawn)

    return schema.PositionBias(
        consistency=share(consistent),
        first_wins=share(first),
        by_place={
            str(size): {
                str(place): share(preferred[:, place] * (sizes == size)[:, None]) for place in range(size)
            }
            for size in np.unique(sizes).tolist()
        },
        single_order=ratio(np.array(alone), np.ones_like(right), group, **drawn),
        order_cancelled=ratio(right, np.ones_like(right), group, **drawn),
    )


def _mean_of_votes(votes: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """The mean of the answered votes of one order, as `aggregate_trials` computes it; () without an answer."""
    answered = [values for values in votes if values]
    return votes[0] if len(votes) == 1 or not answered else mean_scores(answered)


def solve_to_judge(table: JudgmentTable, **drawn: Unpack[Bootstrap]) -> schema.SolveToJudge | None:
    """What a judge that answers first solves, and what it then misjudges; None if no judge answered first.

    Comparisons without a verdict are misjudged; those without a gold answer, with an error or without a gold order are
    left out.
    """
    outcomes = np.bincount(table.committed[table.committed >= 0], minlength=len(OUTCOMES)).tolist()
    if not any(outcomes):
        return None
    table = table.scored
    known, right = (mask.astype(np.float64) for mask in (table.solved >= 0, table.solved == 1))
    missed = right * (1 - TOP1.credits(table).total)

    def shares(rows: Mask) -> dict[str, Estimate]:
        totals = {"solved": right, "gap": missed}
        return {
            name: ratio(total * rows, known * rows, table.group, **drawn) for name, total in totals.items()
        }

    return schema.SolveToJudge(
        **shares(np.ones_like(table.answered)),
        outcomes=dict(zip(OUTCOMES, outcomes, strict=True)),
        by_length={
            str(length): schema.SolvedShares(**shares(table.length == length))
            for length in np.unique(table.length[known > 0]).tolist()
            if length >= 0
        },
    )


def length_bias(table: JudgmentTable, **drawn: Unpack[Bootstrap]) -> schema.LengthBias | None:
    """Accuracy on gold pairs whose better response is longer, on those where it is shorter, and the difference.

    A judge that favors length gains on the first what it loses on the second. Pairs of equal length are left out;
    unanswered ones are wrong. None if the lengths of responses are unknown.
    """
    pairs = table.pairs
    if not np.isfinite(pairs.longer).any():
        return None
    sides = np.stack([pairs.longer > 0, pairs.longer < 0], axis=1).astype(np.float64)
    longer, shorter = (ratio(pairs.right * side, side, pairs.group, **drawn) for side in sides.T)
    if longer.value is None or shorter.value is None:
        return schema.LengthBias(better_longer=longer, better_shorter=shorter, difference=UNDEFINED)
    # Both sides are resampled together, because a group can have pairs on both; resamples without one are left out.
    kept = sides.any(axis=1)
    group = recoded(pairs.group[kept])
    both = ratio_replicates(pairs.right[kept, None] * sides[kept], sides[kept], group, **drawn)
    value, replicates = longer.value - shorter.value, both[:, 0] - both[:, 1]
    limits = bootstrap_interval(value, replicates[np.isfinite(replicates)], group, (-1.0, 1.0))
    difference = Estimate(value, *limits, longer.n + shorter.n, int(group.max()) + 1)
    return schema.LengthBias(better_longer=longer, better_shorter=shorter, difference=difference)


def vote_curve(table: JudgmentTable, **drawn: Unpack[Bootstrap]) -> schema.VoteCurve | None:
    """The accuracy that k of the K votes would have had, for every k.

    The same k votes of every order are averaged as all votes are. The value is the mean over all subsets of k votes, or
    over `SUBSETS` random ones if there are more; it is exact for k = 1 and k = K. Comparisons with fewer than K votes
    in some order are left out. None if no order was judged twice.
    """
    # Comparisons with equally many orders and responses are counted together.
    most = max((len(votes) for by_order in trials_by_order(table) for votes in by_order.values()), default=0)
    if most < 2:
        return None
    alike: dict[tuple[int, int], list[tuple[int, list[list[int]]]]] = {}
    for row, by_order in enumerate(trials_by_order(table)):
        if all(len(votes) == most for votes in by_order.values()):
            key = len(by_order), int(table.size[row])
            alike.setdefault(key, []).append((row, list(by_order.values())))
    curve, used = np.zeros((len(table), most)), np.zeros(len(table))
    for (_, n), found in alike.items():
        rows = [row for row, _ in found]
        used[rows] = 1
        votes_of = _padded(table.trial.values, np.array([numbers for _, numbers in found]), n)
        ranks = np.array([table.ranks[row] for row in rows])
        best = ranks == ranks.min(axis=1, keepdims=True)
        for k in range(1, most + 1):
            subsets = _subsets(most, k, drawn["seed"])
            curve[rows, k - 1] = np.mean([_top1(votes_of[:, :, votes], best) for votes in subsets], axis=0)
    return schema.VoteCurve(
        at={str(k + 1): ratio(curve[:, k], used, table.group, **drawn) for k in range(most)}
    )


def _padded(values: Ragged, rows: IntArray, size: int) -> FloatArray:
    """Some rows of this size, [*rows, size]; NaN for empty ones."""
    flat = [values[row] or (np.nan,) * size for row in rows.ravel().tolist()]
    return np.array(flat).reshape(*rows.shape, size)


def _subsets(votes: int, k: int, seed: int) -> list[list[int]]:
    if math.comb(votes, k) <= SUBSETS:
        return list(map(list, combinations(range(votes), k)))
    rng = np.random.default_rng((seed, k))
    return [rng.permutation(votes)[:k].tolist() for _ in range(SUBSETS)]


def _top1(votes_of: FloatArray, best: Mask) -> FloatArray:
    """Top-1 credit of the mean over orders of the mean over answered votes, [rows]; 0 if an order has no answer.

    Args:
        votes_of: Points of each response, NaN if unanswered, [rows, orders, votes, responses].
        best: Which responses are best by gold, [rows, responses].
    """
    answered = np.isfinite(votes_of[..., 0]).sum(axis=2, keepdims=True)
    means = np.nan_to_num(votes_of).sum(axis=2) / np.maximum(answered, 1)
    # Rounded, so that equal shares tie whatever the order of their sums.
    values = means.mean(axis=1).round(12)
    top = values == values.max(axis=1, keepdims=True)
    complete = (answered > 0).all(axis=(1, 2))
    credit: FloatArray = complete * (top & best).sum(axis=1) / top.sum(axis=1)
    return credit


def against_baselines(
    table: JudgmentTable, **drawn: Unpack[Bootstrap]
) -> dict[str, schema.BaselineComparison]:
    """Each baseline's accuracy, and the model's minus it on the same comparisons, with a paired interval."""
    earned = TOP1.credits(table).total
    compared = {}
    for name, credit in sorted(table.baselines.items()):
        run = np.isfinite(credit).astype(np.float64)
        right = np.nan_to_num(credit)
        if not run.any():
            continue
        difference = ratio(earned - right, run, table.group, span=(-1.0, 1.0), **drawn)
        compared[name] = schema.BaselineComparison(
            value=ratio(right, run, table.group, **drawn),
            difference=difference,
            beaten=difference.low is not None and difference.low > 0,
            reads_context=name in BASELINES and BASELINES[name].reads_context,
        )
    return compared


def recommended(table: JudgmentTable, **drawn: Unpack[Bootstrap]) -> schema.RecommendedSize | None:
    """How many comparisons, clustered like these, a paired comparison with another judge needs."""
    if not table.size.size:
        return None
    right, n = TOP1.credits(table).total, table.size.size
    accuracy = float(right.mean())
    independent = accuracy * (1 - accuracy) / n
    if table.groups == n:
        design = 1.0
    elif independent > 1e-12 and table.groups > 1:
        replicates = ratio_replicates(right, np.ones_like(right), table.group, **drawn)
        design = float(replicates.var()) * table.groups / (table.groups - 1) / independent
    else:  # without any variance, or in one group, each group counts once
        design = n / table.groups
    return schema.RecommendedSize(
        difference=DIFFERENCE, power=POWER, comparisons=comparisons_needed(accuracy, max(1.0, design))
    )


def comparisons_needed(accuracy: float, design: float = 1.0) -> int:
    """Number of comparisons at which the paired interval excludes 0 with probability `POWER`.

    n = design (z_level + z_power)^2 [p (1 - p) + q (1 - q)] / (p - q)^2, with p the accuracy of this judge and q the
    worse of p - 0.1 and p + 0.1. The judges are assumed to be independent: if they err on the same comparisons, as most
    do, fewer are enough. `design` is the design effect, the variance relative to that of independent comparisons.
    """
    rivals = [q for q in (accuracy - DIFFERENCE, accuracy + DIFFERENCE) if 0 <= q <= 1]
    spread = accuracy * (1 - accuracy) + max(q * (1 - q) for q in rivals)
    reach = float(ndtri(0.5 + LEVEL / 2) + ndtri(POWER))
    return math.ceil(_ALLOWANCE * design * reach**2 * spread / DIFFERENCE**2)


def calibration(table: JudgmentTable, scale: Scale, *, seed: int) -> schema.Calibration | None:
    """The calibration of the verdicts on gold pairs; None if margins have no meaning, or no pair was judged.

    The confidence in a verdict is the probability, 0.5 to 1, that its margin expresses. For logits that is
    sigmoid(|margin|), reported also with a fitted temperature; for points of a rubric it is the same with the
    maximum-likelihood temperature on these pairs; for verdicts it is the share of votes (means over orders of means
    over votes) for the winning side. A tie has confidence 0.5 and is half right.

    The expected calibration error is the mean of |accuracy - confidence| over bins of equal width, weighted by their
    pairs. It is biased upwards for few pairs, so that a bootstrap around it misses the truth. Instead the summary
    reports the error that a perfectly calibrated judge has by chance, simulated with the same confidences: an error
    above its `high` is more than chance. Simulated pairs are independent; those of one group are not, which can raise
    the error further.
    """
    margin = _vote_shares(table) if scale == "verdict" else table.pairs.margin
    judged = np.isfinite(margin)
    if scale == "none" or scale == "label" or not judged.any():
        return None
    margin = margin[judged]
    link: schema.Link
    right = (margin > 0) + 0.5 * (margin == 0)
    match scale:
        case "verdict":
            link, temperature, confidence = "vote share", 1.0, 0.5 + np.abs(margin) / 2
        case "logit":
            link, temperature, confidence = "logistic", 1.0, expit(np.abs(margin))
        case "points":
            link, temperature = "logistic, temperature fitted", fitted_temperature(margin)
            confidence = expit(np.abs(margin) / temperature)
        case unknown:
            assert_never(unknown)
    fitted, place = fitted_temperature(margin) if scale == "logit" else None, _bins(confidence)
    return schema.Calibration(
        link=link,
        temperature=temperature,
        ece=_error(confidence, right, seed),
        temperature_fitted=fitted,
        ece_fitted=None if fitted is None else _error(expit(np.abs(margin) / fitted), right, seed),
        bins=tuple(
            schema.ConfidenceBin(
                low=float(EDGES[index]),
                high=float(EDGES[index + 1]),
                n=int((place == index).sum()),
                confidence=float(confidence[place == index].mean()),
                accuracy=float(right[place == index].mean()),
            )
            for index in np.unique(place).tolist()
        ),
    )


def fitted_temperature(margin: FloatArray) -> float:
    """The maximum-likelihood temperature: logistic regression of the gold order on the margins, without intercept.

    It is searched between 1/100 and 100 times the mean margin, where confidence is almost 1 or almost 1/2.
    """
    size = float(np.abs(margin).mean()) or 1.0

    def loss(log_temperature: float) -> float:
        return float(np.logaddexp(0.0, -margin / (size * np.exp(log_temperature))).sum())

    reach = np.log(100.0)
    return size * float(np.exp(minimize_scalar(loss, bounds=(-reach, reach), method="bounded").x))


def _vote_shares(table: JudgmentTable) -> FloatArray:
    """For each gold pair, the share of votes for the better response less that for the worse."""
    shares = array("d")
    for by_order, ranks in zip(trials_by_order(table), table.ranks, strict=True):
        orders = [
            [values for number in votes if (values := table.trial.values[number])]
            for votes in by_order.values()
        ]
        for better, worse in ordered_pairs(ranks):
            signs = [[(p[better] > p[worse]) - (p[better] < p[worse]) for p in v] for v in orders]
            shares.append(sum(sum(s) / len(s) for s in signs) / len(signs) if all(signs) else np.nan)
    return np.array(shares)


def _bins(confidence: FloatArray) -> IntArray:
    # Rounded, so that a share of votes on an edge of a bin stays there.
    return np.searchsorted(EDGES[1:-1], confidence.round(12), "left")


def _error(confidence: FloatArray, right: FloatArray, seed: int) -> schema.CalibrationError:
    """The error, and what it would be if the confidences were right: its mean and its 95th percentile."""
    place = _bins(confidence)

    def of(outcome: FloatArray) -> float:
        return float(np.abs(np.bincount(place, outcome - confidence)).sum() / outcome.size)

    rng, tied = np.random.default_rng(seed), right == 0.5
    fair = [of(np.where(tied, 0.5, rng.random(right.size) < confidence)) for _ in range(_SIMULATIONS)]
    calibrated = schema.CalibratedError(mean=float(np.mean(fair)), high=float(np.quantile(fair, 0.95)))
    return schema.CalibrationError(value=of(right), n=right.size, if_calibrated=calibrated)
