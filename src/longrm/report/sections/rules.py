"""The figures of published rules, apart from our own."""

from collections import Counter
from collections.abc import Sequence

from longrm.report import wording
from longrm.report.material import RULES, Evaluated
from longrm.report.sections.section import Section
from longrm.report.tables import Cell, Row, Table

_TOLD = {
    "judgebench_rule": "A pair counts as right if more of its askings agree with the gold order than contradict it. "
    "Unlike in our accuracy, verdicts that cancel out earn nothing, and one order without a verdict is forgiven.",
    "rewardbench_rule": "Subsets are weighted within their section as published, and sections count alike.",
    "rewardbench_2_rule": "Subsets count alike; Ties has a score of its own, which also asks how far apart the "
    "scores are. It and the overall score need ratings, so that a judge of verdicts has neither.",
    "release_rule": "With its mistakes, to compare with its figures only: the first verdict in a text counts, in one "
    "order; a text without one earns 0; equal scores keep the order in which they were shown.",
}
_PARTS = {
    "judgebench_rule": "by_category_percent",
    "rewardbench_rule": "by_section_percent",
    "rewardbench_2_rule": "by_subset_percent",
    "release_rule": "by_task_percent",
}


def rules(stages: Sequence[Evaluated]) -> Section | None:
    """Left out where no rule was asked for."""
    shown = [key for key in RULES if any(key in stage.summary for stage in stages)]
    if not shown:
        return None
    errs = [_errs(stage) for stage in stages if stage.summary.get("release_rule", {}).get("errs")]
    return Section(
        "rules",
        "By the rules of others",
        "Published rules",
        "These figures can be compared with published ones, and with nothing else on this page. "
        + " ".join(f"{RULES[key]}: {_TOLD[key]}" for key in shown),
        tables=tuple(_table([stage for stage in stages if key in stage.summary], key) for key in shown),
        folded=tuple(errs),
        fold="Where the release's scoring errs",
    )


def _table(stages: Sequence[Evaluated], key: str) -> Table:
    part = _PARTS[key]
    parts = sorted({column for stage in stages for column in stage.summary[key][part]})
    ranks = sorted({column for stage in stages for column in stage.summary[key].get("by_rank_percent", {})})
    rows = [
        Row(
            stage.label,
            tuple(
                Cell(wording.published(value))
                for value in (
                    stage.summary[key]["overall_percent"],
                    *(stage.summary[key][part].get(column) for column in parts),
                    *(stage.summary[key]["by_rank_percent"].get(column) for column in ranks),
                )
            ),
            stage.style,
        )
        for stage in stages
    ]
    return Table(
        RULES[key], ("model", "overall", *parts, *(f"best of {rank}" for rank in ranks)), tuple(rows)
    )


def _errs(stage: Evaluated) -> Table:
    """How often the release's scoring differs from the verdict, by why, with the first comparisons."""
    errs = stage.summary["release_rule"]["errs"]
    rows = [
        Row(
            why.replace("_", " "),
            (
                Cell(wording.tokens(count)),
                Cell(", ".join([one["id"] for one in errs if one["why"] == why][:10])),
            ),
        )
        for why, count in sorted(Counter(one["why"] for one in errs).items())
    ]
    return Table(
        f"{stage.label}: comparisons that the release's scoring gets wrong",
        ("why", "comparisons", "the first of them"),
        tuple(rows),
    )
