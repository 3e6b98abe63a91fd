"""A run folder as one object: for notebooks, reports, comparisons, listings, merges of shards and model cards."""

import shlex
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from longrm import reading
from longrm.errors import RunError
from longrm.evaluation.summary_schema import EvaluationSummary, RunSummary, StepSummary, load_summary
from longrm.evaluation.table import JudgmentTable
from longrm.runs.folder import CONFIG, SUMMARY, read_manifest, trained_model
from longrm.runs.judgments import Judgments
from longrm.runs.logs import EXAMPLES, STEPS, TRAJECTORIES, Log
from longrm.runs.records import ExampleRecord, StepRecord, TrajectoryRecord
from longrm.runs.scratch import TemporaryFolder

if TYPE_CHECKING:  # pandas takes half a second to import
    import pandas as pd

COMMANDS = {
    "evaluation": "longrm evaluate",
    "step evaluation": "longrm evaluate",
    "criteria evaluation": "longrm evaluate",
    "training": "longrm train",
    "attribution": "longrm attribute",
}
"""The command that makes a run of each kind that has a summary (see `RunSummary`)."""


class Run:
    """A run folder of any kind. Opening it reads its manifest; everything else is read on first use, and kept.

    Attributes:
        path: The folder.
        name: The folder's name, or a label given by the caller.
        kept: What the folder needs, such as a temporary folder, which is removed with the run.
        manifest: Contents of `manifest.json`: kind, versions, commits of models and data.

    Raises:
        RunError: The folder does not exist or is not a run. Every attribute raises it where its file is missing (for
            `summary`: the run is not finished) or damaged.
    """

    # Draws the curve of an evaluation for a notebook: set by `longrm.reporting`, a higher layer.
    draw_curve: ClassVar[Callable[["Run"], str]] = staticmethod(lambda run: "")

    def __init__(self, path: str | Path, name: str | None = None, *, kept: object = None) -> None:
        self.path = Path(path)
        if self.path.is_file():
            raise RunError(f"{self.path} is a file; pass the folder of a run")
        self.manifest: dict[str, Any] = read_manifest(self.path)
        self.name = str(self.path.resolve().name) if name is None else name
        self.kept = kept

    @property
    def kind(self) -> str:
        """Kind of run: evaluation, training, attribution, scoring, "synthesis of ..." or demo."""
        return str(self.manifest["kind"])

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The resolved settings: contents of `config.toml`."""
        return reading.read_toml(self.path / CONFIG, RunError)

    @property
    def is_finished(self) -> bool:
        """Whether the run has a summary. It may still be incomplete: see `summary.complete`."""
        return (self.path / SUMMARY).exists()

    @cached_property
    def summary(self) -> RunSummary:
        """Contents of `summary.json`."""
        if not self.is_finished:
            raise RunError(f"{self.path} is not finished; continue it with: {self.command()}")
        summary = load_summary(self.path)
        if summary.kind != self.kind:
            raise RunError(
                f"{self.path / SUMMARY} is of kind '{summary.kind}', but the run is of kind '{self.kind}'"
            )
        return summary

    @property
    def evaluation(self) -> EvaluationSummary:
        """The summary of a finished evaluation; `RunError` for any other kind of run."""
        if self.kind != "evaluation":
            raise RunError(
                f"{self.path} is a run of kind {reading.short(self.kind)}, not an evaluation of comparisons"
            )
        assert isinstance(self.summary, EvaluationSummary), "by the kind of the run"
        return self.summary

    @cached_property
    def judgments(self) -> Judgments:
        """The judgments of an evaluation with their gold ranks, in the order of the benchmark."""
        return Judgments(self.path)

    @cached_property
    def trajectories(self) -> list[TrajectoryRecord]:
        """The trajectories of an evaluation of steps, with their scores and labels, in the order of the benchmark."""
        records = Log(self.path / TRAJECTORIES, TrajectoryRecord)
        return list({record.id: record for record in records}.values())  # one judged again counts once

    @cached_property
    def table(self) -> JudgmentTable:
        """The judgments as columns, in the same order."""
        return JudgmentTable.of(self.judgments)

    @cached_property
    def examples(self) -> dict[str, ExampleRecord]:
        """The comparisons that an evaluation keeps in full, by id."""
        return {example.id: example for example in Log(self.path / EXAMPLES, ExampleRecord)}

    @cached_property
    def items(self) -> "pd.DataFrame":
        """One row per comparison of an evaluation; docs/runs.md describes the columns."""
        from longrm.evaluation.items import read_items

        return read_items(self)

    def to_pandas(self) -> "pd.DataFrame":
        """The same as `items`, under the name that data libraries use."""
        return self.items

    @property
    def model(self) -> str:
        """The folder of a training's model, for `longrm.load`, `evaluate` and `train`."""
        return str(trained_model(self.path))

    @cached_property
    def steps(self) -> "pd.DataFrame":
        """One row per optimizer step of a training: loss, accuracy, learning rate and what else it logs."""
        import pandas as pd

        records = [asdict(record) for record in Log(self.path / STEPS, StepRecord)]
        return pd.DataFrame([record | record.pop("losses") for record in records])

    def command(self, out: str | Path | None = None) -> str:
        """The shell command that repeats this run into `out`; by default into its own folder, which continues it."""
        target = shlex.quote(str(self.path if out is None else out))
        words = COMMANDS.get(self.kind)
        if words is None:
            return "the command that started it"
        if self.kind == "training":
            words += " " + str(self.settings.get("objective", "bradley_terry")).replace("_", "-")
        return f"{words} --config {shlex.quote(str(self.path / CONFIG))} --out {target}"

    def _judged(self) -> EvaluationSummary | StepSummary | None:
        """The summary of a finished evaluation, of comparisons or of trajectories."""
        if not (self.is_finished and self.kind in ("evaluation", "step evaluation")):
            return None
        assert isinstance(self.summary, EvaluationSummary | StepSummary), "by the kind of the run"
        return self.summary

    def __repr__(self) -> str:
        if (summary := self._judged()) is None:
            return f"<{self.path}: {self.kind}{'' if self.is_finished else ', not finished'}>"
        accuracy = summary.accuracies.get("all")
        value = "undefined" if accuracy is None or accuracy.value is None else f"{100 * accuracy.value:.1f}%"
        return f"<{self.path}: {summary.model} on {summary.bench}, {summary.main_metric} {value}>"

    def _repr_html_(self) -> str:
        """Main accuracy by length with its 95% interval, as a curve and a table, for a notebook."""
        title = f"<p>{escape(repr(self))}</p>"
        if (summary := self._judged()) is None:
            return title
        import pandas as pd

        curve = Run.draw_curve(self) if isinstance(summary, EvaluationSummary) else ""
        rows = [{"tokens": part, **asdict(estimate)} for part, estimate in summary.accuracies.items()]
        table = pd.DataFrame(rows).to_html(index=False, float_format="{:.3f}".format, na_rep="")
        return f"{title}{curve}{table}"


def run_folder(out: str | Path | None) -> tuple[Path, TemporaryFolder | None]:
    """The folder of a run; without `out` a temporary one, with the object that must be kept as long as it is used."""
    if out is not None:
        return Path(out), None
    kept = TemporaryFolder()
    return kept.path, kept


def open_runs(runs: Sequence[Run | str | Path]) -> list[Run]:
    """Opens several runs, each named by its folder, or by its path as given where folders have the same name."""
    opened = [copy(run) if isinstance(run, Run) else Run(run) for run in runs]
    names = [run.name for run in opened]
    for given, run in zip(runs, opened, strict=True):
        if names.count(run.name) > 1:
            run.name = str(given.path if isinstance(given, Run) else given)
    return opened


def read_run(run: Run | str | Path) -> "pd.DataFrame":
    """Every comparison of a finished evaluation as one row of a data frame.

    Args:
        run: An evaluation, or its folder.

    Returns:
        The columns that docs/runs.md describes, as `pandas.read_parquet` reads them from `items.parquet`. Without that
        file they are computed from the logs. The mean of `correct` is the run's main metric.

    Raises:
        RunError: The folder is not a finished evaluation, or is damaged.
    """
    return (run if isinstance(run, Run) else Run(run)).items
