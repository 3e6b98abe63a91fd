"""How far the model relies on the evidence: its attribution boundary next to the context boundary."""

from collections.abc import Sequence

import altair as alt

from longrm.evaluation.context_boundary import holds_and_fails
from longrm.evaluation.summary_schema import AttributionSummary
from longrm.reporting.charts import (
    Figure,
    banded_curves,
    chart_of,
    encodings,
    interval_rows,
    length_axis,
    level_lines,
    svg_of,
)
from longrm.reporting.formatting import count, defined, shared_unit
from longrm.reporting.load import Model, ReportData, folder_and_model
from longrm.reporting.tables import (
    ATTRIBUTION_TERMS,
    Cell,
    Row,
    Section,
    Table,
    attribution_table,
    items_link,
)
from longrm.runs.records import Estimate

_HALF = 0.5  # of all weight: the threshold of the attribution boundary
_TERMS = ATTRIBUTION_TERMS | {
    "weight on evidence holds to": "longest length whose lower limit is at least one half, as at every shorter one; it "
    "fails at the shortest length whose upper limit is below one half",
}
_Explained = tuple[str, Model, AttributionSummary]  # label, model, and the attribution of its judgments


def evidence_weight(data: ReportData) -> Section | None:
    """None without an attribution, or with none of the evaluated benchmark and with known evidence."""
    found: list[_Explained] = []
    for model in data.models:
        same = []
        for run in model.attributions:
            assert isinstance(run.summary, AttributionSummary), "by the kind of the run"
            if run.summary.bench == model.summary.bench and defined(run.summary.overall.evidence_share):
                same.append((run.name, run.summary))
        for name, summary in same:
            found.append((f"{model.label}, {name}" if len(same) > 1 else model.label, model, summary))
    alone = []
    for run in data.unjudged:
        assert isinstance(run.summary, AttributionSummary), "by the kind of the run"
        caption = f"{folder_and_model(run)}: weight on the evidence, with 95% intervals"
        alone.append(attribution_table(caption, run.summary))
    if not found:
        return Section("Evidence", tables=alone, terms=ATTRIBUTION_TERMS) if alone else None
    rows, parts = [], []
    for label, model, summary in found:
        limits = [(length, one.low or 0.0, one.high or 0.0) for length, one in _shares(summary).items()]
        accuracy, reaches = model.summary.boundary, [holds_and_fails(limits, _HALF)]
        reaches.insert(0, (accuracy.at_least, accuracy.below) if accuracy else (None, None))
        cells = [Cell(count(holds), f"fails at {count(fails)}" if fails else "") for holds, fails in reaches]
        cells.append(Cell(count(summary.explained), link=items_link(model=model.label, explained="any")))
        rows.append(Row(label, cells, model.style))

        metrics, name = model.summary.metrics, model.summary.main_metric
        accuracies = {  # under the row headers of `attribution_table`
            "All": metrics.overall.get(name),
            **{f"{length:,} tokens": estimate for length, estimate in model.by_length(name).items()},
            **{f"Depth {depth}": part.get(name) for depth, part in metrics.by_depth.items()},
        }
        caption = f"{label}: by length, depth and verdict, with 95% intervals"
        parts.append(attribution_table(caption, summary, accuracies))
    columns = ["model", "accuracy holds to", "weight on evidence holds to", "explained"]
    figure = _figure(found)
    return Section(
        "Evidence",
        tables=[Table("Context boundary and attribution boundary, in tokens", columns, rows), *alone],
        figures=[figure] if figure else [],
        caption="Thick lines with bands (95% intervals): weight on the evidence; thin dotted lines: accuracy.",
        terms=_TERMS,
        folded=parts,
    )


def _shares(summary: AttributionSummary) -> dict[int, Estimate]:
    """The weight on the evidence at each length where it is defined, shortest first."""
    shares = {int(length): part.evidence_share for length, part in summary.by_length.items()}
    return {length: share for length, share in sorted(shares.items()) if share.value is not None}


def _figure(found: Sequence[_Explained]) -> Figure | None:
    weights = interval_rows([_shares(summary) for _, _, summary in found])
    if not weights:
        return None
    models = [model for _, model, _ in found]
    accuracies = interval_rows([model.by_length(model.summary.main_metric) for model in models])
    styles = [model.style for model in models]
    lengths = sorted({row["length"] for row in (*weights, *accuracies)})
    x = length_axis(lengths, shared_unit(model.summary.measured for model in models))
    scale = alt.Scale(domain=[0, 1], nice=False)
    axis = alt.Axis(format=".0%", tickCount=6)
    y = alt.Y("value:Q", title="weight on evidence, accuracy", scale=scale, axis=axis)
    layers = level_lines({"half of the weight,": {_HALF}}, scale)
    layers += banded_curves(weights, styles, x, y, scale)
    if accuracies:
        points = alt.OverlayMarkDef(size=18)
        line = chart_of(accuracies).mark_line(strokeWidth=1.4, strokeDash=[1, 3], point=points)
        layers.append(line.encode(x=x, y=y, color=encodings(styles)[0]))
    return Figure(
        "evidence-weight",
        "Weight on the evidence against context length",
        "Line chart of the share of weight on the evidence, and of accuracy, against context length.",
        svg_of(alt.layer(*layers), 300, 240),
    )
