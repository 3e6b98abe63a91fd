"""Finished evaluations against each other, comparison by comparison."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import Any

from longrm.errors import ConfigError
from longrm.evaluation.comparison.compared_parts import ComparedPart, PartMeasure, part_figures
from longrm.evaluation.comparison.comparison_sentence import first_sentence
from longrm.evaluation.comparison.shared_items import bootstrap_of, shared_items
from longrm.evaluation.metrics import EvaluationMetric, metric_of, reported
from longrm.evaluation.run import Run, open_runs
from longrm.evaluation.summaries import DepthBin, depth_bin, main_metric


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two runs on the comparisons that they share, and further runs against the first.

    Attributes:
        first: The reference.
        second: The run that is compared with it.
        metric: The name of the metric.
        overall: Over all shared comparisons.
        by_length: At each length, in tokens; where the runs place a comparison differently, the first's counts here and
            below.
        by_depth: In each bin of depth.
        by_length_and_depth: In each bin of depth, at each length.
        by_task: In each task.
        left_out: How many comparisons are not compared, by reason.
        differs_in: One line for each thing but the judge in which the runs differ.
        wins: The ids, as the first run has them, of the comparisons that "first" alone won, and "second" alone.
        others: The further runs, each against the first.
    """

    first: Run
    second: Run
    metric: str
    overall: ComparedPart
    by_length: dict[str, ComparedPart]
    by_depth: dict[DepthBin, ComparedPart]
    by_length_and_depth: dict[str, dict[DepthBin, ComparedPart]]
    by_task: dict[str, ComparedPart]
    left_out: dict[str, int]
    differs_in: tuple[str, ...]
    wins: dict[str, tuple[str, ...]]
    others: tuple["RunComparison", ...] = ()

    def __repr__(self) -> str:
        return f"<{' '.join(one.sentence for one in self.each)}>"

    @property
    def sentence(self) -> str:
        """Which run is better, by how much, and where; of the first two runs."""
        return first_sentence(self)

    @property
    def each(self) -> tuple["RunComparison", ...]:
        """Every run but the first against the first."""
        return (replace(self, others=()), *self.others)

    def parts(self) -> Iterator[tuple[str, str, ComparedPart]]:
        """Every part as its kind, its name and what it holds: "length", "4096", ..."""
        yield "overall", "all", self.overall
        kinds: dict[str, Mapping[Any, ComparedPart]]
        kinds = {"length": self.by_length, "depth": self.by_depth, "task": self.by_task}
        for kind, found in kinds.items():
            yield from ((kind, name, part) for name, part in found.items())
        for length, depths in self.by_length_and_depth.items():
            yield from (("length and depth", f"{length}, {depth}", part) for depth, part in depths.items())

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON values, as `longrm compare --json` prints it; docs/comparing.md tells the keys."""
        held: dict[str, Any] = {
            "sentence": self.sentence,
            "first": _described(self.first),
            "second": _described(self.second),
        }
        for field in fields(self)[2:-1]:
            held[field.name] = _plain(getattr(self, field.name))
        return held | {"others": [other.as_dict() for other in self.others]}

    def to_pandas(self) -> Any:
        """One row for each run but the first and each part, as a pandas data frame."""
        import pyarrow as pa

        rows = [
            {
                "first_run": one.first.name,
                "second_run": one.second.name,
                "kind": kind,
                "part": name,
                **part.row(),
            }
            for one in self.each
            for kind, name, part in one.parts()
        ]
        return pa.Table.from_pylist(rows).to_pandas()

    def _repr_html_(self) -> str:
        """The sentences, and a table of every part, for a notebook."""
        heads = ("run", "kind", "part", "first", "second", "difference", "p (Holm)", "n", "groups")
        metric, lines = metric_of(self.metric), []
        for one in self.each:
            for kind, name, part in one.parts():
                shown = (kind, name, *part_figures(metric, part), f"{part.n:,}", f"{part.groups:,}")
                lines.append([one.second.name, *shown])
        sentences = "".join(f"<p>{escape(one.sentence)}</p>" for one in self.each)
        head = "".join(f"<th>{name}</th>" for name in heads)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
        return f"{sentences}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def compare(*runs: str | Path, metric: str | None = None) -> RunComparison:
    """Compares finished evaluations on the comparisons that they share, by the text of prompt and responses.

    Args:
        runs: Run folders, two or more. The first is the reference; every other one is compared with it, which is not
            adjusted for their number.
        metric: A metric that is a mean over comparisons; by default main accuracy: pair accuracy, or top-1 where some
            comparison has more than two responses.

    Raises:
        RunError: A folder holds no finished evaluation, or two share no comparison that both could be scored on.
        ConfigError: Fewer than two runs, or no such metric.
    """
    if len(runs) < 2:
        raise ConfigError("a comparison needs two run folders or more")
    measured = None if metric is None else metric_of(metric)
    first, *others = opened = open_runs(runs)
    for run in opened:
        _ = run.evaluation  # a run that is unfinished or of another kind is an error
    found = [_compared(first, other, measured) for other in others]
    return replace(found[0], others=tuple(found[1:]))


def _compared(first: Run, second: Run, metric: EvaluationMetric | None) -> RunComparison:
    shared = shared_items(first, second)
    pairs = shared.pairs
    if metric is None:
        pairs_only = all(len(one.ranks or ()) == 2 for one, _ in pairs)
        metric = metric_of(main_metric(known.name for known in reported(pairs_only=pairs_only)))
    measure = PartMeasure(pairs, metric, **bootstrap_of(first))
    lengths = [one.length for one, _ in pairs]
    depths = [None if one.depth is None else depth_bin(one.depth) for one, _ in pairs]
    both = [None if None in cell else cell for cell in zip(lengths, depths, strict=True)]
    by_both: dict[str, dict[DepthBin, ComparedPart]] = defaultdict(dict)
    for (length, depth), part in measure.by(both).items():
        by_both[str(length)][depth] = part
    return RunComparison(
        first=first,
        second=second,
        metric=metric.name,
        overall=measure.by([""] * len(pairs))[""],
        by_length={str(length): part for length, part in measure.by(lengths).items()},
        by_depth=measure.by(depths),
        by_length_and_depth=dict(by_both),
        by_task=measure.by([one.task or None for one, _ in pairs]),
        left_out=dict(shared.left_out),
        differs_in=shared.differs_in,
        wins={
            side: tuple(one.id for (one, _), won in zip(pairs, wins, strict=True) if won)
            for side, wins in (("first", measure.gain < 0), ("second", measure.gain > 0))
        },
    )


def _described(run: Run) -> dict[str, str]:
    return {
        "label": run.name,
        "folder": str(run.path),
        "model": run.evaluation.model,
        "bench": run.evaluation.bench,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return asdict(value) if isinstance(value, ComparedPart) else value
