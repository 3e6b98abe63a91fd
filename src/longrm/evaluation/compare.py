"""Compares finished evaluations on the comparisons that they share."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from scipy import stats

from longrm.config import changed_settings
from longrm.errors import ConfigError, RunError
from longrm.evaluation.agreement import judge_agreement
from longrm.evaluation.breakdown import by_parts
from longrm.evaluation.estimates import difference
from longrm.evaluation.evaluate import Evaluation
from longrm.evaluation.metrics import METRICS, EvaluationMetric, metric_of, reported
from longrm.evaluation.read_run import Run, open_runs
from longrm.evaluation.summary_schema import Agreement, DepthBin, main_metric
from longrm.evaluation.table import (
    OUTCOMES,
    Bootstrap,
    FloatArray,
    IntArray,
    JudgmentTable,
    Mask,
    RatioSample,
    recoded,
)
from longrm.evaluation.trials import JudgingSettings
from longrm.runs.logs import GOLD
from longrm.runs.records import FEW_GROUPS, Estimate
from longrm.types import Outcome

if TYPE_CHECKING:
    import pandas as pd

LEFT_OUT = {
    "only_in_first": "only in {first}",
    "only_in_second": "only in {second}",
    "gold_differs": "with a different gold order in the two runs",
    "without_gold": "without a gold order",
    "error_in_first": "ended in an error in {first}",
    "error_in_second": "ended in an error in {second}",
    "error_in_both": "ended in an error in both",
}
"""Reasons to leave out a comparison, with a text for tables."""

# Gains are counted in sixtieths: pairs earn halves, and ties among up to six responses whole sixtieths.
_UNITS = 60
# The inverse Fourier transform below has rounding errors of about 1e-15; smaller p values are reported as this.
_SMALLEST = 1e-13


@dataclass(frozen=True, slots=True)
class McNemarCounts:
    """Comparisons in which one side alone earned more, and McNemar's exact p value, which assumes independence."""

    only_first: int
    only_second: int
    p: float


@dataclass(slots=True)
class ComparedPart:
    """Two runs on the same comparisons."""

    first: float  # the first run's metric
    second: float  # the second run's metric
    difference: Estimate  # the second minus the first, with a paired cluster-bootstrap interval
    n: int  # number of comparisons
    groups: int  # number of groups that they are from
    # Whether there are fewer than `FEW_GROUPS`, too few for a bootstrap: use the p value only
    few_groups: bool
    mcnemar: McNemarCounts  # number of comparisons that only one run won
    p: float  # p value of the sign-flip test over groups; see `sign_flip_p`
    p_holm: float  # the same, adjusted for all parts of the kind: all lengths, all depths, all tasks


Parts = dict[str, ComparedPart]


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two runs on the comparisons that they share, and further runs compared with the first.

    If the runs disagree on a comparison's length, depth, task or group, the first run's is used.
    """

    first: Run  # the reference
    second: Run
    metric: str
    overall: ComparedPart  # all shared comparisons
    by_length: Parts
    by_depth: dict[DepthBin, ComparedPart]
    by_length_and_depth: dict[str, dict[DepthBin, ComparedPart]]
    by_task: Parts
    left_out: dict[str, int]  # how many comparisons are not compared, by reason
    differs_in: tuple[str, ...]  # one line per setting, other than the model, in which the runs differ
    # Ids, as in the first run, of the comparisons that only "first" or "second" won
    wins: dict[str, tuple[str, ...]]
    agreement: Agreement | None  # of the two judges with each other; None without pairs that both answered
    others: tuple["RunComparison", ...] = ()  # the further runs, each compared with the first

    @property
    def headline(self) -> str:
        """The overall difference of the first two runs with its interval and p value."""
        part, gain, metric = self.overall, self.overall.difference, metric_of(self.metric)
        scale, digits, unit = (100, 1, " points") if metric.is_share else (1, 3, "")
        numbers = (gain.value, gain.low, gain.high)
        value, low, high = ("?" if n is None else f"{scale * n:+.{digits}f}" for n in numbers)
        return (
            f"{self.second.name} minus {self.first.name}: {metric.title} {value} [{low}, {high}]{unit} on the same "
            f"{part.n:,} comparisons, p = {part.p:.2g}"
        )

    @property
    def each(self) -> tuple["RunComparison", ...]:
        """One comparison of two runs for every run but the first."""
        return (replace(self, others=()), *self.others)

    def parts(self) -> Iterator[tuple[str, str, ComparedPart]]:
        """Every part with its kind and name: ("overall", "all", ...), ("length", "4096", ...), ..."""
        yield "overall", "all", self.overall
        for kind, parts in (("length", self.by_length), ("depth", self.by_depth), ("task", self.by_task)):
            for name, part in parts.items():
                yield kind, name, part
        for length, depths in self.by_length_and_depth.items():
            for depth, part in depths.items():
                yield "length and depth", f"{length}, {depth}", part

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON values, as `longrm compare --json` prints it."""

        def values(parts: Mapping[Any, ComparedPart]) -> dict[Any, dict[str, Any]]:
            return {name: asdict(part) for name, part in parts.items()}

        def run(one: Run) -> dict[str, str]:
            summary = one.evaluation
            return {
                "label": one.name,
                "folder": str(one.path),
                "model": summary.model,
                "bench": summary.bench,
            }

        return {
            "headline": self.headline,
            "first": run(self.first),
            "second": run(self.second),
            "metric": self.metric,
            "overall": asdict(self.overall),
            "by_length": values(self.by_length),
            "by_depth": values(self.by_depth),
            "by_length_and_depth": {
                length: values(depths) for length, depths in self.by_length_and_depth.items()
            },
            "by_task": values(self.by_task),
            "left_out": self.left_out,
            "differs_in": self.differs_in,
            "wins": self.wins,
            "agreement": self.agreement and self.agreement.to_dict(),
            "others": [other.as_dict() for other in self.others],
        }

    def to_pandas(self) -> "pd.DataFrame":
        """One row for each run but the first and each part; columns as the keys of `as_dict`, such as `mcnemar_p`."""
        import pandas as pd

        rows = [
            {"first_run": one.first.name, "second_run": one.second.name, "kind": kind, "part": name}
            | asdict(part)
            for one in self.each
            for kind, name, part in one.parts()
        ]
        return pd.json_normalize(rows, sep="_")

    def __repr__(self) -> str:
        return f"<{'; '.join(one.headline for one in self.each)}>"


def compare(*runs: Run | str | Path, metric: str | None = None) -> RunComparison:
    """Compares finished evaluations on the comparisons that they share, by the text of prompt and responses.

    Args:
        runs: Two or more evaluations, or their folders. Every other one is compared with the first; p values are not
            adjusted for their number.
        metric: A metric that is a mean over comparisons; by default main accuracy: pair accuracy, or top-1 if some
            comparison has more than two responses.

    Raises:
        RunError: A folder is not a finished evaluation, or two runs share no comparison scored in both.
        ConfigError: Fewer than two runs, or an unsuitable metric.
    """
    if len(runs) < 2:
        raise ConfigError("a comparison needs two runs or more: longrm.compare(one, other)")
    measured = None if metric is None else metric_of(metric)
    first, *others = opened = open_runs(runs)
    for run in opened:
        _ = run.evaluation  # an error if the run is not a finished evaluation
    found = [compare_two(first, other, measured) for other in others]
    return replace(found[0], others=tuple(found[1:]))


def compare_two(first: Run, second: Run, metric: EvaluationMetric | None = None) -> RunComparison:
    """Compares two finished evaluations that are open; see `compare`."""
    ours, theirs, left_out = _shared(first, second)
    # All pairs are scored on both sides, so the tables have the same comparisons in the same rows.
    one = first.table.take(ours)
    other = replace(second.table.take(theirs), group=one.group)
    if metric is None:
        names = (known.name for known in reported(pairs_only=not (one.size > 2).any()))
        metric = metric_of(main_metric(names))
    if not isinstance(metric.sample(one), RatioSample):
        means = ", ".join(known.name for known in METRICS.values() if not known.needs_scores)
        raise ConfigError(f"{metric.name} is not a mean over comparisons; choose one of {means}")
    # Intervals are drawn as in the first run's own summary.
    judging = JudgingSettings(**_settings(first).get("judging", {}))
    drawn: Bootstrap = {"seed": judging.seed, "resamples": judging.resamples}
    gains = metric.credits(other).total - metric.credits(one).total
    return RunComparison(
        first=first,
        second=second,
        metric=metric.name,
        overall=_compared(one, other, metric, np.ones(len(one), np.bool_), **drawn),
        by_length=compared_parts(one, other, metric, "by_length", **drawn),
        by_depth=compared_parts(one, other, metric, "by_depth", **drawn),
        by_length_and_depth=compared_parts(one, other, metric, "by_length_and_depth", **drawn),
        by_task=compared_parts(one, other, metric, "by_task", **drawn),
        left_out=left_out,
        differs_in=_differences(first, second, ours, theirs),
        wins={
            side: tuple(one.id[wins].tolist()) for side, wins in (("first", gains < 0), ("second", gains > 0))
        },
        agreement=judge_agreement(one, other, **drawn),
    )


def compared_parts(
    first: JudgmentTable,
    second: JudgmentTable,
    metric: EvaluationMetric,
    kind: str,
    **drawn: Unpack[Bootstrap],
) -> dict[Any, Any]:
    """The parts of one kind (see `by_parts`), with p values adjusted for their number."""
    found: list[ComparedPart] = []

    def compared(rows: Mask) -> ComparedPart:
        found.append(_compared(first, second, metric, rows, **drawn))
        return found[-1]

    parts: dict[Any, Any] = by_parts(first, compared, (kind,))[kind]
    for part, p in zip(found, holm([part.p for part in found]), strict=True):
        part.p_holm = p
    return parts


def _compared(
    first: JudgmentTable,
    second: JudgmentTable,
    metric: EvaluationMetric,
    rows: Mask,
    **drawn: Unpack[Bootstrap],
) -> ComparedPart:
    one, other = metric.credits(first).subset(rows), metric.credits(second).subset(rows)
    gain, group = other.total - one.total, recoded(first.group[rows])
    groups = int(group.max()) + 1
    wins = int((gain < 0).sum()), int((gain > 0).sum())
    p = sign_flip_p(np.bincount(group, gain).astype(np.float64))
    return ComparedPart(
        first=one.value,
        second=other.value,
        difference=difference(second, first, metric, rows, **drawn),
        n=group.size,
        groups=groups,
        few_groups=groups < FEW_GROUPS,
        mcnemar=McNemarCounts(*wins, mcnemar_p(*wins)),
        p=p,
        p_holm=p,
    )


def _settings(run: Run) -> dict[str, Any]:
    """The settings that define what was judged, and how; compared runs differ in their model on purpose."""
    return Evaluation.defining(
        {key: run.settings[key] for key in run.settings if key not in ("model", "recorded")}
    )


def _by_text(run: Run) -> dict[str, list[int]]:
    """The rows of a run by the digest of prompt and responses; several if comparisons have the same text."""
    found: dict[str, list[int]] = {}
    for row, digest in enumerate(run.judgments.digests):
        if not digest:
            name = run.judgments.ids[row]
            raise RunError(f"{run.path / GOLD} has no digest of '{name}'; evaluate again into another folder")
        found.setdefault(digest, []).append(row)
    return found


def _shared(first: Run, second: Run) -> tuple[IntArray, IntArray, dict[str, int]]:
    """The rows of the comparisons that both runs scored, in each run, and the number left out by reason."""
    ours, theirs = _by_text(first), _by_text(second)
    names, other_names = first.judgments.ids, second.judgments.ids
    found: list[tuple[int, int]] = []
    for digest, rows in ours.items():
        others = theirs.get(digest, [])
        if len(rows) == len(others) == 1:
            found.append((rows[0], others[0]))
        else:  # comparisons of the same text are matched by their ids
            by_id = {other_names[row]: row for row in others}
            found += [(row, by_id[names[row]]) for row in rows if names[row] in by_id]
    one, other = np.array(found, np.int64).reshape(-1, 2).T
    same_gold = [
        first.judgments.ranks[row] == second.judgments.ranks[match]
        for row, match in zip(one.tolist(), other.tolist(), strict=True)
    ]
    failed, failed_other = (
        run.table.outcome[rows] == OUTCOMES.index(Outcome.ERROR)
        for run, rows in ((first, one), (second, other))
    )
    # The first reason counts.
    left = np.ones(one.size, np.bool_)
    reasons = {
        "only_in_first": len(names) - one.size,
        "only_in_second": len(other_names) - one.size,
    }
    for reason, applies in (
        ("gold_differs", ~np.array(same_gold, np.bool_)),
        ("without_gold", ~first.table.has_gold_order[one]),
        ("error_in_first", failed & ~failed_other),
        ("error_in_second", failed_other & ~failed),
        ("error_in_both", failed & failed_other),
    ):
        reasons[reason] = int((left & applies).sum())
        left &= ~applies
    if not left.any():
        counted = ", ".join(f"{reason.replace('_', ' ')} {n:,}" for reason, n in reasons.items() if n)
        advice = "evaluate both models on the same data with gold"
        if first.evaluation.bench == second.evaluation.bench == "probe" and not found:
            advice = "probe both models with the same --lengths, --depths, --tasks, --n and --tokenizer"
        raise RunError(
            f"{first.path} and {second.path} share no comparison scored in both ({counted}); {advice}"
        )
    return one[left], other[left], reasons


def _differences(first: Run, second: Run, ours: IntArray, theirs: IntArray) -> tuple[str, ...]:
    """The settings in which two runs differ, and comparisons that they assign to different parts or groups."""
    lines = list(changed_settings(_settings(first), _settings(second)))
    one, other = first.table, second.table
    for name in ("length", "depth", "task"):
        a, b = getattr(one, name)[ours], getattr(other, name)[theirs]
        moved = np.flatnonzero((a != b) & ~((a != a) & (b != b)))  # an unknown depth is NaN
        if moved.size:
            row = moved[0]
            values = [
                getattr(run.judgments[at], name) for run, at in ((first, ours[row]), (second, theirs[row]))
            ]
            lines.append(
                f"{name}: differs for {moved.size:,} comparisons, such as '{one.id[ours[row]]}' ({values[0]!r} -> "
                f"{values[1]!r}); the first run's is used"
            )
    # Names may differ. The groups are the same if each one of a run belongs to exactly one of the other run.
    groups = np.stack([one.group[ours], other.group[theirs]])
    if len({np.unique(found, axis=-1).shape[-1] for found in (groups[0], groups[1], groups)}) > 1:
        lines.append("groups: the runs group comparisons differently; the first run's groups are used")
    return tuple(lines)


def sign_flip_p(gains: FloatArray) -> float:
    """Two-sided p value of groups' gains under the hypothesis that the two judges are exchangeable in each group.

    The sum of the gains is compared with that of all 2^groups ways to flip their signs, enumerated exactly. The test
    therefore holds its level however the comparisons of one group depend on each other, and with any number of groups.
    With one comparison per group and outcomes of 0 and 1 it is McNemar's exact test. If the judges differ in more than
    their means, it holds asymptotically in the number of groups (Canay, Romano and Shaikh 2017, "Randomization tests
    under an approximate symmetry assumption").

    `gains` are the second judge's credit minus the first's, summed over each group, [groups]. They are rounded to
    sixtieths, which keeps the symmetry and so the level.
    """
    units = np.rint(gains * _UNITS).astype(np.int64)
    sizes = np.abs(units[units != 0])
    if not sizes.size:
        return 1.0
    step = np.gcd.reduce(sizes)
    sizes, observed = sizes // step, abs(int(units.sum())) // int(step)
    # The characteristic function of a sum of randomly signed sizes is a product of cosines. Its inverse transform is
    # the exact distribution, as long as the period holds every possible sum.
    period = 2 * int(sizes.sum()) + 1
    angles = 2 * np.pi * np.arange(period) / period
    spectrum = np.ones(period)
    for size, count in zip(*np.unique(sizes, return_counts=True), strict=True):
        spectrum *= np.cos(size * angles) ** count
    probabilities = np.fft.ifft(spectrum).real  # of the sums 0, 1, ..., then ..., -2, -1
    tail = float(probabilities[observed : period - observed + 1].sum())
    least = float(np.ldexp(1.0, 1 - sizes.size))  # the p value if all gains have one sign
    return min(1.0, max(tail, least, _SMALLEST))


def mcnemar_p(only_first: int, only_second: int) -> float:
    """McNemar's exact test (1947): a binomial test of the discordant comparisons, assumed independent."""
    wins = only_first + only_second
    return float(stats.binomtest(only_first, wins).pvalue) if wins else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """P values adjusted for their number, which controls the family-wise error rate (Holm 1979)."""
    found = np.asarray(p_values, np.float64)
    order = np.argsort(found, kind="stable")
    raised = np.maximum.accumulate(found[order] * np.arange(found.size, 0, -1))
    adjusted = np.empty_like(found)
    adjusted[order] = np.minimum(raised, 1.0)
    return [float(p) for p in adjusted]
