"""Finished evaluations ranked among those that judged the same comparisons."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from longrm.comparing.compared_parts import ComparedPart, PartMeasure
from longrm.comparing.paired_tests import holm
from longrm.comparing.shared_items import FinishedEvaluation, read_evaluation, shared_items
from longrm.errors import RunError
from longrm.evaluation.metrics import EvaluationMetric, metric_of
from longrm.evaluation.summaries import EvaluationSummary
from longrm.runs.records import Estimate


@dataclass(frozen=True, slots=True)
class Standing:
    """One run among those that judged the same comparisons.

    Attributes:
        folder: Where it lies.
        summary: What it was summed up to.
        figure: Its main accuracy, by which it is ranked.
        rank: One more than the runs of a higher figure.
        against_first: Its paired comparison with the first run, whose p value is Holm-adjusted over all runs of the
            standings; None for the first run.
        differs_in: One line for each thing but the judge in which it differs from the first run.
    """

    folder: Path
    summary: EvaluationSummary
    figure: Estimate
    rank: int
    against_first: ComparedPart | None = None
    differs_in: tuple[str, ...] = ()

    @property
    def apart(self) -> bool:
        """Whether it is shown to be another one than the first."""
        return self.against_first is not None and self.against_first.winner != 0


@dataclass(frozen=True, slots=True)
class Standings:
    """Runs that judged the same comparisons, whose gold and length buckets are the same too, best first."""

    metric: EvaluationMetric
    runs: tuple[Standing, ...]


def standings(folders: Sequence[Path]) -> tuple[list[Standings], dict[Path, str]]:
    """Ranks finished evaluations; those that judged other comparisons are ranked apart.

    Of equal figures the run that was named first comes first. Judgments of two runs are held at a time.

    Returns:
        The standings, those of most runs first, and why the other folders have no rank.
    """
    alike: dict[tuple[str, str], list[tuple[float, Path]]] = defaultdict(list)
    left_out: dict[Path, str] = {}
    for folder in folders:
        try:
            run = _whole(folder)
        except RunError as error:
            left_out[folder] = str(error)
            continue
        if (value := _figure(run).value) is None:
            left_out[folder] = "none of its comparisons could be scored"
        else:
            alike[_key(run)].append((value, folder))
    return [_ranked(found) for found in sorted(alike.values(), key=len, reverse=True)], left_out


def _whole(folder: Path) -> FinishedEvaluation:
    run = read_evaluation(folder)
    if run.summary.shard:
        raise RunError(f"it is part {run.summary.shard} of an evaluation; join the parts: longrm runs merge")
    return run


def _figure(run: FinishedEvaluation) -> Estimate:
    return run.summary.metrics.overall[run.summary.main_metric]


def _key(run: FinishedEvaluation) -> tuple[str, str]:
    """What runs have in common that are ranked together: their metric, and texts, gold and lengths."""
    items = sorted(
        f"{digest} {record.ranks} {record.length}" for digest, held in run.items.items() for record in held
    )
    return run.summary.main_metric, hashlib.sha256("\n".join(items).encode()).hexdigest()


def _ranked(found: Sequence[tuple[float, Path]]) -> Standings:
    order = sorted(found, key=lambda one: -one[0])
    best = read_evaluation(order[0][1])
    metric = metric_of(best.summary.main_metric)
    first = Standing(best.folder, best.summary, _figure(best), 1)
    others = [
        _standing(best, read_evaluation(folder), metric, 1 + sum(value < other for other, _ in order))
        for value, folder in order[1:]
    ]
    adjusted = holm([part.p for _, part in others])
    behind = (
        replace(run, against_first=replace(part, p_holm=p))
        for (run, part), p in zip(others, adjusted, strict=True)
    )
    return Standings(metric, (first, *behind))


def _standing(
    best: FinishedEvaluation, run: FinishedEvaluation, metric: EvaluationMetric, rank: int
) -> tuple[Standing, ComparedPart]:
    shared = shared_items(best, run)
    whole = PartMeasure(shared.pairs, metric).by([""] * len(shared.pairs))[""]
    return Standing(run.folder, run.summary, _figure(run), rank, differs_in=shared.differs_in), whole
