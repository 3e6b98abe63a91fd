"""How good an answer is beside a gold answer, from 0 to 1: one metric a file, each with its reference."""

from collections.abc import Callable
from types import MappingProxyType

from longrm.errors import ConfigError, nearest
from longrm.synthesis.answers.chrf import chrf
from longrm.synthesis.answers.citation import citation_f1, citation_precision, citation_recall
from longrm.synthesis.answers.edit_similarity import edit_similarity
from longrm.synthesis.answers.exact_match import exact_match
from longrm.synthesis.answers.math_equality import math_equality
from longrm.synthesis.answers.right_choices import right_choices
from longrm.synthesis.answers.rouge_l import rouge_l
from longrm.synthesis.answers.token_f1 import token_f1

Metric = Callable[[str, str], float]
"""Rates an answer (first) by a gold answer (second), from 0 to 1; the gold answer itself earns 1."""

METRICS: MappingProxyType[str, Metric] = MappingProxyType(
    {
        "rouge_l": rouge_l,
        "token_f1": token_f1,
        "exact_match": exact_match,
        "right_choices": right_choices,
        "citation_precision": citation_precision,
        "citation_recall": citation_recall,
        "citation_f1": citation_f1,
        "edit_similarity": edit_similarity,
        "math_equality": math_equality,
        "chrf": chrf,
    }
)
"""The metrics by name."""


def metric_named(name: str) -> Metric:
    """The metric of a name.

    Raises:
        ConfigError: There is none.
    """
    if name in METRICS:
        return METRICS[name]
    raise ConfigError(f"no answer metric '{name}'; {nearest(name, METRICS)}")
