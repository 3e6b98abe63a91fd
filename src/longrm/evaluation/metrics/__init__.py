"""The metrics of an evaluation. `METRICS` is the only place that lists them.

`summary.json`, the report, `results.csv`, the setting `evaluation.metric` and the table in docs/measures.md follow it.
"""

from longrm.errors import ConfigError
from longrm.evaluation.metrics.metric import EvaluationMetric
from longrm.evaluation.metrics.standard import (
    AUC_MARGIN,
    AUC_POOLED,
    EXACT_ORDER,
    KENDALL_TAU,
    PAIR_ACCURACY,
    POSITION_MATCH,
    TOP1,
)

__all__ = ["METRICS", "PAIR_ACCURACY", "TOP1", "EvaluationMetric", "known_metric", "metric_of", "reported"]

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
