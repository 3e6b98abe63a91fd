"""The metrics of an evaluation, one file each: the only place where one is named.

`summary.json` and its JSON Schema, the report, `results.csv`, the setting `evaluation.metric` and the table of
docs/measures.md are made from `METRICS`.
"""

from longrm.errors import ConfigError
from longrm.evaluation.metrics.areas import AUC_MARGIN, AUC_POOLED
from longrm.evaluation.metrics.exact_order import EXACT_ORDER
from longrm.evaluation.metrics.kendall_tau import KENDALL_TAU
from longrm.evaluation.metrics.metric import EvaluationMetric
from longrm.evaluation.metrics.pair_accuracy import PAIR_ACCURACY
from longrm.evaluation.metrics.position_match import POSITION_MATCH
from longrm.evaluation.metrics.top1 import TOP1

__all__ = ["METRICS", "PAIR_ACCURACY", "TOP1", "EvaluationMetric", "known_metric", "metric_of", "reported"]

METRICS: dict[str, EvaluationMetric] = {
    metric.name: metric
    for metric in (
        PAIR_ACCURACY,
        TOP1,
        EXACT_ORDER,
        POSITION_MATCH,
        KENDALL_TAU,
        AUC_MARGIN,
        AUC_POOLED,
    )
}
"""Every metric by its name, in the order in which they are shown."""


def metric_of(name: str) -> EvaluationMetric:
    """The metric of this name.

    Raises:
        ConfigError: There is none.
    """
    return METRICS[known_metric(name)]


def known_metric(name: str) -> str:
    """The name itself.

    Raises:
        ConfigError: No metric has it.
    """
    if name not in METRICS:
        raise ConfigError(f"there is no metric {name!r}; one of {', '.join(METRICS)}")
    return name


def reported(*, pairs_only: bool) -> tuple[EvaluationMetric, ...]:
    """The metrics that are reported: all, or where every comparison is a pair, those that repeat no other."""
    return tuple(metric for metric in METRICS.values() if metric.for_pairs or not pairs_only)
