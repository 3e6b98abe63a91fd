"""Run folders become one self-contained HTML file; its figures are written next to it as SVG and PNG."""

import base64
import hashlib
import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from longrm.config import to_toml
from longrm.errors import require
from longrm.evaluation.read_run import Run
from longrm.reporting.finding import finding
from longrm.reporting.formatting import FEW_TERM, Style, asset, html_page, plural
from longrm.reporting.items import browser
from longrm.reporting.load import Model, ReportSettings, RunGroup, folder_and_model, load_report
from longrm.runs.folder import write_file
from longrm.types import Outcome

__all__ = ["ReportSettings", "RunGroup", "report"]
_logger = logging.getLogger(__name__)

SCRIPTS = ("texts", "context", "attribution", "item", "list", "page", "print")
"""The parts of the page's one script, in order: a later one uses names of earlier ones."""


def report(
    runs: Run | str | Path | Sequence[Run | str | Path],
    out: str | Path,
    settings: ReportSettings | None = None,
) -> None:
    """Writes a report about evaluations, trainings and attributions in any mix.

    The HTML file contains everything it needs and loads nothing. Its figures are also written as SVG and PNG into
    `<stem of out>-figures/`.

    Args:
        runs: Runs or their folders, one or several; with `settings.groups`, one more group.
        out: The HTML file. Equal runs give equal bytes.
        settings: Groups of labeled runs, their contrasts, and remarks.

    Raises:
        RunError: A folder is not a finished run, or a file cannot be written.
        MissingPackageError: The packages that draw the figures are not installed.
    """
    require("altair", "vl_convert", user="a report")
    from longrm.reporting.sections import SECTIONS  # here, because drawing needs the extra `report`

    out = Path(out)
    data = load_report([runs] if isinstance(runs, Run | str | Path) else runs, settings)
    sections = {name: found for name, make in SECTIONS.items() if (found := make(data))}
    folder = out.with_name(f"{out.stem}-figures")
    terms = {name: meaning for section in sections.values() for name, meaning in section.terms.items()}
    if data.models:
        terms |= FEW_TERM
    items = browser(data)
    labels = [*(model.label for model in data.models), *(run.label for run in data.trained)]
    for group in data.groups:
        labels += [*(run.label for run in group.steps), *(label for label, _ in group.criteria)]
    labels += map(folder_and_model, data.unjudged)
    title = data.settings.title or ", ".join(labels[:3])
    script = "\n".join(
        ['"use strict";\n(() => {', *(asset(f"reporting/scripts/{name}.js") for name in SCRIPTS), "})();\n"]
    )
    html = html_page(
        "reporting/page.html.j2",
        command="longrm report",
        title=title,
        heading=title,
        finding=finding(data),
        notes=data.settings.notes,
        incomplete=_incomplete(data.all_models),
        sections=sections,
        terms=terms,
        browser=items,
        runs=data.runs,
        settings=[(run, to_toml(run.settings)) for run in data.runs],
        repeat="\n".join(run.command("NEW_FOLDER") for run in data.runs),
        figures=folder.name if any(section.figures for section in sections.values()) else "",
        script=script,
        # The page's content security policy allows this one script only.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    for section in sections.values():
        for figure in section.figures:
            figure.write(folder)
    write_file(out, html)
    if items is not None and items["left_out"]:
        _logger.info("%d comparisons do not fit into %s in full", items["left_out"], out)


def _curve(run: Run) -> str:
    """The accuracy of one evaluation by length; empty without the packages that draw it."""
    if not (find_spec("altair") and find_spec("vl_convert")):
        return ""
    from longrm.reporting import charts

    model = Model(run.name, Style.number(3), run.evaluation, run)
    figure = charts.accuracy([model], run.evaluation.main_metric, charts.WIDE)
    return "" if figure is None else figure.unlinked


Run.draw_curve = staticmethod(_curve)


def _incomplete(models: Sequence[Model]) -> list[str]:
    """What is missing from a run: errors that a rerun retries, lengths without an answer, and parts of a benchmark."""
    lines = []
    for model in models:
        counts, problems = model.summary.counts, []
        if errors := counts.outcomes[Outcome.ERROR]:
            problems.append(f"{plural(errors, 'error')}{model.summary.retry}")
        if silent := model.unanswered:
            problems.append(f"no answer at {', '.join(f'{length:,}' for length in silent)} tokens")
        if counts.sampled_from is not None:
            problems.append(f"a sample (--limit) of {counts.sampled_from:,} comparisons")
        if model.summary.shard is not None:
            problems.append(f"shard {model.summary.shard} only")
        lines += [f"{model.label}: {problem}" for problem in problems]
    return lines
