"""`results.csv`: a run in the layout of the LongRM paper's tables, next to the rows that the paper prints."""

import csv
import io
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path

from longrm.evaluation.metrics import EXACT_ORDER, METRICS, PAIR_ACCURACY, POSITION_MATCH, metric_of
from longrm.evaluation.summary_schema import EvaluationSummary, MetricBreakdown
from longrm.evaluation.table import BEST_OF
from longrm.runs.folder import write_file
from longrm.runs.records import Estimate

BENCH = "long-rewardbench"
TASKS = ("Cite", "Code", "ICL", "LongQA", "Math", "Safety", "Summ")
LENGTHS = {f"{thousands}k": str(1024 * thousands) for thousands in (4, 8, 16, 32, 64, 128)}
COLUMNS = (
    *("model", "source", "defects"),
    *TASKS,
    *(f"Rank{n}" for n in BEST_OF),
    "avg",
    *LENGTHS,
    *("macro", "RewardBench"),
)
"""The paper's columns, for Long-RewardBench alone."""

CsvRow = dict[str, str]


def write_results(summary: EvaluationSummary, path: Path) -> None:
    """Writes a CSV file in percent, as the paper prints its numbers; missing numbers are empty.

    On Long-RewardBench, tasks, lengths and `macro` (the mean over lengths) are of the pairs alone; Rank2 to Rank4 are
    of the rankings, `avg` of everything. The first row has position matches (the paper's Eq. 2). Exact orders follow if
    there are rankings, and a row for each metric that is not in the paper. Below are the published rows with the known
    defects of each; `RewardBench` is the published average on short contexts.

    On another benchmark nothing of the paper is comparable: there the columns are its own tasks and lengths (in
    tokens), with main accuracy. A metric that is not a share is not in percent.
    """
    known = summary.bench.startswith(BENCH)
    rows = [*_own(summary), *_published()] if known else _elsewhere(summary)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS if known else list(rows[0]), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_file(path, text.getvalue())


def _own(summary: EvaluationSummary) -> Iterator[CsvRow]:
    metrics = summary.metrics
    model = {"model": summary.model, "defects": ""}
    several = POSITION_MATCH.name in metrics.overall
    ranked = several or any(
        metrics.by_subtype[n][PAIR_ACCURACY.name].n for n in BEST_OF if n in metrics.by_subtype
    )
    shared: CsvRow = {}
    if pairs := metrics.pairs or (None if ranked else metrics):  # without any pair these stay empty
        shared = _part_columns(pairs.by_task, {task: task for task in TASKS}, PAIR_ACCURACY.name)
        shared |= _part_columns(pairs.by_length, LENGTHS, PAIR_ACCURACY.name)
        shared["macro"] = _percent(pairs.macro.by_length.value)
    names = (POSITION_MATCH.name, EXACT_ORDER.name) if several else (PAIR_ACCURACY.name,)
    for name in (*names, *_further(metrics)):
        ranks = _part_columns(metrics.by_subtype, {f"Rank{n}": n for n in BEST_OF}, name)
        average = {"source": f"this run, {name}", "avg": _value(metrics.overall[name], name)}
        yield model | shared | ranks | average


def _further(metrics: MetricBreakdown) -> list[str]:
    """The reported metrics that have their own row."""
    return [name for name, metric in METRICS.items() if metric.in_results and name in metrics.overall]


def _elsewhere(summary: EvaluationSummary) -> list[CsvRow]:
    """Rows of a run on another benchmark. Only main accuracy, in the first row, has a mean over lengths."""
    metrics, rows = summary.metrics, []
    for name in (summary.main_metric, *_further(metrics)):
        row = {"bench": summary.bench, "model": summary.model, "source": f"this run, {name}"}
        row |= _part_columns(metrics.by_task, {f"task {task}": task for task in metrics.by_task}, name)
        row["avg"] = _value(metrics.overall[name], name)
        row |= _part_columns(metrics.by_length, {f"length {size}": size for size in metrics.by_length}, name)
        rows.append(row)
    rows[0]["macro"] = _percent(metrics.macro.by_length.value)
    return rows


def _published() -> Iterator[CsvRow]:
    text = resources.files("longrm.evaluation").joinpath("published.toml").read_text(encoding="utf-8")
    published = tomllib.loads(text)
    for row in published["row"]:
        defects = "; ".join(published["defects"][name] for name in row["defects"])
        numbers = {name: _number(value) for name, value in row["numbers"].items()}
        yield {"model": row["model"], "source": published["source"], "defects": defects} | numbers


def _part_columns(
    parts: Mapping[str, Mapping[str, Estimate]], columns: Mapping[str, str], metric: str
) -> CsvRow:
    """A metric in the part that each column shows; empty if there is no such part."""
    return {
        column: _value(parts[part][metric], metric) if part in parts else ""
        for column, part in columns.items()
    }


def _value(estimate: Estimate, name: str) -> str:
    return _percent(estimate.value) if metric_of(name).is_share else _number(estimate.value)


def _percent(share: float | None) -> str:
    return _number(None if share is None else 100 * share)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
