"""Metrics of the steps of trajectories, and of whole trajectories with a known outcome.

A step is taken for right if its score is above the threshold, else for wrong; labels (1, 0, -1) are taken as they are.
Steps with the gold label 0 count in `step_accuracy` and in metrics by label, and not where right steps are ranked
against wrong ones. Intervals resample the groups. A trajectory without scores counts as wrong; errors are excluded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Literal, Self, Unpack

import numpy as np
from scipy.special import expit

from longrm.evaluation.estimates import bootstrap_interval, estimate, ratio
from longrm.evaluation.table import (
    Bootstrap,
    FloatArray,
    IntArray,
    Mask,
    RankedSample,
    recoded,
    resampled_sums,
)
from longrm.runs.records import UNDEFINED, Estimate, TrajectoryRecord
from longrm.types import Outcome

TrajectoryScore = Literal["last", "min", "mean"]
_REDUCTIONS: Mapping[TrajectoryScore, Callable[[Sequence[float]], float]] = {
    "last": lambda scores: scores[-1],
    "min": min,
    "mean": fmean,
}
"""How the scores of its steps make the score of a trajectory."""
_LABELS = {1.0: "right", 0.0: "neutral", -1.0: "wrong"}
_BINS = 10
_POSITIONS = 5


@dataclass(frozen=True)
class StepTable:
    """The labeled steps of trajectories as columns, one row a step; and their trajectories.

    Attributes:
        records: The trajectories, without errors.
        threshold: The score above which a step is right; None if there is none, and scores are no labels.
        are_labels: Whether all scores are 1, 0 or -1.
        probabilities: Whether the logistic of a score is the probability that a step is right.
        trajectory_score: How the scores of its steps make the score of a trajectory.
    """

    records: tuple[TrajectoryRecord, ...]
    threshold: float | None
    are_labels: bool
    probabilities: bool
    trajectory_score: TrajectoryScore

    @classmethod
    def of(
        cls,
        records: Sequence[TrajectoryRecord],
        threshold: float | None = None,
        *,
        probabilities: bool = False,
        trajectory_score: TrajectoryScore = "last",
    ) -> Self:
        """Takes judged trajectories, and omits those that ended in errors."""
        kept = tuple(one for one in records if one.outcome is not Outcome.ERROR)
        scores = {score for one in kept for score in one.scores if score is not None}
        return cls(kept, threshold, scores <= _LABELS.keys(), probabilities, trajectory_score)

    def where(self, **fields: object) -> "StepTable":
        """The table of the trajectories that have these values."""
        kept = (
            one for one in self.records if all(getattr(one, name) == value for name, value in fields.items())
        )
        return replace(self, records=tuple(kept))

    @property
    def decides(self) -> bool:
        """Whether scores say which steps are right, and not only which are better."""
        return self.are_labels or self.threshold is not None

    @cached_property
    def group(self) -> IntArray:
        """The group of every trajectory as a number, [trajectories]."""
        codes: dict[str, int] = {}
        return np.array([codes.setdefault(one.group, len(codes)) for one in self.records], np.int64)

    @cached_property
    def row(self) -> IntArray:
        """The trajectory of every labeled step, [steps]; all further columns of steps have this shape."""
        return np.array([row for row, one in enumerate(self.records) for at in _labeled(one)], np.int64)

    @cached_property
    def gold(self) -> FloatArray:
        """The gold labels."""
        return np.array([one.labels[at] for one in self.records for at in _labeled(one)], np.float64)

    @cached_property
    def score(self) -> FloatArray:
        """The scores; NaN without one."""
        values = [_at(one.scores, at) for one in self.records for at in _labeled(one)]
        return np.array([np.nan if value is None else value for value in values], np.float64)

    @cached_property
    def predicted(self) -> FloatArray:
        """The labels by the scores; NaN without a score."""
        return self._label(self.score)

    @cached_property
    def position(self) -> IntArray:
        """The fifth of its trajectory in which a step is."""
        places = [at * _POSITIONS // len(one.labels) for one in self.records for at in _labeled(one)]
        return np.array(places, np.int64)

    @cached_property
    def length(self) -> IntArray:
        """The bucket of the tokens up to the step; -1 if they are unknown."""
        tokens = [_at(one.tokens, at) for one in self.records for at in _labeled(one)]
        return np.array(
            [-1 if one is None else 1 << max(0, int(one) - 1).bit_length() for one in tokens], np.int64
        )

    def _label(self, scores: FloatArray) -> FloatArray:
        if self.are_labels:
            return scores
        threshold = 0.0 if self.threshold is None else self.threshold
        return np.where(np.isnan(scores), np.nan, np.where(scores > threshold, 1.0, -1.0))

    def first_errors(self) -> list[tuple[int | None, int | None]]:
        """The first wrong step by gold, and by the scores, of each trajectory with labels; None if none is wrong.

        Where gold knows only the first wrong step, a judge is not asked about later ones.
        """
        found = []
        for one in self.records:
            if not any(label is not None for label in one.labels):
                continue
            scores = np.array([np.nan if value is None else value for value in one.scores], np.float64)
            wrong = np.flatnonzero(self._label(scores) < 0)
            gold = [at for at, label in enumerate(one.labels) if label is not None and label < 0]
            found.append((gold[0] if gold else None, int(wrong[0]) if wrong.size else None))
        return found

    def outcome_scores(self) -> tuple[FloatArray, Mask, IntArray]:
        """The scores of trajectories with a known outcome (NaN without one), their success, and their groups."""
        known = [row for row, one in enumerate(self.records) if one.success is not None]
        values = []
        for row in known:
            scores = [score for score in self.records[row].scores if score is not None]
            values.append(_REDUCTIONS[self.trajectory_score](scores) if scores else np.nan)
        success = np.array([self.records[row].success for row in known], np.bool_)
        return np.array(values, np.float64), success, self.group[known]


def _labeled(record: TrajectoryRecord) -> list[int]:
    return [at for at, label in enumerate(record.labels) if label is not None]


def _at(values: Sequence[float | None], at: int) -> float | None:
    return values[at] if at < len(values) else None


def step_metrics(
    table: StepTable, rows: Mask | None = None, **drawn: Unpack[Bootstrap]
) -> dict[str, Estimate]:
    """Every metric of the labeled steps, or of some of them; see docs/measures.md. Empty without labels.

    `step_accuracy` and `first_error_accuracy` are AgentProcessBench's StepAcc and FirstErrAcc (arXiv 2603.14465).
    """
    if not table.row.size:
        return {}
    kept = np.ones(table.row.size, np.bool_) if rows is None else rows
    row, gold, score, predicted = table.row[kept], table.gold[kept], table.score[kept], table.predicted[kept]
    if not row.size:
        return {}
    group = recoded(table.group[row])
    found: dict[str, Estimate] = {}
    if table.decides:
        right = (predicted == np.sign(gold)) * 1.0
        found["step_accuracy"] = ratio(right, np.ones(right.size), group, **drawn)
        if rows is None:
            found["first_error_accuracy"] = first_error_accuracy(table, **drawn)
        for label, name in _LABELS.items():
            has = (np.sign(gold) == label) * 1.0
            if has.any():
                found[f"recall_{name}"] = ratio(right * has, has, group, **drawn)
        found["macro_f1"] = _macro_f1(np.sign(gold), predicted, group, **drawn)
    found["auc"] = _auc(score, gold > 0, (gold != 0) & ~np.isnan(score), group, **drawn)
    found["pair_accuracy"] = _pair_accuracy(row, gold, score, table.group, **drawn)
    if rows is None:
        found["lowest_is_first_error"] = _lowest_is_first_error(table, **drawn)
    if table.probabilities:
        found |= _calibration(score, gold > 0, (gold != 0) & ~np.isnan(score), group, **drawn)
    return found


def first_error_accuracy(table: StepTable, **drawn: Unpack[Bootstrap]) -> Estimate:
    """The share of trajectories whose first wrong step is found; none is found where none is wrong."""
    rows = np.unique(table.row)
    hits = np.array([gold == judged for gold, judged in table.first_errors()], np.float64)
    answered = np.array([bool(table.records[row].scores) for row in rows])
    return ratio(hits * answered, np.ones(hits.size), recoded(table.group[rows]), **drawn)


def outcome_metrics(table: StepTable, **drawn: Unpack[Bootstrap]) -> dict[str, Estimate]:
    """Metrics of whole trajectories against their outcomes; empty if no outcome is known.

    Area under the ROC curve and calibration error decide whether a score can reward an agent (SWE-RM, arXiv
    2512.21919). `best_of_n` is the success rate of the best-scored trajectory of each task with several.
    """
    score, success, group = table.outcome_scores()
    if not success.size:
        return {}
    answered = ~np.isnan(score)
    found = {"auc": _auc(score, success, answered, recoded(group), **drawn)}
    if table.decides:
        # Among labels only 1 is above 0; a trajectory without a score counts as failed.
        predicted = answered & (score > (0.0 if table.threshold is None else table.threshold))
        right = (predicted == success) & answered
        for name, part, of in (
            ("accuracy", right, np.ones_like(predicted)),
            ("precision", predicted & success, predicted),
            ("recall", predicted & success, success),
        ):
            sums = part.astype(np.float64), of.astype(np.float64)
            found[name] = ratio(*sums, recoded(group), **drawn) if of.any() else UNDEFINED
    if table.probabilities:
        found |= _calibration(score, success, answered, recoded(group), **drawn)
    return found | _best_of(score, success, group, **drawn)


def _auc(
    score: FloatArray, positive: Mask, used: Mask, group: IntArray, **drawn: Unpack[Bootstrap]
) -> Estimate:
    """Area under the ROC curve; undefined without both classes."""
    if not (positive & used).any() or not (~positive & used).any():
        return UNDEFINED
    places = np.flatnonzero(used)
    sample = RankedSample(score[places], np.arange(places.size), positive[places], places.size)
    return estimate(sample, recoded(group[places]), span=(0.0, 1.0), **drawn)


def _pair_accuracy(
    row: IntArray, gold: FloatArray, score: FloatArray, groups: IntArray, **drawn: Unpack[Bootstrap]
) -> Estimate:
    """The share of pairs of a right and a wrong step of one trajectory in the right order; ties count half.

    Every trajectory counts as one, whatever the number of its pairs.
    """
    credits, of = [], []
    for number in np.unique(row):
        here = row == number
        right, wrong = score[here & (gold > 0)], score[here & (gold < 0)]
        if right.size and wrong.size:
            difference = right[:, None] - wrong[None, :]
            # NaN, without a score, is never above.
            credits.append(float(np.mean((difference > 0) + 0.5 * (difference == 0))))
            of.append(groups[number])
    if not credits:
        return UNDEFINED
    return ratio(np.array(credits), np.ones(len(of)), recoded(np.array(of, np.int64)), **drawn)


def _lowest_is_first_error(table: StepTable, **drawn: Unpack[Bootstrap]) -> Estimate:
    """Of the trajectories with a wrong step, the share whose lowest-scored labeled step is the first wrong one.

    It needs no threshold; steps with equal scores share the credit.
    """
    hits, groups = [], []
    for number in np.unique(table.row):
        gold, score = table.gold[table.row == number], table.score[table.row == number]
        wrong = np.flatnonzero(gold < 0)
        if wrong.size:
            lowest = (
                score == np.nanmin(score) if not np.isnan(score).all() else np.zeros(score.size, np.bool_)
            )
            hits.append(float(lowest[wrong[0]] / max(1, lowest.sum())))
            groups.append(table.group[number])
    if not hits:
        return UNDEFINED
    return ratio(np.array(hits), np.ones(len(hits)), recoded(np.array(groups, np.int64)), **drawn)


def _macro_f1(
    gold: FloatArray, predicted: FloatArray, group: IntArray, **drawn: Unpack[Bootstrap]
) -> Estimate:
    """The mean over labels that occur in gold of F1, the harmonic mean of precision and recall."""
    columns = []
    for label in sorted({*gold.tolist()}):
        is_gold, is_predicted = gold == label, predicted == label
        columns += [is_gold & is_predicted, is_gold, is_predicted]
    counts = np.stack(columns, axis=1).astype(np.float64)

    def mean_f1(sums: FloatArray) -> FloatArray:
        parts = sums.reshape(*sums.shape[:-1], -1, 3)
        below = parts[..., 1] + parts[..., 2]
        return np.asarray((2 * parts[..., 0] / np.maximum(below, 1)).mean(axis=-1))

    value = float(mean_f1(counts.sum(axis=0)))
    replicates = mean_f1(resampled_sums(group, counts, **drawn))
    limits = bootstrap_interval(value, replicates, group, (0.0, 1.0))
    return Estimate(value, *limits, gold.size, int(group.max()) + 1)


def _calibration(
    score: FloatArray, positive: Mask, used: Mask, group: IntArray, **drawn: Unpack[Bootstrap]
) -> dict[str, Estimate]:
    """Brier score, and expected calibration error in ten bins (Guo et al. 2017), which has no interval."""
    if not used.any():
        return {}
    probability: FloatArray = expit(score[used])
    truth, group = positive[used] * 1.0, recoded(group[used])
    place = np.minimum((probability * _BINS).astype(np.int64), _BINS - 1)
    gaps = np.abs(np.bincount(place, probability - truth, _BINS)).sum() / truth.size
    brier = ratio((probability - truth) ** 2, np.ones(truth.size), group, **drawn)
    return {"brier": brier, "ece": Estimate(float(gaps), None, None, brier.n, brier.groups)}


def _best_of(
    score: FloatArray, success: Mask, group: IntArray, **drawn: Unpack[Bootstrap]
) -> dict[str, Estimate]:
    """Success of the best-scored trajectory of a task, of a random one, and of the best one."""
    rows: list[tuple[float, float, float]] = []
    for number in np.unique(group):
        here = group == number
        if here.sum() < 2:
            continue
        values, outcomes = np.nan_to_num(score[here], nan=-np.inf), success[here]
        best = outcomes[values == values.max()].mean()
        rows.append((float(best), float(outcomes.mean()), float(outcomes.any())))
    if not rows:
        return {}
    names = ("best_of_n", "best_of_n_random", "best_of_n_oracle")
    tasks, ones = np.arange(len(rows)), np.ones(len(rows))
    return {
        name: ratio(np.array(of), ones, tasks, **drawn)
        for name, of in zip(names, zip(*rows, strict=True), strict=True)
    }


def agent_accuracy(table: StepTable, **drawn: Unpack[Bootstrap]) -> Estimate:
    """Who&When's agent-level accuracy: the agent of the first wrong step is the one that made the mistake."""
    hits, groups = [], []
    for (_, judged), row in zip(table.first_errors(), np.unique(table.row), strict=True):
        one = table.records[row]
        if one.wrong_agent:
            hits.append(judged is not None and _agent(one, judged) == one.wrong_agent)
            groups.append(table.group[row])
    if not hits:
        return UNDEFINED
    return ratio(np.array(hits) * 1.0, np.ones(len(hits)), recoded(np.array(groups, np.int64)), **drawn)


def _agent(record: TrajectoryRecord, at: int) -> str:
    return record.agents[at] if at < len(record.agents) else ""


Rule = Callable[[TrajectoryRecord], Sequence[float]]
RULES: Mapping[str, Rule] = {
    "earlier steps": lambda one: [-float(at) for at in range(len(one.labels))],
    "shorter steps": lambda one: [-float(size) for size in one.characters],
}
"""Rules without a model that score steps: an earlier one, or a shorter one, is right."""
