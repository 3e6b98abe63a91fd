"""The figures of published rules, apart from our own."""

from collections import Counter
from collections.abc import Sequence

from longrm.evaluation.rules import RULES, rule_key
from longrm.report import wording
from longrm.report.material import Evaluated
from longrm.report.sections.section import Section
from longrm.report.tables import Cell, Row, Table


def rules(stages: Sequence[Evaluated]) -> Section | None:
    """Left out where no rule was asked for."""
    shown = [name for name in RULES if any(rule_key(name) in stage.summary for stage in stages)]
    if not shown:
        return None
    errs = [_errs(stage) for stage in stages if stage.summary.get("release_rule", {}).get("errs")]
    return Section(
        "rules",
        "By the rules of others",
        "Published rules",
        "These figures can be compared with published ones, and with nothing else on this page. "
        + " ".join(f"{RULES[name].title}: {RULES[name].explanation}" for name in shown),
        tables=tuple(
            _table([stage for stage in stages if rule_key(name) in stage.summary], name) for name in shown
        ),
        folded=tuple(errs),
        fold="Where the release's scoring errs",
    )


def _table(stages: Sequence[Evaluated], name: str) -> Table:
    key, part = rule_key(name), RULES[name].parts
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
        RULES[name].title, ("model", "overall", *parts, *(f"best of {rank}" for rank in ranks)), tuple(rows)
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
