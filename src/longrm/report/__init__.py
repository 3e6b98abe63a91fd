"""Run folders become one self-contained HTML file; its figures are written next to it as SVG and PNG."""

import base64
import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longrm.config import to_toml
from longrm.errors import require
from longrm.evaluation.metrics import PAIR_ACCURACY, TOP1, metric_of
from longrm.reading import short_name
from longrm.report import tables
from longrm.report.formatting import (
    asset,
    few_note,
    headline,
    html_page,
    level,
    measured_with,
    plural,
    seconds,
    shared_unit,
)
from longrm.report.items import browser
from longrm.report.load import STAGES, Model, ReportData, load_report
from longrm.runs.folder import write_file
from longrm.types import Outcome

_logger = logging.getLogger(__name__)

SCRIPTS = ("texts", "context", "attribution", "item", "list", "page", "print")
"""The parts of the page's one script, in order: a later one uses names of earlier ones."""
_HEADLINES = 8  # models; the tables have all of them


def build(runs: Sequence[Path], out: Path) -> None:
    """Writes a report about evaluation and training runs in any mix, or one demo; and attributions of their models.

    The HTML file contains everything it needs and loads nothing. Its figures are also written as SVG and PNG into
    `<stem of out>-figures/`.

    Args:
        runs: Run folders; a demo is reported alone.
        out: The HTML file. Equal runs give equal bytes.

    Raises:
        RunError: A folder is not a finished run, or a file cannot be written.
        MissingPackageError: The packages that draw the figures are not installed.
    """
    require("altair", "vl_convert", user="a report")
    from longrm.report import charts  # here, because drawing needs the extra `report`
    from longrm.report.sections import SECTIONS, TRAINING_SECTIONS

    data = load_report(runs)
    models, demo = data.models, data.demo
    boundaries = [model.summary.boundary for model in models if model.summary.boundary]
    # The metric of the models' boundaries; pair accuracy, which all have, if they differ.
    metrics = {boundary.metric for boundary in boundaries}
    metric = metrics.pop() if len(metrics) == 1 else PAIR_ACCURACY.name
    # A demo's stages belong to families, in the order of the page; other runs to one without a name.
    names = list(dict.fromkeys([*(model.family for model in models), *(run.family for run in data.trained)]))
    families = [
        _family(data, name, number, metric, named=len(names) > 1) for number, name in enumerate(names)
    ]
    heat = [figure for n, model in enumerate(models) if (figure := charts.heat_map(model, metric, n))]
    sections = {name: found for name, make in SECTIONS.items() if (found := make(models))}
    sections |= {name: found for name, make in TRAINING_SECTIONS.items() if (found := make(data.trained))}
    figures = [figure for family in families for figure in (*family["accuracy"], *family["training"])]
    figures += [*heat, *(section.figure for section in sections.values() if section.figure)]
    folder = out.with_name(f"{out.stem}-figures")
    for figure in figures:
        figure.write(folder)

    title = "How far into a context the judgment reaches"
    if demo is not None:
        title += f": the demo, seed {demo.seed}"
    elif not boundaries:
        title = "Accuracy of the judgment" if models else "Training"
    headlines: list[dict[str, Any]] = []
    for model in models[:_HEADLINES]:
        name, label = short_name(model.summary.model), model.label
        if demo is None and name not in label:  # the label was too long for it
            label = f"{label} · {name}"
        headlines.append({"label": label, "style": model.style, "text": headline(model.summary)})
    size = next((model.summary.recommended for model in models if model.summary.recommended), None)
    items = browser([*models, *data.best_of])
    depths = tables.depth_tables(models, metric)
    script = "\n".join(
        ['"use strict";\n(() => {', *(asset(f"report/scripts/{name}.js") for name in SCRIPTS), "})();\n"]
    )
    html = html_page(
        "report/page.html.j2",
        title=title,
        headlines=headlines,
        more_models=len(models) - _HEADLINES,
        trained=plural(len(data.trained), "training run"),
        few_note=few_note(line["text"] for line in headlines),
        incomplete=_incomplete([*models, *data.best_of, *data.pointwise]),
        demo=demo,
        metric=metric_of(metric).title,
        threshold=" or ".join(map(level, sorted({boundary.tau for boundary in boundaries}))),
        few_pairs=any(boundary.headline == "slope" for boundary in boundaries),
        recommended=(f"{100 * size.difference:g} points", f"{100 * size.power:g}%") if size else None,
        measured=_measured(models),
        measured_best_of=_measured(data.best_of),
        measured_pointwise=_measured(data.pointwise),
        families=families,
        heat=heat,
        heat_note=few_note(table.note for table in depths),
        depths=depths,
        differences=tables.difference_table(data),
        best_of=tables.length_table("Best of 4: top-1 by length", data.best_of, TOP1.name, chance=True),
        best_of_overall=tables.overall_table("Best of 4, all lengths together", data.best_of),
        pointwise=tables.length_table(
            "Pair accuracy of scores for single responses, by length", data.pointwise, PAIR_ACCURACY.name
        ),
        sections=sections,
        points=max((charts.bin_size(len(run.steps)) for run in data.trained), default=1),
        browser=items,
        outcomes=tables.outcome_table(data),
        runs=data.runs,
        settings=[(run, to_toml(run.settings)) for run in data.runs],
        # Repeating a demo repeats its parts.
        repeat=[
            run.command("NEW_FOLDER")
            for run in data.runs
            if demo is None or run.kind in ("demo", "attribution")
        ],
        seconds={
            name.replace("_", " "): seconds(spent) for name, spent in (demo.seconds if demo else {}).items()
        },
        figures=folder.name,
        script=script,
        # The page's content security policy allows this one script only.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    write_file(out, html)
    if items is not None and items["left_out"]:
        _logger.info("%d comparisons do not fit into %s in full", items["left_out"], out)


def _family(data: ReportData, family: str, number: int, metric: str, *, named: bool) -> dict[str, Any]:
    """What the template prints of a family: its figures and tables."""
    from longrm.report import charts

    models = [model for model in data.models if model.family == family]
    trained = [run for run in data.trained if run.family == family]
    suffix = f"-{number + 1}" if number else ""
    title = f"{family}. " if named else ""
    measured = metric_of(metric).title.capitalize()
    unit = shared_unit(model.summary.measured for model in models) if models else ""
    curves = [charts.accuracy(models, metric, width, suffix) for width in (charts.WIDE, charts.NARROW)]
    by_length = tables.length_table(f"{measured} by length in {unit}", models, metric)
    meanings = dict(STAGES.values()) if data.demo is not None else {}
    training = f"{title}Training; loss and accuracy are means over the last 20 steps"
    return {
        "title": f"{title}{measured} against context length",
        "models": models,
        "accuracy": [figure for figure in curves if figure],
        "meanings": [(model, meanings.get(model.label, "")) for model in models] if meanings else [],
        "measured": _measured(models),
        "by_length": by_length,
        "few_note": by_length.note if by_length else "",
        "boundary": tables.boundary_table(f"{title}Context boundary, in {unit}, with 95% intervals", models),
        "overall": tables.overall_table(f"{title}All metrics, with 95% intervals, and chance levels", models),
        "trained": trained,
        "training": charts.training(trained, suffix),
        "training_table": tables.training_table(training, trained),
    }


def _measured(models: Sequence[Model]) -> list[str]:
    """The unit of lengths, the worlds and the depths: one line for all models, or one for each if they differ."""
    measured = {model.label: model.summary.measured for model in models}
    if len({*measured.values()}) == 1:
        return [measured_with(one) for one in {*measured.values()} if one]
    return [f"{label}: {measured_with(one)}" for label, one in measured.items() if one]


def _incomplete(models: Sequence[Model]) -> list[str]:
    """What is missing from a run: errors that a rerun retries, lengths without an answer, and parts of a benchmark."""
    lines = []
    for model in models:
        counts, problems = model.summary.counts, []
        if errors := counts.outcomes[Outcome.ERROR]:
            problems.append(f"{plural(errors, 'error')}; the same command retries them")
        if silent := model.unanswered:
            problems.append(f"no answer at {', '.join(f'{length:,}' for length in silent)} tokens")
        if counts.sampled_from is not None:
            problems.append(f"a sample (--limit) of {counts.sampled_from:,} comparisons")
        if model.summary.shard is not None:
            problems.append(f"shard {model.summary.shard} only")
        lines += [f"{model.label}: {problem}" for problem in problems]
    return lines
