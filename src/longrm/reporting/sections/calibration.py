"""Whether confident verdicts are right."""

from collections.abc import Sequence

import altair as alt

from longrm.evaluation.summary_schema import CalibrationError
from longrm.reporting.charts import MUTED, Figure, Rows, chart_of, encodings, svg_of
from longrm.reporting.formatting import MISSING, count, decimal, percent
from longrm.reporting.load import Model, ReportData
from longrm.reporting.tables import Cell, Row, Section, Table

_DRAWN_FROM = 10  # pairs in a bin; fewer show noise
_TERMS = {
    "Calibration": "of a calibrated judge, verdicts of 80% confidence are right 80% of the time; one that guesses with "
    "50% confidence is calibrated, too",
    "confidence from": "how a score margin becomes a probability",
    "ECE": "expected calibration error: the mean distance of accuracy from confidence; next to it, its mean and 95th "
    "percentile for a calibrated judge",
}


def calibration(data: ReportData) -> Section | None:
    """None if no run's scores mean anything beyond their order."""
    shown = [model for model in data.models if model.summary.calibration]
    if not shown:
        return None
    rows, bins = [], []
    for model in shown:
        found = model.summary.calibration
        assert found is not None, "only these are shown"
        temperature = f"T = {decimal(found.temperature)}" if found.temperature != 1 else ""
        fitted = Cell(MISSING)
        if found.ece_fitted is not None:
            fitted = _error(found.ece_fitted, f", at T = {decimal(found.temperature_fitted)}")
        cells = [Cell(found.link, temperature), _error(found.ece), fitted, Cell(count(found.ece.n))]
        rows.append(Row(model.label, cells, model.style))
        bin_rows = [
            Row(
                f"{percent(one.low)} to {percent(one.high)}",
                [Cell(percent(one.confidence)), Cell(percent(one.accuracy)), Cell(count(one.n))],
            )
            for one in found.bins
        ]
        columns = ["bin", "confidence", "accuracy", "pairs"]
        bins.append(Table(f"{model.label}: by confidence", columns, bin_rows))
    columns = ["model", "confidence from", "ECE", "ECE, temperature fitted", "pairs"]
    figure = _figure(shown)
    return Section(
        "Calibration",
        tables=[Table("Expected calibration error", columns, rows)],
        figures=[figure] if figure else [],
        caption=f"Dotted: perfect calibration; below it, overconfidence. Bins of at least {_DRAWN_FROM} pairs.",
        terms=_TERMS,
        folded=bins,
    )


def _error(found: CalibrationError, suffix: str = "") -> Cell:
    fair = found.if_calibrated
    detail = f"if calibrated {percent(fair.mean)}, at most {percent(fair.high)}{suffix}"
    return Cell(percent(found.value), detail)


def _figure(models: Sequence[Model]) -> Figure | None:
    rows: Rows = [
        {"curve": str(number), "confidence": one.confidence, "accuracy": one.accuracy, "n": one.n}
        for number, model in enumerate(models)
        if model.summary.calibration
        for one in model.summary.calibration.bins
        if one.n >= _DRAWN_FROM
    ]
    if len({row["confidence"] for row in rows}) < 2:
        return None  # one point is no curve
    bottom = min(0.5, int(10 * min(row["accuracy"] for row in rows)) / 10)
    color, dash, shape = encodings([model.style for model in models])
    axis = alt.Axis(format=".0%", tickCount=5)
    x = alt.X("confidence:Q", title="confidence", scale=alt.Scale(domain=[0.5, 1]), axis=axis)
    y = alt.Y("accuracy:Q", title="accuracy", scale=alt.Scale(domain=[bottom, 1]), axis=axis)
    diagonal = chart_of([{"at": 0.5}, {"at": 1.0}]).mark_line(color=MUTED, strokeDash=[3, 4], strokeWidth=1)
    base = chart_of(rows).encode(x=x, y=y, color=color)
    largest = max(row["n"] for row in rows)
    size = alt.Size("n:Q", scale=alt.Scale(domain=[0, largest], range=[12, 150]), legend=None)
    chart = alt.layer(
        diagonal.encode(x="at:Q", y="at:Q"),
        base.mark_line(strokeWidth=1.8).encode(strokeDash=dash),
        base.mark_point(filled=True, opacity=1).encode(size=size, shape=shape),
    )
    return Figure(
        "calibration",
        "Accuracy against confidence",
        "Reliability diagram: accuracy of the verdicts in each bin of confidence, one curve a model, and the diagonal "
        "of perfect calibration.",
        svg_of(chart, 240, 240),
    )
