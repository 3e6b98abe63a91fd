"""Judges the steps of trajectories, resumably, and writes the results."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, combinations
from typing import Any

import numpy as np

from longrm.benchmarks import LoadedBenchmark
from longrm.benchmarks.benchmark import measure_with
from longrm.config import Config
from longrm.data.fields import length_and_depth
from longrm.errors import DataError
from longrm.evaluation import summary_schema as schema
from longrm.evaluation.context_boundary import boundary_of
from longrm.evaluation.read_run import Run
from longrm.evaluation.step_metrics import (
    RULES,
    StepTable,
    TrajectoryScore,
    agent_accuracy,
    outcome_metrics,
    step_metrics,
)
from longrm.evaluation.table import Bootstrap, JudgmentTable
from longrm.reward_models import RewardModel
from longrm.reward_models.recorded_steps import RecordedSteps
from longrm.runs.folder import RunFolder
from longrm.runs.logs import TRAJECTORIES
from longrm.runs.progress import Progress
from longrm.runs.records import JudgmentRecord, TrajectoryRecord
from longrm.runs.resumable import ResumableRun, Written, unique
from longrm.types import Judgment, Outcome, Trajectory, text_of

_logger = logging.getLogger(__name__)
LOGS: dict[str, type[Any]] = {TRAJECTORIES: TrajectoryRecord}
_BATCH, _BATCH_CHARACTERS = 16, 400_000


class StepSettings(Config):
    """How scores of steps are read.

    Attributes:
        threshold: The score above which a step is taken for right. By default 0 for logits and log-ratios; without one
            only ranks are measured. Labels have none.
        trajectory_score: The score of a whole trajectory: that of its "last" step, the "min" or the "mean" of all.
    """

    threshold: float | None = None
    trajectory_score: TrajectoryScore = "last"


def judge_trajectories(
    bench: LoadedBenchmark,
    model: RewardModel | RecordedSteps,
    run: ResumableRun,
    tokenizer: str | None,
    progress: Progress,
) -> list[str]:
    """Judges and logs the trajectories that have no answer yet; returns the ids of all, in order."""
    assert bench.trajectories is not None, "the caller has checked it"
    known = {record.id: record for record in run.read(TRAJECTORIES)}
    done = {name for name, record in known.items() if record.outcome is not Outcome.ERROR}
    recorded = model if isinstance(model, RecordedSteps) else None
    measure, order = measure_with(tokenizer), list[str]()
    total = bench.trajectories.total

    def work(batch: Sequence[Trajectory]) -> Written:
        if recorded is not None:
            judged = [recorded.judgment(one) for one in batch]
        else:
            assert isinstance(model, RewardModel), "the only other kind"
            judged = model.judge([one.query() for one in batch])
        return {TRAJECTORIES: [_record(*pair, measure) for pair in zip(batch, judged, strict=True)]}

    def batches() -> Iterator[list[Trajectory]]:
        batch, characters = list[Trajectory](), 0
        for one in unique(bench.trajectories or ()):
            if recorded is None and not one.metadata.get("has_text", True):
                continue  # the reader counts them
            if one.id in known and known[one.id].digest != _digest(one):
                raise DataError(
                    f"{bench.name}: the text or the gold of '{one.id}' differs from {TRAJECTORIES} of the run; choose "
                    "another --out"
                )
            order.append(one.id)
            batch.append(one)
            characters += sum(len(text_of(step)) for step in one.steps)
            if len(batch) == _BATCH or characters >= _BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
        if batch:
            yield batch

    if isinstance(model, RewardModel):
        model.on_progress = run.report
    run.run(
        batches(),
        work,
        {TRAJECTORIES: done},
        progress=lambda count: progress(f"judging {bench.name}", len(done) + count, total),
    )
    if isinstance(model, RewardModel):
        model.on_progress = RewardModel.on_progress
    if not order:
        raise DataError(
            f"{bench.name}: no trajectory has a text to judge; --recorded evaluates recorded labels"
        )
    return order


def _record(one: Trajectory, judged: Judgment, measure: Callable[[str], int]) -> TrajectoryRecord:
    has_text = one.metadata.get("has_text", True)
    sizes = (
        [measure(text_of(one.prompt)), *(measure(text_of(step)) for step in one.steps)] if has_text else []
    )
    return TrajectoryRecord(
        id=one.id,
        group=one.group,
        outcome=judged.outcome,
        scores=tuple(score if np.isfinite(score) else None for score in judged.scores),
        labels=one.labels,
        success=one.success,
        task=str(one.metadata.get("task", "")),
        length=length_and_depth(one).length,
        tokens=tuple(accumulate(sizes))[1:],
        characters=tuple(len(text_of(step[-1:])) for step in one.steps),
        agents=tuple(one.metadata.get("agents", ())),
        wrong_agent=str(one.metadata.get("wrong_agent", "")),
        explanation=judged.explanation,
        detail=judged.detail,
        cut=judged.cut,
        digest=_digest(one),
    )


def _digest(one: Trajectory) -> str:
    parts = [one.prompt, one.steps, one.labels, one.success, one.tools]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=dict).encode()).hexdigest()[:16]


def finish_steps(
    bench: LoadedBenchmark,
    model: RewardModel | RecordedSteps,
    folder: RunFolder,
    run: ResumableRun,
    settings: StepSettings,
    order: Sequence[str],
    accuracy_threshold: float | None,
    drawn: Bootstrap,
) -> None:
    """Puts the log in order and writes the summary."""
    run.arrange(TRAJECTORIES, order)
    records = Run(folder.path).trajectories
    if all(record.outcome is Outcome.ERROR for record in records):
        raise DataError(
            f"no trajectory of '{bench.name}' could be judged; the first, {records[0].id}: {records[0].detail}"
        )
    labels = Counter(label for record in records for label in record.labels)
    if labels[0.0] and min(label for label in labels if label is not None) == 0:
        _logger.warning(
            "%s: %d steps have the label 0, which is neutral, and none is labeled wrong; wrong steps are -1 or false",
            bench.name,
            labels[0.0],
        )
    folder.write_summary(
        summarize_steps(
            records,
            model,
            bench,
            settings,
            accuracy_threshold=accuracy_threshold,
            drawn=drawn,
        ).to_dict()
    )


def summarize_steps(
    records: Sequence[TrajectoryRecord],
    model: RewardModel | RecordedSteps,
    bench: LoadedBenchmark,
    settings: StepSettings,
    *,
    accuracy_threshold: float | None,
    drawn: Bootstrap,
) -> schema.StepSummary:
    """Counts and metrics with intervals of one model on one set of trajectories."""
    threshold = model.step_threshold if settings.threshold is None else settings.threshold
    table = StepTable.of(
        records,
        threshold,
        probabilities=model.scale == "logit" and threshold == 0 and model.step_threshold is not None,
        trajectory_score=settings.trajectory_score,
    )
    answered = any(record.scores for record in records)
    metrics = step_metrics(table, **drawn) if answered else {}
    if metrics and any(record.wrong_agent for record in records):
        metrics["agent_accuracy"] = agent_accuracy(table, **drawn)
    assert bench.trajectories is not None
    cuts = [record.cut.tokens for record in records if record.cut is not None]
    tasks = sorted({record.task for record in records} - {""})
    lengths = sorted({record.length for record in records if record.length is not None})
    return schema.StepSummary(
        model=model.name,
        bench=bench.name,
        complete=all(record.outcome is not Outcome.ERROR for record in records),
        trajectories=len(records),
        groups=len({record.group for record in records}),
        steps=int(table.row.size),
        outcomes=dict(Counter(record.outcome for record in records)),
        cut=schema.CutCounts(comparisons=len(cuts), tokens=sum(cuts)),
        findings={found.what: found.count for found in bench.trajectories.findings.values() if found.count},
        sampled_from=bench.trajectories.sampled_from,
        threshold=None if table.are_labels else threshold,
        metrics=metrics,
        by_task={
            task: step_metrics(table.where(task=task), **drawn)
            for task in (tasks if answered and len(tasks) > 1 else [])
        },
        by_length={
            str(length): step_metrics(table.where(length=length), **drawn)
            for length in (lengths if answered else [])
        },
        by_tokens={
            str(length): step_metrics(table, table.length == length, **drawn)
            for length in (np.unique(table.length[table.length >= 0]).tolist() if answered else [])
        },
        by_position={
            str(position + 1): step_metrics(table, table.position == position, **drawn)
            for position in (np.unique(table.position).tolist() if answered else [])
        },
        baselines=_baselines(table, **drawn) if answered and table.row.size else {},
        boundary=boundary_of(_pairs(records), threshold=accuracy_threshold, **drawn) if answered else None,
        success=outcome_metrics(table, **drawn) if answered else {},
    )


def _baselines(table: StepTable, **drawn: Any) -> dict[str, dict[str, Any]]:
    """The most common label for every step, and the rules that rank steps."""
    labels, counts = np.unique(np.sign(table.gold), return_counts=True)
    common = float(labels[counts.argmax()])
    constant = [
        replace(one, scores=(common,) * len(one.labels), outcome=Outcome.ANSWERED) for one in table.records
    ]
    found = step_metrics(StepTable.of(constant), **drawn)
    named = {"most common label": {name: found[name] for name in ("step_accuracy", "first_error_accuracy")}}
    for rule, score in RULES.items():
        ruled = [replace(one, scores=tuple(score(one)), outcome=Outcome.ANSWERED) for one in table.records]
        found = step_metrics(StepTable.of(ruled), **drawn)
        named[rule] = {name: found[name] for name in ("auc", "pair_accuracy", "lowest_is_first_error")}
    return named


def _pairs(records: Sequence[TrajectoryRecord]) -> JudgmentTable:
    """Every pair of a right and a wrong step of one trajectory as a comparison, for the context boundary."""
    pairs = []
    for one in records:
        for first, second in combinations([at for at, label in enumerate(one.labels) if label], 2):
            ranks = tuple(1 if (one.labels[at] or 0) > 0 else 2 for at in (first, second))
            if ranks[0] == ranks[1]:
                continue
            scores = [one.scores[at] for at in (first, second)] if one.scores else []
            known = tuple(score for score in scores if score is not None)
            outcome = one.outcome
            if len(known) < 2:  # a record may leave out the label of a step
                known, outcome = (), Outcome.UNPARSED if outcome is Outcome.ANSWERED else outcome
            pairs.append(
                JudgmentRecord(
                    id=f"{one.id}/{first}-{second}",
                    group=one.group,
                    outcome=outcome,
                    ranks=ranks,
                    length=one.length,
                    scores=known,
                )
            )
    return JudgmentTable.of(pairs).scored
