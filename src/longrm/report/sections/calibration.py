"""Whether a judge that is sure is also right."""

from collections.abc import Sequence
from dataclasses import replace

import altair as alt

from longrm.evaluation import wording
from longrm.evaluation.summaries import CalibrationError, ConfidenceBin
from longrm.report.drawing import MUTED, Figure, Rows, colors_of, dashes_of, shapes_of, svg_of
from longrm.report.load import EvaluatedModel
from longrm.report.sections.section import Section
from longrm.report.tables import Table, TableCell, TableRow

_DRAWN_FROM = 10  # pairs in a bin; fewer say nothing
_SIZE = 240  # pixels; the two axes have one scale


def calibration(stages: Sequence[EvaluatedModel]) -> Section | None:
    """Left out where no run's scores mean anything beyond their order."""
    shown = [stage for stage in stages if stage.summary.calibration]
    if not shown:
        return None
    return Section(
        "How sure, and how right",
        "Calibration",
        "Confidence is the probability that a margin of scores stands for. On the dotted line, verdicts of 80% "
        "confidence are right 80% of the time; below it, the judge is too sure of itself. The error (ECE) is the mean "
        "distance from that line.",
        tables=(_table(shown),),
        figure=_figure(shown),
        folded=tuple(_bins(stage) for stage in shown),
        fold="The numbers by confidence",
        note=f"Bins with fewer than {_DRAWN_FROM} pairs are not drawn. Chance alone gives a "
        "calibrated judge an ECE as well: its mean, and what 95% of such judges stay below, stand beside each. Good "
        "calibration is not accuracy: a judge that is always 50% sure, and guesses, is calibrated.",
    )


def _table(stages: Sequence[EvaluatedModel]) -> Table:
    rows = []
    for stage in stages:
        found = stage.summary.calibration
        assert found is not None, "others are not shown"
        scaled = f"T = {wording.decimal(found.temperature)}" if found.temperature != 1 else ""
        fitted = TableCell(wording.MISSING)
        if found.ece_fitted is not None:
            fitted = _error(found.ece_fitted)
            at = f", at T = {wording.decimal(found.temperature_fitted)}"
            fitted = replace(fitted, detail=fitted.detail + at)
        pairs = TableCell(wording.tokens(found.ece.n))
        cells = (TableCell(found.link, scaled), _error(found.ece), fitted, pairs)
        rows.append(TableRow(stage.label, cells, stage.style))
    columns = ("model", "confidence from", "ECE", "ECE, temperature fitted", "pairs")
    return Table("Expected calibration error", columns, tuple(rows))


def _error(found: CalibrationError) -> TableCell:
    fair = found.if_calibrated
    detail = f"if calibrated {wording.percent(fair.mean)}, at most {wording.percent(fair.high)}"
    return TableCell(wording.percent(found.value), detail)


def _bins_of(stage: EvaluatedModel) -> tuple[ConfidenceBin, ...]:
    return stage.summary.calibration.bins if stage.summary.calibration else ()


def _bins(stage: EvaluatedModel) -> Table:
    rows = []
    for found in _bins_of(stage):
        cells = wording.percent(found.confidence), wording.percent(found.accuracy), wording.tokens(found.n)
        between = f"{wording.percent(found.low)} to {wording.percent(found.high)}"
        rows.append(TableRow(between, tuple(map(TableCell, cells))))
    return Table(f"{stage.label}: by confidence", ("bin", "confidence", "accuracy", "pairs"), tuple(rows))


def _figure(stages: Sequence[EvaluatedModel]) -> Figure | None:
    rows: Rows = [
        {"curve": str(number), "confidence": found.confidence, "accuracy": found.accuracy, "n": found.n}
        for number, stage in enumerate(stages)
        for found in _bins_of(stage)
        if found.n >= _DRAWN_FROM
    ]
    if len({row["confidence"] for row in rows}) < 2:
        return None  # a point is no curve
    bottom = min(0.5, int(10 * min(row["accuracy"] for row in rows)) / 10)
    styles, axis = [stage.style for stage in stages], alt.Axis(format=".0%", tickCount=5)
    x = alt.X("confidence:Q", title="confidence", scale=alt.Scale(domain=[0.5, 1]), axis=axis)
    y = alt.Y("accuracy:Q", title="accuracy", scale=alt.Scale(domain=[bottom, 1]), axis=axis)
    line = alt.Chart(alt.InlineData(values=[{"at": 0.5}, {"at": 1.0}])).mark_line(
        color=MUTED, strokeDash=[3, 4], strokeWidth=1
    )
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y, color=colors_of(styles))
    largest = max(row["n"] for row in rows)
    size = alt.Size("n:Q", scale=alt.Scale(domain=[0, largest], range=[12, 150]), legend=None)
    return Figure(
        "calibration",
        "Accuracy against confidence",
        "Reliability diagram: accuracy of the verdicts in each bin of confidence, one curve a model, and the diagonal "
        "of perfect calibration.",
        svg_of(
            alt.layer(
                line.encode(x="at:Q", y="at:Q"),
                base.mark_line(strokeWidth=1.8).encode(strokeDash=dashes_of(styles)),
                base.mark_point(filled=True, opacity=1).encode(size=size, shape=shapes_of(styles)),
            ),
            _SIZE,
            _SIZE,
        ),
    )
