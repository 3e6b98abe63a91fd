"""The scoring rules of published benchmarks, next to our own metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longrm.evaluation.rules.benchmark_rules import (
    if_rewardbench,
    judgebench,
    long_form_rewardbench,
    plan_rewardbench,
    rm_bench,
)
from longrm.evaluation.rules.rewardbench import rewardbench, rewardbench_2
from longrm.runs.records import JudgmentRecord
from longrm.types import Scale


@dataclass(frozen=True, slots=True)
class ScoringRule:
    """The scoring rule of a published benchmark."""

    # Scores the judgments of a run as JSON values: `overall_percent`, `left_out` (number of errors), and further ones.
    score: Callable[[Sequence[JudgmentRecord], Scale], dict[str, Any]]
    title: str  # in the report
    explanation: str  # how it differs from our own metrics, in full sentences
    parts: tuple[str, ...]  # the keys of its scores by part of the benchmark


RULES: Mapping[str, ScoringRule] = {
    "judgebench": ScoringRule(
        judgebench,
        "JudgeBench's own rule",
        "A pair counts as right if more of its trials agree with the gold order than contradict it. "
        "Unlike in our accuracy, verdicts that cancel out earn nothing, and one order may lack a verdict.",
        ("by_category_percent",),
    ),
    "rewardbench": ScoringRule(
        rewardbench,
        "RewardBench's own rule",
        "Subsets are weighted within their section as published, and sections count alike.",
        ("by_section_percent",),
    ),
    "rewardbench-2": ScoringRule(
        rewardbench_2,
        "RewardBench 2's own rule",
        "Subsets count alike. Ties has its own score, which depends on distances between scores: it and the overall "
        "score need ratings, so a judge of verdicts has neither.",
        ("by_subset_percent",),
    ),
    "rm-bench": ScoringRule(
        rm_bench,
        "RM-Bench's own rule",
        "Each of the nine pairs of a right and a wrong response counts alone: hard where the wrong one has the richer "
        "style, easy where the right one has it. Difficulties count alike within a domain, and so do domains.",
        ("by_difficulty_percent", "by_domain_percent"),
    ),
    "if-rewardbench": ScoringRule(
        if_rewardbench,
        "IF-RewardBench's own rule",
        "The share of an item's edges whose better response scores higher, averaged over items and then over the types "
        "of instructions; ties are wrong. The authors compare ratings fitted to a judge's verdicts about all pairs of "
        "an item; here each edge has its own verdict.",
        ("by_type_percent",),
    ),
    "long-form-rewardbench": ScoringRule(
        long_form_rewardbench,
        "Long-form RewardBench's own rule",
        "An item counts as right where every right response scores higher than every wrong one. All items count alike, "
        "so that subsets weigh by their size.",
        ("by_subset_percent",),
    ),
    "plan-rewardbench": ScoringRule(
        plan_rewardbench,
        "Plan-RewardBench's own rule",
        "Every trial counts by itself, a tie one half, and one without a verdict nothing; splits count alike.",
        ("by_split_percent",),
    ),
}
"""The registry of rules. The entry of a benchmark names its rule."""


def rule_key(name: str) -> str:
    """The key of a rule's result in a summary."""
    return f"{name.replace('-', '_')}_rule"
