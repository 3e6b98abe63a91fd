"""The rules by which published benchmarks sum a run up, beside our own figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longrm.errors import ConfigError, nearest
from longrm.evaluation.rules.if_rewardbench import if_rewardbench
from longrm.evaluation.rules.judgebench import judgebench
from longrm.evaluation.rules.long_form_rewardbench import long_form_rewardbench
from longrm.evaluation.rules.plan_rewardbench import plan_rewardbench
from longrm.evaluation.rules.release import release
from longrm.evaluation.rules.rewardbench import rewardbench, rewardbench_2
from longrm.evaluation.rules.rm_bench import rm_bench
from longrm.runs.records import JudgmentRecord
from longrm.types import Scale


@dataclass(frozen=True, slots=True)
class ScoringRule:
    """How a published benchmark counts.

    Attributes:
        figures: Sums up the judgments of a run, whose scores are on a scale, as JSON values: `overall_percent`,
            `left_out` (comparisons that ended in an error) and what else the rule knows.
        title: What the report calls it.
        explanation: How it differs from our own figures; full sentences.
        parts: The keys of the figures that hold the percent of each part of the benchmark.
    """

    figures: Callable[[Sequence[JudgmentRecord], Scale], dict[str, Any]]
    title: str
    explanation: str
    parts: tuple[str, ...]


RULES: Mapping[str, ScoringRule] = {
    "judgebench": ScoringRule(
        judgebench,
        "JudgeBench's own rule",
        "A pair counts as right if more of its trials agree with the gold order than contradict it. "
        "Unlike in our accuracy, verdicts that cancel out earn nothing, and one order without a verdict is forgiven.",
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
        "Subsets count alike; Ties has a score of its own, which also asks how far apart the scores are. It and the "
        "overall score need ratings, so that a judge of verdicts has neither.",
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
    "release": ScoringRule(
        release,
        "The LongRM release's own scoring",
        "With its mistakes, to compare with its figures only: [[A]] anywhere in the text of a pair counts as A, and "
        "the first ranking counts, in one order; a text without one earns 0; equal scores keep the order in which "
        "they were shown.",
        ("by_task_percent", "by_rank_percent"),
    ),
}
"""The registry of rules: a new one is one file and one entry; the entry of a benchmark names its rule."""


def rule_key(name: str) -> str:
    """Where a summary holds what a rule makes of the run."""
    return f"{name.replace('-', '_')}_rule"


def check_rule(name: str) -> None:
    """Checks that there is a rule of this name.

    Raises:
        ConfigError: There is none.
    """
    if name not in RULES:
        raise ConfigError(f"no scoring rule '{name}'; {nearest(name, RULES)}")


def scores_by_rule(
    names: Sequence[str], records: Sequence[JudgmentRecord], scale: Scale
) -> dict[str, dict[str, Any]]:
    """What some rules make of a run, under the keys of its summary.

    Raises:
        ConfigError: There is no such rule.
    """
    for name in names:
        check_rule(name)
    return {rule_key(name): RULES[name].figures(records, scale) for name in names}
