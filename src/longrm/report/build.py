"""Puts the report together: one HTML file, and its figures as SVG and PNG beside it."""

import base64
import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from longrm import __version__
from longrm.errors import RunError
from longrm.evaluation.metrics import PAIR_ACCURACY, TOP1, metric_of
from longrm.report import findings, tables, wording
from longrm.report.examples import browser
from longrm.report.load import STAGES, EvaluatedModel, ReportData, ReportedRun, load_report
from longrm.report.palette import style_sheet
from longrm.runs.folder import write_file

if TYPE_CHECKING:
    from longrm.report.drawing import Figure


def build(runs: Sequence[Path], out: Path) -> None:
    """Writes a report about evaluation and training runs in any mix, or about one demo.

    The HTML file holds all it needs and loads nothing. Its figures lie beside it too, as SVG and PNG, in
    `<stem of out>-figures/`: for `report.html` in `report-figures/`.

    Args:
        runs: Run folders; a demo is reported alone.
        out: The HTML file. Equal runs give equal bytes.

    Raises:
        RunError: A folder is no finished run, a file cannot be written, or the packages that draw the figures
            are not installed.
    """
    _check_packages()
    from longrm.report import figures  # here, because drawing needs the extra `report`
    from longrm.report.sections import sections

    data = load_report(runs)
    metric = _metric(data)
    families = [_family(data, name, number, metric) for number, name in enumerate(_families(data))]
    heat = [figures.heat_map(stage, metric, number) for number, stage in enumerate(data.stages)]
    found = list(tables.differences(data.demo)) if data.demo is not None else []
    forest = figures.forest(found) if found else None
    themes = sections(data.stages)
    page = _page(data, metric) | {
        "sections": themes,
        "families": families,
        "heat": [figure for figure in heat if figure],
        "forest": forest,
        "points": max((figures.bin_size(len(run.steps)) for run in data.trained), default=1),
        "differences": tables.difference_table(found) if found else None,
    }
    folder = out.with_name(f"{out.stem}-figures")
    themed = [section.figure for section in themes.values()]
    of_families = [figure for family in families for figure in (*family["accuracy"], *family["training"])]
    drawn = [figure for figure in [*of_families, *heat, forest, *themed] if figure]
    html = _environment().get_template("page.html.j2").render(page, figures=folder.name)
    _write_figures(drawn, folder)
    write_file(out, html)


def _check_packages() -> None:
    for name in ("altair", "vl_convert"):
        if find_spec(name) is None:
            raise RunError(
                f"a report needs the package '{name}', which is not installed; pip install 'longrm[report]'"
            )


def _metric(data: ReportData) -> str:
    """What the stages' boundaries are about, where they agree; pair accuracy, which all have, where not."""
    named: set[str] = {stage.summary.boundary.metric for stage in data.stages if stage.summary.boundary}
    return named.pop() if len(named) == 1 else PAIR_ACCURACY.name


def _page(data: ReportData, metric: str) -> dict[str, Any]:
    """What the template prints, apart from the figures."""
    stages, best_of = data.stages, data.best_of
    script = _asset("page.js")
    return {
        "title": _title(data),
        "finding": findings.finding(data),
        "incomplete": findings.incomplete([*stages, *best_of, *data.pointwise]),
        "about_data": _about_data(stages),
        "demo": data.demo,
        "start": data.demo.notes.start if data.demo else "",
        "metric": metric_of(metric).title,
        "threshold": _thresholds(stages),
        "few_pairs": any(found.headline == "slope" for stage in stages if (found := stage.summary.boundary)),
        "recommended": _recommended(stages),
        "depths": tables.depth_tables(stages, metric),
        "best_of": tables.length_table("Best of 4: top-1 by length", best_of, TOP1.name, chance=True),
        "best_of_overall": tables.overall_table("Best of 4, all lengths together", best_of),
        "pointwise": tables.length_table(
            "Pairs told apart by scores for single responses: pair accuracy by length",
            data.pointwise,
            PAIR_ACCURACY.name,
        ),
        "browser": browser([*stages, *best_of]),
        "outcomes": tables.outcome_table(data),
        "runs": data.runs,
        "repeat": [_command(run) for run in _given(data)],
        "seconds": {
            name.replace("_", " "): wording.seconds(spent)
            for name, spent in (data.demo.seconds if data.demo else {}).items()
        },
        "version": __version__,
        "style": style_sheet() + _asset("page.css"),
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }


def _title(data: ReportData) -> str:
    if data.demo is not None:
        return f"How far into a context the judgment reaches: the demo, seed {data.demo.seed}"
    if any(stage.summary.boundary for stage in data.stages):
        return "How far into a context the judgment reaches"
    return "How good the judgment is" if data.stages else "Training"


def _families(data: ReportData) -> list[str]:
    """The families of a demo's stages, in reading order; one without a name for all other runs."""
    named = [stage.family for stage in data.stages] + [run.family for run in data.trained]
    return list(dict.fromkeys(named))


def _family(data: ReportData, family: str, number: int, metric: str) -> dict[str, Any]:
    """What the template prints of a family: its figures, what its stages mean, and its tables."""
    from longrm.report import figures

    stages = [stage for stage in data.stages if stage.family == family]
    trained = [run for run in data.trained if run.family == family]
    suffix = f"-{number + 1}" if number else ""
    title = f"{family}. " if len(_families(data)) > 1 else ""
    curves = [figures.accuracy(stages, metric, width, suffix) for width in (figures.WIDE, figures.NARROW)]
    known = dict(STAGES.values()) if data.demo is not None else {}
    measured = metric_of(metric).title.capitalize()
    return {
        "title": f"{title}{measured} against context length",
        "statements": findings.statements(replace(data, stages=tuple(stages))),
        "finding": findings.judges(stages),
        "stages": stages,
        "accuracy": [figure for figure in curves if figure],
        "meanings": [(stage, known.get(stage.label, "")) for stage in stages] if known else [],
        "by_length": tables.length_table(f"{measured} by length", stages, metric),
        "boundary": tables.boundary_table(f"{title}Context boundary, in tokens, with 95% intervals", stages),
        "overall": tables.overall_table(
            f"{title}Every metric, with 95% intervals, and what chance would earn", stages
        ),
        "trained": trained,
        "training": figures.training(trained, suffix) if trained else [],
        "training_table": tables.training_table(
            f"{title}Training; loss and accuracy are means over the last 20 steps", trained
        )
        if trained
        else None,
    }


def _thresholds(stages: Sequence[EvaluatedModel]) -> str:
    levels = sorted({stage.summary.boundary.tau for stage in stages if stage.summary.boundary})
    return " or ".join(wording.level(level) for level in levels)


def _about_data(stages: Sequence[EvaluatedModel]) -> list[str]:
    """What must be known of the data: once for all models that judged the same."""
    wrong = dict.fromkeys(line for stage in stages for line in findings.wrong_data(stage.summary))
    return [line for line in (findings.different_data(stages), *wrong) if line]


def _recommended(stages: Sequence[EvaluatedModel]) -> str:
    """What the recommended numbers of comparisons are good for; empty where there are none."""
    found = next((s.summary.recommended for s in stages if s.summary.recommended), None)
    if found is None:
        return ""
    return f"a judge that is {100 * found.difference:g} points better or worse in {100 * found.power:g}% of cases"


def _given(data: ReportData) -> tuple[ReportedRun, ...]:
    """The folders that the report was asked about; a demo's parts come with it."""
    return data.runs[:1] if data.demo is not None else data.runs


def _command(run: ReportedRun) -> str:
    if run.manifest["kind"] != "demo":
        return run.command("NEW_FOLDER")
    taken = "".join(f" --{name}" for name in ("generative", "controls") if run.settings.get(name))
    return f"longrm demo --out NEW_FOLDER --seed {shlex.quote(str(run.settings.get('seed', 0)))}{taken}"


def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _asset(name: str) -> str:
    return (files("longrm.report") / name).read_text(encoding="utf-8")


def _write_figures(figures: Sequence["Figure"], folder: Path) -> None:
    for figure in figures:
        write_file(folder / f"{figure.name}.svg", figure.svg)
        write_file(folder / f"{figure.name}.png", figure.png())
