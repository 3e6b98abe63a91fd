"""How well recorded judges label criteria."""

from functools import partial

from longrm.reporting.formatting import count, decimal
from longrm.reporting.load import ReportData
from longrm.reporting.tables import Cell, Row, Section, Table, estimate_cell

_TERMS = {
    "coverage, correlation": "Pearson's correlation of a judge's labels with people's, over all criteria",
    "same bullet": "of the criteria for which both name a bullet, the share with the same one",
}


def criteria(data: ReportData) -> Section | None:
    """The agreement of every judge with people; None without an evaluation of labels of criteria."""
    tables = [
        Table(
            f"{label}: {count(summary.criteria)} labels of {count(summary.summaries)} summaries",
            ["judge", *_TERMS, "without a label"],
            [
                Row(
                    name,
                    [
                        estimate_cell(one.correlation, partial(decimal, places=3)),
                        estimate_cell(one.linking, n=True),
                        Cell(count(one.unlabeled)),
                    ],
                )
                for name, one in summary.ranked()
            ],
        )
        for group in data.groups
        for label, summary in group.criteria
    ]
    return Section("Criteria", tables=tables, terms=_TERMS) if tables else None
