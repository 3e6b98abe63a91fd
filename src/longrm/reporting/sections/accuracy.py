"""Accuracy against length and depth, the context boundary, and every metric."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from longrm.evaluation.context_boundary import EFFECTIVE_PAIRS
from longrm.evaluation.metrics import METRICS, metric_of
from longrm.evaluation.summary_schema import MeasuredWith
from longrm.reporting import charts
from longrm.reporting.formatting import (
    STATUSES,
    boundary_estimate,
    boundary_interval,
    count,
    decimal,
    level,
    measured_with,
    percent,
    shared_unit,
    token_unit,
)
from longrm.reporting.load import Model, ReportData
from longrm.reporting.tables import (
    Cell,
    Row,
    Section,
    Table,
    answered,
    answered_cell,
    estimate_cell,
    items_link,
)

_BOUNDARY_TERMS = {
    "accuracy threshold": "(1 + chance) / 2, unless judging.accuracy_threshold is set",
    "holds to": "longest length whose lower limit reaches the accuracy threshold, as at every shorter one",
    "boundary": "where a monotone fit over log length crosses the accuracy threshold, with its interval",
    "fails at": "shortest length whose upper limit is below the accuracy threshold",
    "status": "resolved: “holds to” and “fails at” are neighboring lengths; some lengths unclear: the intervals of "
    "those in between contain the threshold; none: accuracy is below the threshold at one length and above it at a "
    "longer one",
    "slope": "change of the log-odds of being right per doubling of the length; 0: length does not matter. With fewer "
    f"than about {EFFECTIVE_PAIRS} effective pairs per length, read it instead of the boundary",
    "effective pairs": "independent pairs with the same information: pairs that share a context are correlated",
    "pairs needed": "per length, to separate the unclear lengths from the threshold with 80% power at the measured "
    "accuracies; a dash if none is unclear, or too few pairs were judged",
    "above chance to": "longest length that is still better than chance; it grows with n, so compare it at equal n",
}
_CHANCE = {"chance": "the expected value for a random order"}


def accuracy(data: ReportData) -> Section | None:
    """The headline figure and its numbers for each group; None without lengths."""
    figures, tables = [], []
    for number, group in enumerate(data.full):
        suffix = f"-{number + 1}" if number else ""
        wide, narrow = (
            charts.accuracy(group.models, group.metric, width, suffix)
            for width in (charts.WIDE, charts.NARROW)
        )
        if wide:
            figures.append(replace(wide, title=data.caption(group, wide.title), narrow=narrow))
        caption = data.caption(group, _by_length(group.metric, group.models))
        if table := length_table(caption, group.models, group.metric):
            tables.append(table)
    if not tables:
        return None
    generated: dict[tuple[Any, ...], list[MeasuredWith]] = {}
    for model in data.models:
        if one := model.summary.measured:
            generated.setdefault((one.identity, one.worlds, one.depths), []).append(one)
    shown = {model.label for model in data.models}
    return Section(
        "Accuracy by length",
        tables=tables,
        figures=figures,
        caption=" ".join(
            [
                "Bands and bars: 95% intervals, which allow for shared contexts.",
                *(measured_with(*alike) for alike in generated.values()),
                *(group.given.note for group in data.full if group.given.note),
            ]
        ),
        legend={label: meaning for label, meaning in data.settings.meanings.items() if label in shown},
        terms=data.settings.meanings,
    )


def _by_length(metric: str, models: Sequence[Model]) -> str:
    unit = shared_unit(model.summary.measured for model in models) if models else "tokens"
    return f"{metric_of(metric).title.capitalize()} by length in {unit}"


def boundary(data: ReportData) -> Section | None:
    """The context boundary with everything that is reported with it."""
    rows = []
    for model in data.models:
        if (found := model.summary.boundary) is None:
            continue
        reach, effective = found.above_chance_reach, list(found.effective_n.values())
        cells = [
            Cell(count(found.at_least)),
            Cell(boundary_estimate(found), boundary_interval(found)),
            Cell(count(found.below)),
            Cell(STATUSES[found.status]),
            estimate_cell(found.slope_per_doubling, decimal),
            Cell(count(min(effective)), f"to {count(max(effective))} per length"),
            Cell(count(found.pairs_to_resolve)),
            Cell(count(reach.tokens), f"at n ≥ {count(reach.smallest_n)}"),
        ]
        rows.append(Row(model.label, cells, model.style))
    _, *columns = _BOUNDARY_TERMS
    tables = [Table("Context boundary, in tokens, with 95% intervals", ["model", *columns], rows)]
    return Section("Context boundary", tables=tables, terms=_BOUNDARY_TERMS) if rows else None


def overall(data: ReportData) -> Section | None:
    """Every metric over all comparisons."""
    if not data.models:
        return None
    caption = "All metrics, with 95% intervals, and chance levels"
    tables = [overall_table(data.caption(group, caption), group.models) for group in data.full]
    size = next((model.summary.recommended for model in data.models if model.summary.recommended), None)
    shown = {name for table in tables for name in (*table.columns, *(row.header for row in table.rows))}
    terms = _CHANCE | {one.title: one.description for one in METRICS.values() if one.title in shown}
    if size:
        terms["comparisons"] = (
            f"recommended: as many, clustered like these, detect a difference of {100 * size.difference:g} points in "
            f"{100 * size.power:g}% of cases"
        )
    return Section("All comparisons", tables=tables, terms=terms)


def depth(data: ReportData) -> Section | None:
    """A heat map for each model, and its numbers; None without depths or a threshold."""
    by_metric = [(model, group.metric) for group in data.full for model in group.models]
    figures = [charts.heat_map(model, metric, number) for number, (model, metric) in enumerate(by_metric)]
    if not any(figures):
        return None
    thresholds = sorted({model.summary.boundary.tau for model in data.models if model.summary.boundary})
    return Section(
        "Depth of the evidence",
        figures=[figure for figure in figures if figure],
        caption="Accuracy in percent: orange below the accuracy threshold of "
        f"{' or '.join(map(level, thresholds))}, blue above.",
        folded=[table for model, metric in by_metric for table in depth_tables([model], metric)],
    )


def brief(data: ReportData) -> Section | None:
    """Accuracy by length and all metrics of the groups that are shown briefly."""
    tables: list[Table] = []
    notes: list[str] = []
    for group in data.groups:
        if not group.given.brief or not group.models:
            continue
        caption = data.caption(group, _by_length(group.metric, group.models))
        tables += filter(None, [length_table(caption, group.models, group.metric, chance=True)])
        tables.append(overall_table(data.caption(group, "All lengths together"), group.models))
        notes += filter(None, [group.given.note])
    return (
        Section("Further evaluations", tables=tables, caption=" ".join(notes), terms=_CHANCE)
        if tables
        else None
    )


def length_table(caption: str, models: Sequence[Model], metric: str, *, chance: bool = False) -> Table | None:
    """One metric at each length and its mean over lengths; with `chance`, a last row with the chance level."""
    lengths = sorted({length for model in models for length in (*model.by_length(metric), *model.unanswered)})
    if not lengths:
        return None
    rows = []
    for model in models:
        found, missing = model.by_length(metric), model.summary.missing.by_length
        cells = [
            answered_cell(found.get(n), missing.get(str(n)), link=items_link(model=model.label, length=n))
            for n in lengths
        ]
        # The summary has the unweighted mean over lengths for the main metric only.
        main = metric == model.summary.main_metric
        cells.append(estimate_cell(model.summary.metrics.macro.by_length if main else None))
        rows.append(Row(model.label, cells, model.style))
    if chance:
        level = next(model.summary.chance[metric] for model in models if metric in model.summary.chance)
        rows.append(Row("chance", [Cell(percent(level))] * (len(lengths) + 1)))
    return Table(caption, ["model", *map(count, lengths), "mean"], rows)


def overall_table(caption: str, models: Sequence[Model]) -> Table:
    """Every metric over all comparisons, the chance levels, and the number of comparisons."""
    measured = {name for model in models for name in model.summary.metrics.overall}
    names = [name for name in METRICS if name in measured]
    rows = []
    chances = set()
    for model in models:
        summary = model.summary
        cells, chance = [], []
        for name in names:
            write = percent if metric_of(name).is_share else decimal
            # Compared as text below: mean chance levels over different comparisons differ in their last digits.
            chance.append(write(summary.chance.get(name)))
            cells.append(estimate_cell(summary.metrics.overall.get(name), write))
        details = [answered(summary.missing.overall)] if summary.missing.overall else []
        if summary.recommended:
            details.append(f"{summary.recommended.comparisons:,} recommended")
        cells.append(Cell(count(summary.accuracy.strict.n), ", ".join(details)))
        rows.append(Row(model.label, cells, model.style))
        chances.add((*chance, ""))
    rows += [Row("chance", [*map(Cell, texts)]) for texts in sorted(chances)]
    table = Table(caption, ["model", *(METRICS[name].title for name in names), "comparisons"], rows)
    # Many metrics next to each other would not fit the page.
    return table if len(names) <= len(models) else table.transposed("metric")


def depth_tables(models: Sequence[Model], metric: str) -> list[Table]:
    """The numbers of the heat maps, one table per model: a row a depth, a column a length."""
    tables = []
    for model in models:
        missing = model.summary.missing.by_length_and_depth
        lengths = sorted(model.summary.metrics.by_length_and_depth, key=int)
        cells = {length: model.by_depth(length, metric) for length in lengths}
        depths = sorted({depth for length in lengths for depth in (*cells[length], *missing.get(length, ()))})
        rows = []
        for depth in depths:
            row = []
            for length in lengths:
                link = items_link(model=model.label, length=length, depth=depth)
                answers = missing.get(length, {}).get(depth)
                row.append(answered_cell(cells[length].get(depth), answers, n=True, link=link))
            rows.append(Row(depth.replace("-", "–"), row))
        if rows:
            caption = f"{model.label}: by length in {token_unit(model.summary.measured)} and depth"
            tables.append(Table(caption, ["depth", *(count(int(length)) for length in lengths)], rows))
    return tables
