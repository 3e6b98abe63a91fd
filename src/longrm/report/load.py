"""Reads run folders into the models and training runs that the report shows."""

import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longrm import reading
from longrm.errors import RunError
from longrm.evaluation.summaries import (
    AttributionSummary,
    DemoSummary,
    EvaluationSummary,
    RunSummary,
    TrainingSummary,
)
from longrm.evaluation.summary_schema import load_summary
from longrm.reading import short_name
from longrm.report.formatting import Style, shortened_apart
from longrm.runs.folder import CONFIG, MANIFEST, SUMMARY, folder_labels, read_manifest
from longrm.runs.logs import Log
from longrm.runs.records import Estimate, StepRecord, TimingRecord

COMMANDS = {
    "evaluation": "longrm evaluate",
    "training": "longrm train",
    "demo": "longrm demo",
    "attribution": "longrm attribute",
}
"""The kinds of runs that a report shows, with the command that repeats one."""

STAGES: dict[str, tuple[str, str]] = {
    "untrained": ("untrained", "before any preference was seen"),
    "unstructured": ("unstructured", "as short, from an entirely random initialization"),
    "short": ("short", "trained on short contexts only"),
    "control": (
        "control",
        "short, then more short data, with the same RoPE theta, steps, tokens and optimizer as long",
    ),
    "long": ("long", "short, then short-to-long data"),
    "rescale_only": ("rescale only", "short, with the RoPE theta of long and no further training"),
    "long_without_rescale": ("long, no rescale", "as long, with the RoPE theta of short"),
    "shuffled_labels": ("shuffled labels", "as short, trained on random labels"),
    "generative_base": ("judge: base", "SFT on the text of records, before any judgment was seen"),
    "generative_short": ("judge: short", "judge: base, then SFT on judgments of short contexts"),
    "generative_rescale_only": (
        "judge: rescale only",
        "judge: short, with the RoPE theta of judge: long and no further training",
    ),
    "generative_long_alone": (
        "judge: long alone",
        "judge: short, then SFT on long contexts alone, with the RoPE theta of judge: long, for about its time",
    ),
    "generative_long": ("judge: long", "judge: short, then SFT on judgments of short-to-long contexts"),
    "generative_logo": ("judge: LOGO", "judge: long, then LOGO on consensus judgments"),
}
"""The stages of a demo in the order of the page: name -> (label, meaning)."""

DISCRIMINATIVE, GENERATIVE = "Discriminative reward models", "Generative reward models"
"""The two families of a demo's stages."""

STEPS, TIMING = "steps.jsonl", "timing.jsonl"
_LONGEST_LABEL = 40  # characters, for the head of a table row
_RUN_STYLES = (3, 1, 2, 4, 5, 6, 7, 0)  # evaluation runs take gray, the color of `untrained`, last
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A run folder: its manifest, and its settings as text and as values."""

    folder: Path
    manifest: Mapping[str, Any]
    written: str
    settings: Mapping[str, Any]

    def command(self, out: Path | str) -> str:
        """The shell command that runs this again into `out`; into its own folder, it continues the run."""
        kind, settings = self.manifest["kind"], self.settings
        words, target = COMMANDS[kind], shlex.quote(str(out))
        if kind == "demo":
            flags = "".join(f" --{name}" for name in ("generative", "controls") if settings.get(name))
            return f"{words} --out {target} --seed {shlex.quote(str(settings.get('seed', 0)))}{flags}"
        if kind == "training":
            words += " " + str(settings.get("objective", "bradley_terry")).replace("_", "-")
        return f"{words} --config {shlex.quote(str(self.folder / CONFIG))} --out {target}"


@dataclass(slots=True)
class Model:
    """An evaluated model.

    Attributes:
        label: Its name on the page.
        style: How it is drawn.
        summary: The summary of its evaluation.
        folder: The folder of its judgments; None if it is gone.
        family: The family of a demo's stage.
        attributions: Attribution runs of its judgments: folder, name and summary.
    """

    label: str
    style: Style
    summary: EvaluationSummary
    folder: Path | None = None
    family: str = ""
    attributions: list[tuple[Path, str, AttributionSummary]] = field(default_factory=list)

    def by_length(self, metric: str) -> dict[int, Estimate]:
        """The metric at each length where it is defined, shortest first."""
        rows = {int(length): row for length, row in self.summary.metrics.by_length.items()}
        return _defined(rows, metric)

    def by_depth(self, length: str, metric: str) -> dict[str, Estimate]:
        """The metric at each depth where it is defined, for contexts of one length."""
        return _defined(self.summary.metrics.by_length_and_depth[length], metric)

    @property
    def unanswered(self) -> list[int]:
        """The lengths without any answer, shortest first."""
        return sorted(int(n) for n, part in self.summary.missing.by_length.items() if not part.answered)


@dataclass(frozen=True, slots=True)
class Training:
    """A training run: its steps, the time of each, and the family of a demo's stage."""

    label: str
    style: Style
    steps: Sequence[StepRecord]
    timing: Sequence[TimingRecord]
    family: str = ""


@dataclass(slots=True)
class ReportData:
    """Everything that a report is made from, in the order of the page.

    Attributes:
        runs: Every run folder.
        models: Evaluations: a demo's on pairs, or those of evaluation runs.
        best_of: A demo's evaluations on best-of-4.
        pointwise: A demo's evaluations on pairs, by scores for single responses.
        trained: Training runs.
        demo: The demo's summary, if this is one.
    """

    runs: list[RunFiles]
    models: list[Model] = field(default_factory=list)
    best_of: list[Model] = field(default_factory=list)
    pointwise: list[Model] = field(default_factory=list)
    trained: list[Training] = field(default_factory=list)
    demo: DemoSummary | None = None


def _defined(rows: Mapping[Any, Mapping[str, Estimate]], metric: str) -> dict[Any, Estimate]:
    return {
        key: row[metric]
        for key, row in sorted(rows.items())
        if metric in row and row[metric].value is not None
    }


def stage_label(name: str) -> str:
    """The report's name of a demo's stage."""
    return STAGES[name][0] if name in STAGES else name.replace("_", " ")


def load_report(folders: Sequence[Path]) -> ReportData:
    """Reads evaluation and training runs, or one demo; and attributions of the models that these evaluate.

    Of several runs, unfinished ones are left out with a warning.

    Raises:
        RunError: A folder is not a finished run, a demo is combined with other runs, or an attribution is of a model
            that none of the runs evaluates.
    """
    if not folders:
        raise RunError("a report needs at least one run folder")
    runs = [_read_run(folder) for folder in folders]
    if finished := [run for run in runs if (run.folder / SUMMARY).exists()]:
        for run in runs:
            if run not in finished:
                _logger.warning(
                    "left out of the report: %s is not finished; continue it with: %s",
                    run.folder,
                    run.command(run.folder),
                )
        runs = finished
    attributions = [run for run in runs if run.manifest["kind"] == "attribution"]
    runs = [run for run in runs if run not in attributions]
    demos = [run for run in runs if run.manifest["kind"] == "demo"]
    if demos and len(runs) > 1:
        raise RunError(f"{demos[0].folder} is a demo, which is reported alone; drop the other folders")
    data = _read_demo(demos[0]) if demos else _read_runs(runs)
    _add_attributions(data, attributions)
    return data


def _read_run(folder: Path) -> RunFiles:
    manifest = read_manifest(folder)
    if manifest["kind"] not in COMMANDS:
        raise RunError(
            f"{folder} is a run of kind {reading.short(manifest['kind'])}; a report shows {', '.join(COMMANDS)} runs"
        )
    settings = reading.read_toml(folder / CONFIG, RunError)
    return RunFiles(folder, manifest, reading.read_text(folder / CONFIG, RunError), settings)


def _summary_of(run: RunFiles) -> RunSummary:
    if not os.path.lexists(run.folder / SUMMARY):
        raise RunError(f"{run.folder} is not finished; continue it with: {run.command(run.folder)}")
    summary = load_summary(run.folder)
    if summary.kind != run.manifest["kind"]:
        raise RunError(
            f"{run.folder}: {SUMMARY} is of kind '{summary.kind}', {MANIFEST} of '{run.manifest['kind']}'"
        )
    return summary


def _read_runs(runs: Sequence[RunFiles]) -> ReportData:
    data = ReportData(list(runs))
    names = folder_labels([run.folder for run in runs])
    short = shortened_apart(names, _LONGEST_LABEL)
    for run, name in zip(runs, names, strict=True):
        match _summary_of(run):
            case EvaluationSummary() as summary:
                turn, place = divmod(len(data.models), len(_RUN_STYLES))
                label = f"{name} · {short_name(summary.model)}"
                label = label if len(label) <= _LONGEST_LABEL else short[name]
                style = Style(_RUN_STYLES[place] + 8 * turn)
                data.models.append(Model(label, style, summary, run.folder))
            case TrainingSummary() as summary:
                data.trained.append(_training(run, summary, short[name], Style(len(data.trained) + 3)))
            case unknown:
                raise AssertionError(f"no report shows runs of the kind {unknown.kind!r}")
    return data


def _training(run: RunFiles, summary: RunSummary, label: str, style: Style, family: str = "") -> Training:
    assert isinstance(summary, TrainingSummary), "its manifest says so"
    steps = list(Log(run.folder / STEPS, StepRecord))
    if len(steps) != summary.steps:
        raise RunError(f"{run.folder / STEPS} has {len(steps):,} steps, {SUMMARY} counts {summary.steps:,}")
    return Training(label, style, steps, list(Log(run.folder / TIMING, TimingRecord)), family)


def _read_demo(run: RunFiles) -> ReportData:
    summary = _summary_of(run)
    assert isinstance(summary, DemoSummary), "its manifest says so"
    data = ReportData([run], demo=summary)
    exams = {"pairs": data.models, "best_of_4": data.best_of, "pointwise": data.pointwise}

    def place(name: str) -> tuple[int, str]:
        return (list(STAGES).index(name) if name in STAGES else len(STAGES)), name

    names = {*summary.stages, *(path.parent.name for path in run.folder.glob(f"training/*/{MANIFEST}"))}
    for number, name in enumerate(sorted(names, key=place)):
        label, family = stage_label(name), GENERATIVE if name.startswith("generative_") else DISCRIMINATIVE
        style = Style(place(name)[0] if name in STAGES else number)
        stage = summary.stages.get(name)  # None for a training that other stages start from
        for exam, models in exams.items():
            evaluation = stage if exam == "pairs" or stage is None else getattr(stage, exam)
            if evaluation is None:
                continue
            folder = run.folder / "stages" / name / exam
            if folder.is_dir():
                data.runs.append(_read_run(folder))
            models.append(Model(label, style, evaluation, folder if folder.is_dir() else None, family))
        folder = run.folder / "training" / name
        if folder.is_dir():
            data.runs.append(_read_run(folder))
            data.trained.append(_training(data.runs[-1], _summary_of(data.runs[-1]), label, style, family))
    data.runs += [_read_run(path.parent) for path in sorted((run.folder / "controls").glob(f"*/{MANIFEST}"))]
    return data


def _add_attributions(data: ReportData, runs: Sequence[RunFiles]) -> None:
    """Gives every model the attribution runs of its judgments."""
    models: dict[str, list[Model]] = {}
    for model in (*data.models, *data.best_of, *data.pointwise):
        models.setdefault(_resolved(model.summary.model), []).append(model)
    for run, name in zip(runs, folder_labels([run.folder for run in runs]), strict=True):
        summary = _summary_of(run)
        assert isinstance(summary, AttributionSummary), "its manifest says so"
        if _resolved(summary.model) not in models:
            page = shlex.join(["--config", str(run.folder / CONFIG), "--out", str(run.folder)])
            raise RunError(
                f"{run.folder} explains judgments of {reading.short(summary.model)}; name an evaluation of that model "
                f"too, or write a page of its own: longrm attribute {page} --html FILE"
            )
        for model in models[_resolved(summary.model)]:
            model.attributions.append((run.folder, name, summary))
        data.runs.append(run)


def _resolved(model: str) -> str:
    """A model's name with its folder as an absolute path, so that spellings of one folder compare equal."""
    kind, colon, place = model.rpartition(":")
    return f"{kind}{colon}{Path(place).resolve()}" if Path(place).exists() else model
