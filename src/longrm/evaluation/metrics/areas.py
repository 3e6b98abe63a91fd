"""Areas under the ROC curve (AUC) of the scores."""

from longrm.evaluation.metrics.metric import EvaluationMetric
from longrm.evaluation.samples import RankedSample
from longrm.evaluation.table import ScoreTable, ordered_pairs


def auc_margin(table: ScoreTable) -> RankedSample:
    """The margin of every gold-ordered pair against its negative; rows without scores have none."""
    margins = [
        (row, values[i] - values[j])
        for row, (values, gold) in enumerate(zip(table.scores, table.ranks, strict=True))
        if values
        for i, j in ordered_pairs(gold)
    ]
    return RankedSample.of(
        margins, [(row, -margin) for row, margin in margins], rows=len(table.ranks), mirrored=True
    )


def auc_pooled(table: ScoreTable) -> RankedSample:
    """Scores of the responses that gold ranks best against all others; rows without scores have none."""
    best: list[tuple[int, float]] = []
    others: list[tuple[int, float]] = []
    for row, (values, gold) in enumerate(zip(table.scores, table.ranks, strict=True)):
        top = min(gold)
        for value, rank in zip(values, gold, strict=False):
            (best if rank == top else others).append((row, value))
    return RankedSample.of(best, others, rows=len(table.ranks))


AUC_MARGIN = EvaluationMetric(
    "auc_margin",
    "AUC of margins",
    "AUC of the margins of gold pairs (positive) against their negatives; n counts pairs",
    auc_margin,
    needs="scores",
    chance=0.5,
    for_pairs=True,
    in_results=False,
)
AUC_POOLED = EvaluationMetric(
    "auc_pooled",
    "AUC, pooled",
    "AUC of the scores of best responses against all others, over all prompts; n counts responses",
    auc_pooled,
    needs="scores",
    chance=0.5,
    for_pairs=True,
    in_results=False,
)
