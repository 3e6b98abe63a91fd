"""What judges that answer the question before they judge can solve, and what they then misjudge."""

from longrm.evaluation.summary_schema import EvaluationSummary
from longrm.reporting.formatting import count, short_length
from longrm.reporting.load import ReportData
from longrm.reporting.tables import Cell, Column, Row, Section, Table, estimate_table
from longrm.runs.records import Estimate
from longrm.types import Outcome


def solving(data: ReportData) -> Section | None:
    """The share of questions solved and the solve-to-judge gap, by length; None if no judge answered first."""
    found = [(model, one) for model in data.models if (one := model.summary.solve_to_judge)]
    if not found:
        return None
    lengths = sorted({int(length) for _, one in found for length in one.by_length})
    shares = [
        estimate_table(
            f"{name}, of comparisons with a gold answer, with 95% intervals",
            [model for model, _ in found],
            [_column(key, length) for length in (None, *lengths)],
        )
        for name, key in (("Solved", "solved"), ("Solved but judged wrong", "gap"))
    ]
    occurred = [outcome for outcome in Outcome if any(one.outcomes[outcome] for _, one in found)]
    rows = [
        Row(model.label, [Cell(count(one.outcomes[outcome])) for outcome in occurred], model.style)
        for model, one in found
    ]
    outcomes = Table("Outcomes of own answers", ["model", *(o.replace("_", " ") for o in occurred)], rows)
    return Section(
        "Solving",
        tables=[*filter(None, shares), outcomes],
        terms={
            "Solving": "the judge answered the question itself before it saw the responses; solved but judged wrong is "
            "the solve-to-judge gap, in which a tie counts half and a missing verdict as wrong"
        },
    )


def _column(key: str, length: int | None) -> Column:
    def find(summary: EvaluationSummary) -> Estimate | None:
        whole = summary.solve_to_judge
        part = whole if whole is None or length is None else whole.by_length.get(str(length))
        return getattr(part, key, None)

    return Column("all" if length is None else short_length(length), find)
