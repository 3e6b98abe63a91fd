"""How well models judge the steps of trajectories, and whole trajectories."""

from collections.abc import Callable, Mapping, Sequence

from longrm.evaluation.summary_schema import StepSummary
from longrm.reporting.formatting import (
    FEW_TERM,
    MISSING,
    boundary_estimate,
    boundary_interval,
    count,
    decimal,
    percent,
    short_length,
)
from longrm.reporting.load import ReportData, StepRun
from longrm.reporting.tables import Cell, Row, Section, Table, estimate_cell
from longrm.runs.records import Estimate

_METRICS = {
    "step_accuracy": "step accuracy",
    "first_error_accuracy": "first error",
    "auc": "AUC",
    "pair_accuracy": "right above wrong",
    "lowest_is_first_error": "lowest is first error",
    "macro_f1": "macro F1",
    "agent_accuracy": "agent",
    "recall_right": "right found",
    "recall_neutral": "neutral found",
    "recall_wrong": "wrong found",
    "brier": "Brier score",
    "ece": "calibration error",
    "accuracy": "accuracy",
    "precision": "precision",
    "recall": "recall",
    "best_of_n": "success of the best",
    "best_of_n_random": "of a random one",
    "best_of_n_oracle": "of the best possible",
}
_TERMS = {
    "step accuracy": "share of labeled steps with the right label; AgentProcessBench's StepAcc",
    "first error": "share of trajectories whose first wrong step is found, or that have none and none is named",
    "AUC": "area under the ROC curve, right steps (or successes) against wrong ones; 50% by chance",
    "right above wrong": "share of pairs of a right and a wrong step of one trajectory that are ordered rightly",
    "lowest is first error": "of trajectories with a wrong step, the share in which the first one has the lowest score",
    "threshold": "the score above which a step is taken for right; labels have none",
    "success of the best": "success rate of the trajectory of each task that has the highest score",
}


def steps(data: ReportData) -> Section | None:
    """Metrics over all labeled steps and in parts of them; None without an evaluation of trajectories."""
    runs = [run for group in data.groups for run in group.steps]
    if not runs:
        return None
    tables = [_counts(runs)]
    whole: Sequence[tuple[str, Callable[[StepSummary], Mapping[str, Estimate]]]] = (
        ("All labeled steps, with 95% intervals", lambda one: one.metrics),
        ("Whole trajectories with a known outcome", lambda one: one.success),
    )
    for caption, find in whole:
        if table := _table(caption, [(run.label, run, find(run.summary)) for run in runs], "model"):
            tables.append(table)
    for run in runs:
        name, one = (f"{run.label}: " if len(runs) > 1 else ""), run.summary
        for head, parts in (
            ("task", one.by_task),
            ("tokens in all", {short_length(int(length)): part for length, part in one.by_length.items()}),
            (
                "tokens up to the step",
                {short_length(int(length)): part for length, part in one.by_tokens.items()},
            ),
            ("fifth of the trajectory", one.by_position),
            ("rule without a model", one.baselines),
        ):
            rows = [(part, None, found) for part, found in parts.items()]
            if table := _table(f"{name}by {head}" if name else f"By {head}", rows, head, main=True):
                tables.append(table)
    return Section("Steps", tables=tables, terms=_TERMS | FEW_TERM)


def _counts(runs: Sequence[StepRun]) -> Table:
    rows = []
    for run in runs:
        one, boundary = run.summary, run.summary.boundary
        where = MISSING if boundary is None else boundary_estimate(boundary)
        cells = [
            Cell(count(one.trajectories), f"{one.groups:,} tasks"),
            Cell(count(one.steps)),
            Cell(where, "" if boundary is None else boundary_interval(boundary)),
            Cell(MISSING if one.threshold is None else f"{one.threshold:g}"),
        ]
        rows.append(Row(run.label, cells, run.style))
    columns = ["model", "trajectories", "labeled steps", "context boundary of pairs", "threshold"]
    return Table("Trajectories", columns, rows)


def _table(
    caption: str,
    rows: Sequence[tuple[str, StepRun | None, Mapping[str, Estimate]]],
    head: str,
    *,
    main: bool = False,
) -> Table | None:
    """A row for each model or part, and a column for each metric that any of them has."""
    names = [
        name
        for name in list(_METRICS)[: 4 if main else None]
        if any(_is_known(one.get(name)) for *_, one in rows)
    ]
    if not names:
        return None
    cells = [
        Row(
            label,
            [estimate_cell(found.get(name), decimal if name == "brier" else percent) for name in names],
            None if run is None else run.style,
        )
        for label, run, found in rows
    ]
    return Table(caption, [head, *(_METRICS[name] for name in names)], cells)


def _is_known(estimate: Estimate | None) -> bool:
    return estimate is not None and estimate.value is not None
