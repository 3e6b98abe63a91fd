"""The metrics of an evaluation. `METRICS` is the only place that lists them.

`summary.json`, the report, `results.csv`, the setting `evaluation.metric_for_best_model` and the table in
docs/measures.md follow it.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longrm.errors import ConfigError
from longrm.evaluation.table import (
    JudgmentTable,
    Measure,
    RankedSample,
    RatioSample,
    Sample,
    ordered_pairs,
    tie_blocks,
    top1_credit,
)

SHARE = (0.0, 1.0)
"""The span of a metric that is a share."""


@dataclass(frozen=True, slots=True)
class EvaluationMetric:
    """A metric, with everything that summary, report, settings and docs need of it. Higher values are better."""

    name: str  # key in `summary.json`
    title: str  # in tables and on axes
    description: str  # in docs/measures.md
    measure: Measure  # computes its sample from a table
    span: tuple[float, float] = SHARE  # smallest and largest possible value, finite
    needs_scores: bool = False  # whether it uses only comparisons with scores, not those with a ranking
    for_pairs: bool = False  # also report it for pairs; leave it off if it equals another metric there
    in_results: bool = False  # give it a row in `results.csv`, next to those of the paper's tables

    @property
    def is_share(self) -> bool:
        """Whether it is shown in percent."""
        return self.span == SHARE

    def sample(self, table: JudgmentTable) -> Sample:
        """Its sample of a table."""
        return table.sample(self.measure)

    def credits(self, table: JudgmentTable, *, by_chance: bool = False) -> RatioSample:
        """The same for a metric that is a mean of credits; `by_chance`: those of a random order."""
        sample = table.sample(self.measure, by_chance=by_chance)
        assert isinstance(sample, RatioSample), "an AUC is not a mean of credits"
        return sample

    def chance_on(self, table: JudgmentTable) -> float:
        """Its value for a random order, which is that of a tie."""
        return table.sample(self.measure, by_chance=True).value


def pair_accuracy(table: JudgmentTable) -> RatioSample:
    """The gold pairs in the right order, ties counting half, out of all gold pairs."""
    pairs, rows = table.pairs, len(table)
    earned, count = np.bincount(pairs.row, pairs.right, rows), np.bincount(pairs.row, minlength=rows)
    return RatioSample(earned.astype(np.float64), count.astype(np.float64))


def exact_order_credit(values: Sequence[float], ranks: Sequence[int]) -> float:
    """The probability that the judged order, ties broken at random, is a gold order."""
    share, last = 1.0, 0
    for block in tie_blocks(values):
        block_ranks = [ranks[i] for i in block]
        if min(block_ranks) < last:
            return 0.0
        last = max(block_ranks)
        right = math.prod(math.factorial(count) for count in Counter(block_ranks).values())
        share *= right / math.factorial(len(block))
    return share


def position_match_credit(values: Sequence[float], ranks: Sequence[int]) -> float:
    """The share of positions that are held by a response that belongs there."""
    gold, start, matches = sorted(ranks), 0, 0.0
    for block in tie_blocks(values):
        held = Counter(ranks[i] for i in block)
        # Ties are broken at random: every member is at each position of its block with equal probability.
        matches += sum(held[rank] for rank in gold[start : start + len(block)]) / len(block)
        start += len(block)
    return matches / len(ranks)


def kendall_tau_credit(values: Sequence[float], ranks: Sequence[int]) -> float:
    """Tau-b (Kendall 1945) of the judged order and the gold one; 0 where all judged values tie."""
    pairs = ordered_pairs(ranks)
    surplus = sum((values[i] > values[j]) - (values[i] < values[j]) for i, j in pairs)
    tied = sum(math.comb(len(block), 2) for block in tie_blocks(values))
    judged_pairs = math.comb(len(values), 2) - tied
    return surplus / math.sqrt(len(pairs) * judged_pairs) if judged_pairs else 0.0


def auc_margin(table: JudgmentTable) -> RankedSample:
    """The margin of every gold-ordered pair against its negative; rows without scores are left out."""
    used = table.has_scores[table.pairs.row]
    row, margin = table.pairs.row[used], table.pairs.margin[used]
    positive = np.arange(2 * row.size) < row.size
    return RankedSample(
        np.concatenate([margin, -margin]), np.tile(row, 2), positive, len(table), mirrored=True
    )


def auc_pooled(table: JudgmentTable) -> RankedSample:
    """Scores of the responses that gold ranks best against all others; rows without scores are left out."""
    rows = np.flatnonzero(table.has_scores)
    scores, ranks = table.values.take(rows), table.ranks.take(rows)
    best = np.minimum.reduceat(ranks.flat, np.cumsum(ranks.size) - ranks.size) if rows.size else ranks.flat
    return RankedSample(scores.flat, rows[scores.row], ranks.flat == best[ranks.row], len(table))


PAIR_ACCURACY = EvaluationMetric(
    "pair_accuracy",
    "pair accuracy",
    "share of the gold pairs in the right order; a tie counts half",
    pair_accuracy,
    for_pairs=True,
)
TOP1 = EvaluationMetric(
    "top1",
    "top-1",
    "share of comparisons whose best response is judged best",
    lambda table: table.per_comparison(top1_credit),
)
EXACT_ORDER = EvaluationMetric(
    "exact_order",
    "exact order",
    "share of comparisons in which all responses are in the right order (used by the random row of the paper's tables)",
    lambda table: table.per_comparison(exact_order_credit),
)
POSITION_MATCH = EvaluationMetric(
    "position_match",
    "position match",
    "share of positions held by a response that belongs there (LongRM, Eq. 2)",
    lambda table: table.per_comparison(position_match_credit),
)
KENDALL_TAU = EvaluationMetric(
    "kendall_tau",
    "Kendall tau",
    "mean of Kendall's tau-b between the judged order and the gold one",
    lambda table: table.per_comparison(kendall_tau_credit),
    span=(-1.0, 1.0),
)
AUC_MARGIN = EvaluationMetric(
    "auc_margin",
    "AUC of margins",
    "AUC of the margins of gold pairs (positive) against their negatives; n counts pairs",
    auc_margin,
    needs_scores=True,
    for_pairs=True,
)
AUC_POOLED = EvaluationMetric(
    "auc_pooled",
    "AUC, pooled",
    "AUC of the scores of best responses against all others, over all prompts; n counts responses",
    auc_pooled,
    needs_scores=True,
    for_pairs=True,
)

METRICS: dict[str, EvaluationMetric] = {
    metric.name: metric
    for metric in (PAIR_ACCURACY, TOP1, EXACT_ORDER, POSITION_MATCH, KENDALL_TAU, AUC_MARGIN, AUC_POOLED)
}
"""Every metric by name, in the order of tables."""


def metric_of(name: str) -> EvaluationMetric:
    """The metric with this name; `ConfigError` if there is none."""
    return METRICS[known_metric(name)]


def known_metric(name: str) -> str:
    """The name itself; `ConfigError` if no metric has it."""
    if name not in METRICS:
        raise ConfigError(f"unknown metric {name!r}; one of {', '.join(METRICS)}")
    return name


def reported(*, pairs_only: bool) -> tuple[EvaluationMetric, ...]:
    """The metrics to report: all, or for pairs those that do not equal another one."""
    return tuple(metric for metric in METRICS.values() if metric.for_pairs or not pairs_only)
