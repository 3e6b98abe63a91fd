"""What is odd about the data themselves."""

from collections.abc import Mapping, Sequence
from typing import Any

from longrm.report import wording
from longrm.report.material import Evaluated, short_name
from longrm.report.sections.section import Section
from longrm.report.tables import Cell, Row, Table

_EXAMPLES = 5  # of each finding; the summary has more


def audit(stages: Sequence[Evaluated]) -> Section | None:
    """Left out where no benchmark was audited."""
    audits: list[tuple[str, Mapping[str, Any]]] = []
    for stage in stages:
        held = stage.summary.get("audit")
        if held is not None and (stage.summary["bench"], held) not in audits:
            audits.append((stage.summary["bench"], held))  # once for all models that judged the same data
    if not audits:
        return None
    clean = {kind for _, found in audits for kind in found["findings"]} - {
        kind for _, found in audits for kind, finding in found["findings"].items() if finding["count"]
    }
    looked = wording.listed(sorted(kind.replace("_", " ") for kind in clean))
    return Section(
        "audit",
        "The data themselves",
        "Data",
        f"Looked for in the data, and not found: {looked}." if looked else "",
        tables=tuple(_table(bench, found) for bench, found in audits if _odd(found)),
    )


def _odd(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [finding for finding in found["findings"].values() if finding["count"]]


def _table(bench: str, found: Mapping[str, Any]) -> Table:
    rows = [
        Row(
            finding["what"],
            (Cell(wording.tokens(finding["count"])), Cell("; ".join(finding["examples"][:_EXAMPLES]))),
        )
        for finding in _odd(found)
    ]
    caption = f"{short_name(bench)}: what was found in {wording.plural(found['comparisons'], 'comparison')}"
    return Table(caption, ("finding", "count", "the first of them"), tuple(rows))
