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
from longrm.report import findings, tables, wording
from longrm.report.examples import browser
from longrm.report.material import STAGES, Evaluated, Material, Run, read
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

    material = read(runs)
    metric = _metric(material)
    roads = [_road(material, name, number, metric) for number, name in enumerate(_roads(material))]
    heat = [figures.heat_map(stage, metric, number) for number, stage in enumerate(material.stages)]
    found = list(tables.differences(material.demo)) if material.demo is not None else []
    forest = figures.forest(found) if found else None
    themes = sections(material.stages)
    page = _page(material, metric) | {
        "sections": themes,
        "roads": roads,
        "heat": [figure for figure in heat if figure],
        "forest": forest,
        "points": max((figures.bin_size(len(run.steps)) for run in material.trained), default=1),
        "differences": tables.difference_table(found) if found else None,
    }
    folder = out.with_name(f"{out.stem}-figures")
    themed = [section.figure for section in themes]
    of_roads = [figure for road in roads for figure in (*road["accuracy"], *road["training"])]
    drawn = [figure for figure in [*of_roads, *heat, forest, *themed] if figure]
    html = _environment().get_template("template.html.j2").render(page, figures=folder.name)
    _write_figures(drawn, folder)
    write_file(out, html)


def _check_packages() -> None:
    for name in ("altair", "vl_convert"):
        if find_spec(name) is None:
            raise RunError(
                f"a report needs the package '{name}', which is not installed; pip install 'longrm[report]'"
            )


def _metric(material: Material) -> str:
    """What the stages' boundaries are about, where they agree; pair accuracy, which all have, where not."""
    named = {stage.summary["boundary"]["metric"] for stage in material.stages if stage.summary["boundary"]}
    return named.pop() if len(named) == 1 else "pair_accuracy"


def _page(material: Material, metric: str) -> dict[str, Any]:
    """What the template prints, apart from the figures."""
    stages, best_of = material.stages, material.best_of
    script = _asset("browser.js")
    return {
        "title": _title(material),
        "finding": findings.finding(material),
        "incomplete": findings.incomplete([*stages, *best_of, *material.pointwise]),
        "data": _about_data(stages),
        "demo": material.demo,
        "start": (material.demo or {}).get("notes", {}).get("start", ""),
        "metric": wording.METRIC_NAMES[metric],
        "tau": _taus(stages),
        "few_pairs": any((stage.summary["boundary"] or {}).get("headline") == "slope" for stage in stages),
        "recommended": _recommended(stages),
        "depths": tables.depth_tables(stages, metric),
        "best_of": tables.length_table("Best of 4: top-1 by length", best_of, "top1", chance=True),
        "best_of_overall": tables.overall_table("Best of 4, all lengths together", best_of),
        "pointwise": tables.length_table(
            "Pairs told apart by scores for single responses: pair accuracy by length",
            material.pointwise,
            "pair_accuracy",
        ),
        "browser": browser([*stages, *best_of]),
        "outcomes": tables.outcome_table(material),
        "runs": material.runs,
        "repeat": [_command(run) for run in _given(material)],
        "seconds": {
            name.replace("_", " "): wording.seconds(spent)
            for name, spent in (material.demo or {}).get("seconds", {}).items()
        },
        "version": __version__,
        "style": style_sheet() + _asset("report.css"),
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }


def _title(material: Material) -> str:
    if material.demo is not None:
        return f"How far into a context the judgment reaches: the demo, seed {material.demo['seed']}"
    if any(stage.summary["boundary"] for stage in material.stages):
        return "How far into a context the judgment reaches"
    return "How good the judgment is" if material.stages else "Training"


def _roads(material: Material) -> list[str]:
    """The roads of a demo, in reading order; one without a name for all other runs."""
    named = [stage.road for stage in material.stages] + [run.road for run in material.trained]
    return list(dict.fromkeys(named))


def _road(material: Material, road: str, number: int, metric: str) -> dict[str, Any]:
    """What the template prints of a road: its figures, what its stages mean, and its tables."""
    from longrm.report import figures

    stages = [stage for stage in material.stages if stage.road == road]
    trained = [run for run in material.trained if run.road == road]
    suffix = f"-{number + 1}" if number else ""
    title = f"{road}. " if len(_roads(material)) > 1 else ""
    curves = [figures.accuracy(stages, metric, width, suffix) for width in (figures.WIDE, figures.NARROW)]
    known = dict(STAGES.values()) if material.demo is not None else {}
    measured = wording.METRIC_NAMES[metric].capitalize()
    return {
        "title": f"{title}{measured} against context length",
        "told": findings.told(replace(material, stages=tuple(stages))),
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


def _taus(stages: Sequence[Evaluated]) -> str:
    levels = sorted({stage.summary["boundary"]["tau"] for stage in stages if stage.summary["boundary"]})
    return " or ".join(wording.level(tau) for tau in levels)


def _about_data(stages: Sequence[Evaluated]) -> list[str]:
    """What must be known of the data: once for all models that judged the same."""
    wrong = dict.fromkeys(line for stage in stages for line in findings.wrong_data(stage.summary))
    return [line for line in (findings.different_data(stages), *wrong) if line]


def _recommended(stages: Sequence[Evaluated]) -> str:
    """What the recommended numbers of comparisons are good for; empty where there are none."""
    found = next((s.summary["recommended"] for s in stages if s.summary["recommended"]), None)
    if found is None:
        return ""
    return f"a judge that is {100 * found['difference']:g} points better or worse in {100 * found['power']:g}% of cases"


def _given(material: Material) -> tuple[Run, ...]:
    """The folders that the report was asked about; a demo's parts come with it."""
    return material.runs[:1] if material.demo is not None else material.runs


def _command(run: Run) -> str:
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
