"""Reads run folders into the models and training runs that the report shows."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from longrm import reading
from longrm.errors import RunError
from longrm.evaluation.compare import RunComparison, compare_two
from longrm.evaluation.metrics import PAIR_ACCURACY, EvaluationMetric, metric_of
from longrm.evaluation.read_run import COMMANDS, Run, open_runs
from longrm.evaluation.summary_schema import (
    AttributionSummary,
    DemoSummary,
    EvaluationSummary,
    TrainingSummary,
)
from longrm.reading import short_name
from longrm.report.formatting import Style, defined, shortened_apart
from longrm.runs.folder import MANIFEST
from longrm.runs.logs import Log
from longrm.runs.records import Estimate, StepRecord, TimingRecord

STAGES: dict[str, tuple[str, str]] = {
    "untrained": (
        "untrained",
        "before any preference was seen: random, except for attention heads that look back and match equal words",
    ),
    "unstructured": ("unstructured", "trained as short, but from random weights without such heads"),
    "short": ("short", "trained on short contexts only"),
    "control": (
        "control",
        "short, then more short contexts, with the same RoPE theta, steps, tokens and optimizer as long",
    ),
    "long": ("long", "short, then contexts that grow from short to long"),
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

AT_CHANCE = ("untrained", "unstructured")
"""The stages that are expected to guess."""

DISCRIMINATIVE, GENERATIVE = "Discriminative reward models", "Generative reward models"
"""The two families of a demo's stages."""

STEPS, TIMING, EVALUATIONS = "steps.jsonl", "timing.jsonl", "evaluations"
_LONGEST_LABEL = 40  # characters, for the head of a table row
_RUN_STYLES = (3, 1, 2, 4, 5, 6, 7, 0)  # evaluation runs take gray, the color of `untrained`, last
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Model:
    """An evaluated model."""

    label: str  # its name on the page
    style: Style
    summary: EvaluationSummary
    run: Run | None = None  # of its judgments; None if the folder of a demo's stage is gone
    family: str = ""  # of a demo's stage
    # With the report's first run, on the comparisons that both judged; None of that run itself, of a demo's stages, and
    # without such comparisons
    compared: RunComparison | None = None
    attributions: list[Run] = field(default_factory=list)  # of its judgments

    def by_length(self, metric: str) -> dict[int, Estimate]:
        """The metric at each length where it is defined, shortest first."""
        rows = {int(length): row for length, row in self.summary.metrics.by_length.items()}
        return {length: row[metric] for length, row in sorted(rows.items()) if defined(row.get(metric))}

    def by_depth(self, length: str, metric: str) -> dict[str, Estimate]:
        """The metric at each depth where it is defined, for contexts of one length."""
        rows = self.summary.metrics.by_length_and_depth[length]
        return {depth: row[metric] for depth, row in sorted(rows.items()) if defined(row.get(metric))}

    @property
    def unanswered(self) -> list[int]:
        """The lengths without any answer, shortest first."""
        return sorted(int(n) for n, part in self.summary.missing.by_length.items() if not part.answered)


@dataclass(frozen=True, slots=True)
class Training:
    """A training run: its steps, the time of each, its evaluations, and the family of a demo's stage."""

    label: str
    style: Style
    run: Run
    steps: Sequence[StepRecord]
    timing: Sequence[TimingRecord]
    held_out: Mapping[int, Estimate]  # the metric of its evaluations, by step
    family: str = ""

    @property
    def summary(self) -> TrainingSummary:
        """The run's summary."""
        assert isinstance(self.run.summary, TrainingSummary), "its kind says so"
        return self.run.summary

    @property
    def held_out_metric(self) -> EvaluationMetric | None:
        """The metric of its evaluations; None if there was none."""
        evaluations = self.summary.evaluations
        return None if evaluations is None else metric_of(evaluations.metric)


@dataclass(slots=True)
class ReportData:
    """Everything that a report shows, in the order of the page."""

    runs: list[Run]
    models: list[Model] = field(default_factory=list)  # a demo's evaluations on pairs, or evaluation runs
    best_of: list[Model] = field(default_factory=list)  # a demo's evaluations on best-of-4
    pointwise: list[Model] = field(default_factory=list)  # a demo's, on pairs by scores for single responses
    trained: list[Training] = field(default_factory=list)
    demo: DemoSummary | None = None

    @property
    def families(self) -> list[str]:
        """The families of a demo's stages, in the order of the page; other runs have one without a name."""
        return list(
            dict.fromkeys([*(one.family for one in self.models), *(one.family for one in self.trained)])
        )

    @property
    def metric(self) -> str:
        """The metric of the models' boundaries; pair accuracy, which all have, if they differ."""
        metrics = {model.summary.boundary.metric for model in self.models if model.summary.boundary}
        return metrics.pop() if len(metrics) == 1 else PAIR_ACCURACY.name


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
    runs = open_runs(list({Path(folder).resolve(): folder for folder in folders}.values()))
    for run in runs:
        if run.kind not in COMMANDS:
            kinds = ", ".join(COMMANDS)
            raise RunError(
                f"{run.path} is a run of kind {reading.short(run.kind)}; a report shows {kinds} runs"
            )
    finished = [run for run in runs if run.is_finished]
    for run in runs if finished else ():
        if run not in finished:
            _logger.warning(
                "left out of the report: %s is not finished; continue it with: %s", run.path, run.command()
            )
    attributions = [run for run in finished or runs if run.kind == "attribution"]
    runs = [run for run in finished or runs if run not in attributions]
    demos = [run for run in runs if run.kind == "demo"]
    if demos and len(runs) > 1:
        raise RunError(f"{demos[0].path} is a demo, which is reported alone; drop the other folders")
    data = _read_demo(demos[0]) if demos else _read_runs(runs)
    _add_attributions(data, attributions)
    return data


def _read_runs(runs: Sequence[Run]) -> ReportData:
    data = ReportData(list(runs))
    short = shortened_apart([run.name for run in runs], _LONGEST_LABEL)
    labels = {run: _folder_and_model(run) for run in runs if run.kind == "evaluation"}
    for run in runs:
        if run.kind == "evaluation":
            turn, place = divmod(len(data.models), len(_RUN_STYLES))
            label = labels[run]
            if len(label) > _LONGEST_LABEL or list(labels.values()).count(label) > 1:
                label = short[run.name]  # runs have different names
            style = Style.number(_RUN_STYLES[place] + 8 * turn)
            data.models.append(Model(label, style, run.evaluation, run))
        else:
            style = Style.number(len(data.trained) + 3)
            data.trained.append(_training(run, short[run.name], style))
    for model in data.models[1:]:
        first, other = data.models[0].run, model.run
        assert first is not None
        assert other is not None
        try:
            model.compared = compare_two(first, other)
        except RunError as error:  # no comparison is in both
            _logger.info("not compared: %s", error)
    return data


def _folder_and_model(run: Run) -> str:
    """The name of a run's folder, and of its model unless that is the same."""
    folder, model = run.path.resolve().name, short_name(run.evaluation.model)
    return folder if folder == model else f"{folder} · {model}"


def _training(run: Run, label: str, style: Style, family: str = "") -> Training:
    assert isinstance(run.summary, TrainingSummary), "its kind says so"
    steps, timing = Log(run.path / STEPS, StepRecord), Log(run.path / TIMING, TimingRecord)
    held_out = {}
    if (evaluated := run.summary.evaluations) is not None:
        for step, value in evaluated.values.items():
            held_out[int(step)] = Estimate(value, None, None, 0, 0)
            if (folder := run.path / EVALUATIONS / step).is_dir():  # it may have been removed
                held_out[int(step)] = Run(folder).evaluation.metrics.overall[evaluated.metric]
    return Training(label, style, run, list(steps), list(timing), held_out, family)


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

    names = {*summary.stages, *(path.parent.name for path in run.path.glob(f"training/*/{MANIFEST}"))}
    for name in sorted(names, key=list(STAGES).index):
        label, family = STAGES[name][0], GENERATIVE if name.startswith("generative_") else DISCRIMINATIVE
        style = Style.number(list(STAGES).index(name))
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
                f"{run.path} explains judgments of {reading.short(run.summary.model)}: add an evaluation of that "
                f"model, or write a separate page: {run.command()} --html FILE"
            )
        for model in explained:
            model.attributions.append(run)
        data.runs.append(run)


def _resolved(model: str) -> str:
    """A model's name with its folder as an absolute path, so that spellings of one folder compare equal."""
    kind, colon, place = model.rpartition(":")
    return f"{kind}{colon}{Path(place).resolve()}" if Path(place).exists() else model
