"""Reads run folders into the models and training runs that the report shows."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longrm import reading
from longrm.errors import RunError
from longrm.evaluation.run import COMMANDS, Run, open_runs
from longrm.evaluation.summaries import AttributionSummary, DemoSummary, EvaluationSummary, TrainingSummary
from longrm.reading import short_name
from longrm.report.formatting import Style, shortened_apart
from longrm.runs.folder import MANIFEST
from longrm.runs.logs import Log
from longrm.runs.records import Estimate, StepRecord, TimingRecord

STAGES: dict[str, tuple[str, str]] = {
    "untrained": ("untrained", "before any preference was seen"),
    "unstructured": ("unstructured", "as short, from an entirely random initialization"),
    "short": ("short", "trained on short contexts only"),
    "control": (
        "control",
        "short, then more short data, with the same RoPE theta, steps, tokens and optimizer as long",
    ),
    "long": ("long", "short, then short-to-long data"),
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


@dataclass(slots=True)
class Model:
    """An evaluated model.

    Attributes:
        label: Its name on the page.
        style: How it is drawn.
        summary: The summary of its evaluation.
        run: The run of its judgments; None if a demo's part is gone.
        family: The family of a demo's stage.
        attributions: Attribution runs of its judgments.
    """

    label: str
    style: Style
    summary: EvaluationSummary
    run: Run | None = None
    family: str = ""
    attributions: list[Run] = field(default_factory=list)

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

    runs: list[Run]
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
    runs = open_runs(folders)
    for run in runs:
        if run.kind not in COMMANDS:
            kinds = ", ".join(COMMANDS)
            raise RunError(
                f"{run.path} is a run of kind {reading.short(run.kind)}; a report shows {kinds} runs"
            )
    if finished := [run for run in runs if run.is_finished]:
        for run in runs:
            if not run.is_finished:
                _logger.warning(
                    "left out of the report: %s is not finished; continue it with: %s",
                    run.path,
                    run.command(),
                )
        runs = finished
    attributions = [run for run in runs if run.kind == "attribution"]
    runs = [run for run in runs if run not in attributions]
    demos = [run for run in runs if run.kind == "demo"]
    if demos and len(runs) > 1:
        raise RunError(f"{demos[0].path} is a demo, which is reported alone; drop the other folders")
    data = _read_demo(demos[0]) if demos else _read_runs(runs)
    _add_attributions(data, attributions)
    return data


def _read_runs(runs: Sequence[Run]) -> ReportData:
    data = ReportData(list(runs))
    short = shortened_apart([run.name for run in runs], _LONGEST_LABEL)
    for run in runs:
        match run.summary:
            case EvaluationSummary() as summary:
                turn, place = divmod(len(data.models), len(_RUN_STYLES))
                label = f"{run.name} · {short_name(summary.model)}"
                label = label if len(label) <= _LONGEST_LABEL else short[run.name]
                data.models.append(Model(label, Style(_RUN_STYLES[place] + 8 * turn), summary, run))
            case TrainingSummary():
                data.trained.append(_training(run, short[run.name], Style(len(data.trained) + 3)))
            case unknown:
                raise AssertionError(f"no report shows runs of the kind {unknown.kind!r}")
    return data


def _training(run: Run, label: str, style: Style, family: str = "") -> Training:
    assert isinstance(run.summary, TrainingSummary), "its kind says so"
    steps = list(Log(run.path / STEPS, StepRecord))
    if len(steps) != run.summary.steps:
        raise RunError(
            f"{run.path / STEPS} has {len(steps):,} steps, the summary counts {run.summary.steps:,}"
        )
    return Training(label, style, steps, list(Log(run.path / TIMING, TimingRecord)), family)


def _read_demo(run: Run) -> ReportData:
    summary = run.summary
    assert isinstance(summary, DemoSummary), "its kind says so"
    data = ReportData([run], demo=summary)
    exams = {"pairs": data.models, "best_of_4": data.best_of, "pointwise": data.pointwise}

    def opened(folder: Path) -> Run | None:
        if not folder.is_dir():
            return None
        data.runs.append(Run(folder))
        return data.runs[-1]

    def place(name: str) -> tuple[int, str]:
        return (list(STAGES).index(name) if name in STAGES else len(STAGES)), name

    names = {*summary.stages, *(path.parent.name for path in run.path.glob(f"training/*/{MANIFEST}"))}
    for number, name in enumerate(sorted(names, key=place)):
        label, family = stage_label(name), GENERATIVE if name.startswith("generative_") else DISCRIMINATIVE
        style = Style(place(name)[0] if name in STAGES else number)
        stage = summary.stages.get(name)  # None for a training that other stages start from
        for exam, models in exams.items():
            evaluation = stage if exam == "pairs" or stage is None else getattr(stage, exam)
            if evaluation is not None:
                part = opened(run.path / "stages" / name / exam)
                models.append(Model(label, style, evaluation, part, family))
        if trained := opened(run.path / "training" / name):
            data.trained.append(_training(trained, label, style, family))
    data.runs += [Run(path.parent) for path in sorted((run.path / "controls").glob(f"*/{MANIFEST}"))]
    return data


def _add_attributions(data: ReportData, runs: Sequence[Run]) -> None:
    """Gives every model the attribution runs of its judgments."""
    models: dict[str, list[Model]] = {}
    for model in (*data.models, *data.best_of, *data.pointwise):
        models.setdefault(_resolved(model.summary.model), []).append(model)
    for run in runs:
        assert isinstance(run.summary, AttributionSummary), "its kind says so"
        explained = models.get(_resolved(run.summary.model))
        if explained is None:
            raise RunError(
                f"{run.path} explains judgments of {reading.short(run.summary.model)}; name an evaluation of that "
                f"model too, or write a page of its own: {run.command()} --html FILE"
            )
        for model in explained:
            model.attributions.append(run)
        data.runs.append(run)


def _resolved(model: str) -> str:
    """A model's name with its folder as an absolute path, so that spellings of one folder compare equal."""
    kind, colon, place = model.rpartition(":")
    return f"{kind}{colon}{Path(place).resolve()}" if Path(place).exists() else model
