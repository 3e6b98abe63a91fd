"""Reads run folders into the groups of models and training runs that the report shows."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from longrm import reading
from longrm.config import Config
from longrm.errors import RunError
from longrm.evaluation.compare import RunComparison, compare_two
from longrm.evaluation.metrics import PAIR_ACCURACY, EvaluationMetric, metric_of
from longrm.evaluation.read_run import COMMANDS, Run, open_runs
from longrm.evaluation.summary_schema import (
    AttributionSummary,
    CriteriaSummary,
    EvaluationSummary,
    StepSummary,
    TrainingSummary,
)
from longrm.reading import short_name
from longrm.reporting.formatting import Style, defined, shortened_apart
from longrm.runs.logs import STEPS, Log
from longrm.runs.records import Estimate, StepRecord, TimingRecord

TIMING, EVALUATIONS = "timing.jsonl", "evaluations"
_LONGEST_LABEL = 40  # characters, for the head of a table row
_STYLES = (3, 1, 2, 4, 5, 6, 7, 0)  # gray is the last color
_logger = logging.getLogger(__name__)


class RunGroup(Config):
    """Runs that share figures and tables.

    Attributes:
        title: Its name; may be empty in a report with one group.
        runs: Run folders by label. A label names the same model in every group.
        note: A remark on these runs.
        brief: Whether to show no more than accuracy by length and all metrics.
    """

    title: str = ""
    runs: Mapping[str, str] = Field({})
    note: str = ""
    brief: bool = False


class ReportSettings(Config):
    """How a report arranges runs: labels, groups and contrasts.

    Attributes:
        title: The title of the page; by default the first labels.
        notes: Remarks at the top of the page.
        groups: The runs.
        contrasts: Pairs of labels: in every group with both, the first one minus the second. The first pair is in the
            headline. By default every run of a group minus the group's first run.
        meanings: A description for each label.
    """

    title: str = ""
    notes: tuple[str, ...] = ()
    groups: tuple[RunGroup, ...] = ()
    contrasts: tuple[tuple[str, str], ...] = ()
    meanings: Mapping[str, str] = Field({})

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        labels = {label for group in self.groups for label in group.runs}
        titles = [group.title for group in self.groups]
        if len({*titles}) < len(titles):
            raise ValueError("groups have the same title")
        for label in (*(label for pair in self.contrasts for label in pair), *self.meanings):
            if label not in labels:
                raise ValueError(f"no run has the label {reading.short(label)}")
        return self

    @classmethod
    def read(cls, file: Path) -> Self:
        """Reads a TOML file; paths of runs are relative to its folder."""
        settings = cls.resolve(file)
        groups = [
            group.model_copy(
                update={"runs": {label: str(file.parent / run) for label, run in group.runs.items()}}
            )
            for group in settings.groups
        ]
        return settings.model_copy(update={"groups": tuple(groups)})


@dataclass(slots=True)
class Model:
    """An evaluated model."""

    label: str  # its name on the page, which no other model of the report has
    style: Style
    summary: EvaluationSummary
    run: Run
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
    """A training run: its steps, the time of each, and its evaluations."""

    label: str
    style: Style
    run: Run
    steps: Sequence[StepRecord]
    timing: Sequence[TimingRecord]
    held_out: Mapping[int, Estimate]  # the metric of its evaluations, by step

    @property
    def summary(self) -> TrainingSummary:
        """The run's summary."""
        assert isinstance(self.run.summary, TrainingSummary), "by the kind of the run"
        return self.run.summary

    @property
    def held_out_metric(self) -> EvaluationMetric | None:
        """The metric of its evaluations; None if there was none."""
        evaluations = self.summary.evaluations
        return None if evaluations is None else metric_of(evaluations.metric)


@dataclass(frozen=True, slots=True)
class StepRun:
    """A model whose judgment of steps was evaluated."""

    label: str
    style: Style
    summary: StepSummary


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two evaluations on the comparisons that both judged: `second` minus `first`."""

    first: Model
    second: Model
    found: RunComparison


@dataclass(slots=True)
class Group:
    """The runs of a `RunGroup`, in its order."""

    given: RunGroup
    models: list[Model] = field(default_factory=list)
    trained: list[Training] = field(default_factory=list)
    steps: list[StepRun] = field(default_factory=list)
    criteria: list[tuple[str, CriteriaSummary]] = field(default_factory=list)  # with the runs' labels
    contrasts: list[Contrast] = field(default_factory=list)

    @property
    def metric(self) -> str:
        """The metric of the models' boundaries; pair accuracy, which all have, if they differ."""
        metrics = {model.summary.boundary.metric for model in self.models if model.summary.boundary}
        return metrics.pop() if len(metrics) == 1 else PAIR_ACCURACY.name


@dataclass(slots=True)
class ReportData:
    """Everything that a report shows, in the order of the page."""

    settings: ReportSettings
    runs: list[Run] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    unjudged: list[Run] = field(default_factory=list)  # attributions of models that no run here evaluates

    @property
    def full(self) -> list[Group]:
        """The groups of models that every section shows."""
        return [group for group in self.groups if group.models and not group.given.brief]

    @property
    def models(self) -> list[Model]:
        """The models of these groups."""
        return [model for group in self.full for model in group.models]

    @property
    def all_models(self) -> list[Model]:
        """The models of all groups."""
        return [model for group in self.groups for model in group.models]

    @property
    def trained(self) -> list[Training]:
        """The training runs of all groups."""
        return [training for group in self.groups for training in group.trained]

    @property
    def attributions(self) -> list[Run]:
        """All attribution runs."""
        return [run for run in self.runs if run.kind == "attribution"]

    def caption(self, group: Group, text: str) -> str:
        """A caption for a figure or table of a group: with its title, if there are several groups."""
        title = group.given.title
        return f"{title}. {text}" if title and (group.given.brief or len(self.full) > 1) else text


def load_report(given_runs: Sequence[Run | str | Path], settings: ReportSettings | None = None) -> ReportData:
    """Reads evaluation and training runs, and attributions of the models that these evaluate.

    The runs in `given_runs` become the last group. Unfinished ones are left out with a warning if others are finished.

    Raises:
        RunError: A folder is not a finished run.
    """
    data = ReportData(settings or ReportSettings())
    groups = [
        (group, {label: Run(folder) for label, folder in group.runs.items()})
        for group in data.settings.groups
    ]
    folders = [one.path if isinstance(one, Run) else Path(one) for one in given_runs]
    different = {folder.resolve(): one for folder, one in zip(folders, given_runs, strict=True)}
    runs = open_runs(list(different.values()))
    for run in (*(run for _, opened in groups for run in opened.values()), *runs):
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
    if others := [run for run in finished or runs if run not in attributions]:
        groups.append((RunGroup(title="Other runs" if groups else ""), _labeled(others)))
    if not groups and not attributions:
        raise RunError("a report needs at least one run folder")
    styles: dict[str, Style] = {}
    taken: set[str] = set()
    for given, opened in groups:
        group = Group(given)
        data.groups.append(group)
        models: dict[str, Model] = {}
        for label, run in opened.items():
            # A label keeps its color and dashes in every group, so that readers find a model again.
            turn, place = divmod(len(styles), len(_STYLES))
            style = styles.setdefault(label, Style.number(_STYLES[place] + 8 * turn))
            if run.kind == "training":
                group.trained.append(_training(run, label, style))
                continue
            if isinstance(run.summary, StepSummary):
                group.steps.append(StepRun(label, style, run.summary))
                continue
            if isinstance(run.summary, CriteriaSummary):
                group.criteria.append((label, run.summary))
                continue
            # Links into the browser of comparisons filter by the model's name, which must therefore be unique.
            name = label if label not in taken else f"{label}, {given.title[:1].lower()}{given.title[1:]}"
            taken.add(name)
            models[label] = Model(name, style, run.evaluation, run)
        group.models += models.values()
        data.runs += opened.values()
        # In reverse, since the last run is usually the one that the others lead to, and the first contrast is shown.
        default = [(label, next(iter(models))) for label in reversed(list(models)[1:])]
        for second, first in data.settings.contrasts or default:
            if first not in models or second not in models:
                continue
            try:
                found = compare_two(models[first].run, models[second].run)
            except RunError as error:  # no comparison is in both
                _logger.info("not compared: %s", error)
            else:
                group.contrasts.append(Contrast(models[first], models[second], found))
    _add_attributions(data, attributions)
    return data


def _labeled(runs: Sequence[Run]) -> dict[str, Run]:
    """Runs by label: the folder of an evaluation and its model, or the shortened name of the run."""
    short = shortened_apart([run.name for run in runs], _LONGEST_LABEL)
    labels = {run: folder_and_model(run) for run in runs if run.kind.endswith("evaluation")}
    found = {}
    for run in runs:
        label = labels.get(run, "")
        if not label or len(label) > _LONGEST_LABEL or list(labels.values()).count(label) > 1:
            label = short[run.name]  # runs have different names
        found[label] = run
    return found


def folder_and_model(run: Run) -> str:
    """The name of a run's folder, and of its model unless that is the same."""
    assert not isinstance(run.summary, TrainingSummary), "by the kind of the run"
    folder, model = run.path.resolve().name, short_name(run.summary.model)
    return folder if folder == model else f"{folder} · {model}"


def _training(run: Run, label: str, style: Style) -> Training:
    assert isinstance(run.summary, TrainingSummary), "by the kind of the run"
    steps, timing = Log(run.path / STEPS, StepRecord), Log(run.path / TIMING, TimingRecord)
    held_out = {}
    if (evaluated := run.summary.evaluations) is not None:
        for step, value in evaluated.values.items():
            held_out[int(step)] = Estimate(value, None, None, 0, 0)
            if (folder := run.path / EVALUATIONS / step).is_dir():  # it may have been removed
                held_out[int(step)] = Run(folder).evaluation.metrics.overall[evaluated.metric]
    return Training(label, style, run, list(steps), list(timing), held_out)


def _add_attributions(data: ReportData, runs: Sequence[Run]) -> None:
    """Gives every model the attribution runs of its judgments."""
    models: dict[str, list[Model]] = {}
    for model in data.all_models:
        models.setdefault(_resolved(model.summary.model), []).append(model)
    for run in runs:
        assert isinstance(run.summary, AttributionSummary), "by the kind of the run"
        explained = models.get(_resolved(run.summary.model), [])
        for model in explained:
            model.attributions.append(run)
        if not explained:
            data.unjudged.append(run)
        data.runs.append(run)


def _resolved(model: str) -> str:
    """A model's name with its folder as an absolute path, so that spellings of one folder compare equal."""
    kind, colon, place = model.rpartition(":")
    return f"{kind}{colon}{Path(place).resolve()}" if Path(place).exists() else model
