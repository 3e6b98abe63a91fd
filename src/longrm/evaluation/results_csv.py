"""A run in the layout of the LongRM paper's tables, beside the rows that the paper prints."""

import csv
import io
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from longrm.evaluation.metrics import METRICS, PAIR_ACCURACY, metric_of
from longrm.evaluation.metrics.exact_order import EXACT_ORDER
from longrm.evaluation.metrics.position_match import POSITION_MATCH
from longrm.evaluation.summaries import main_metric
from longrm.evaluation.table import BEST_OF
from longrm.runs.folder import write_file

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


def write_results(summary: Mapping[str, Any], path: Path) -> None:
    """Writes a CSV file in percent, as the paper prints its figures; a figure that does not exist stays empty.

    On Long-RewardBench, tasks, lengths and `macro` (the mean over lengths) are of the pairs alone; Rank2 to Rank4
    are of the rankings, `avg` of everything. This run comes with position-wise matches (the paper's Eq. 2), then,
    if there are rankings, with exact orders, then as the release scores it, if that was asked for. Below come the
    published rows with the known defects of each; `RewardBench` is the published average on short contexts.

    Nothing of the paper compares with another benchmark: the run stands alone there, in columns of its own tasks
    and lengths (in tokens), by its main accuracy.

    A metric that is not of the paper has a row of its own; one that is no share is not in percent.

    Args:
        summary: Of an evaluation.
        path: The file to write.

    Raises:
        RunError: The file cannot be written.
    """
    if summary["bench"].startswith(BENCH):
        columns, rows = list(COLUMNS), [*_own(summary), *_published()]
    else:
        columns, rows = _elsewhere(summary)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_file(path, text.getvalue())


def _own(summary: Mapping[str, Any]) -> Iterator[CsvRow]:
    metrics = summary["metrics"]
    model = {"model": summary["model"], "defects": ""}
    shared: CsvRow = {}
    if pairs := _pairs(metrics):
        shared = {
            **{task: _metric(pairs["by_task"], task, PAIR_ACCURACY.name) for task in TASKS},
            **{
                name: _metric(pairs["by_length"], tokens, PAIR_ACCURACY.name)
                for name, tokens in LENGTHS.items()
            },
            "macro": _percent(pairs["macro"]["by_length"]["value"]),
        }
    several = POSITION_MATCH.name in metrics["overall"]
    names = (POSITION_MATCH.name, EXACT_ORDER.name) if several else (PAIR_ACCURACY.name,)
    for name in (*names, *_further(metrics)):
        ranks = {f"Rank{n}": _metric(metrics["by_subtype"], n, name) for n in BEST_OF}
        average = {"source": f"this run, {name}", "avg": _metric(metrics, "overall", name)}
        yield model | shared | ranks | average
    if release := summary.get("release_rule"):
        yield {
            **model,
            "source": "this run, as the release scores it",
            **{task: _number(release["by_task_percent"].get(task)) for task in TASKS},
            **{f"Rank{n}": _number(release["by_rank_percent"].get(n)) for n in BEST_OF},
            "avg": _number(release["overall_percent"]),
        }


def _pairs(metrics: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The figures of the pairs alone; None where there is no pair."""
    if metrics["pairs"]:
        pairs: Mapping[str, Any] = metrics["pairs"]
        return pairs
    ranked = any(
        metrics["by_subtype"][n][PAIR_ACCURACY.name]["n"] for n in BEST_OF if n in metrics["by_subtype"]
    )
    return None if ranked or POSITION_MATCH.name in metrics["overall"] else metrics


def _further(metrics: Mapping[str, Any]) -> list[str]:
    """The reported metrics that have a row of their own wherever they are reported."""
    return [name for name, metric in METRICS.items() if metric.in_results and name in metrics["overall"]]


def _elsewhere(summary: Mapping[str, Any]) -> tuple[list[str], list[CsvRow]]:
    """Columns and rows of a run on another benchmark: of main accuracy first, which alone has a mean over lengths."""
    main, *others = (main_metric(summary["metrics"]["overall"]), *_further(summary["metrics"]))
    first = _row_of(summary, main) | {"macro": _percent(summary["metrics"]["macro"]["by_length"]["value"])}
    return list(first), [first, *(_row_of(summary, name) for name in others)]


def _row_of(summary: Mapping[str, Any], name: str) -> CsvRow:
    """One metric over all comparisons, by task and by length."""
    metrics = summary["metrics"]
    tasks = {f"task {task}": _metric(metrics["by_task"], task, name) for task in metrics["by_task"]}
    lengths = {f"length {size}": _metric(metrics["by_length"], size, name) for size in metrics["by_length"]}
    return {
        "bench": summary["bench"],
        "model": summary["model"],
        "source": f"this run, {name}",
        **tasks,
        "avg": _metric(metrics, "overall", name),
        **lengths,
    }


def _published() -> Iterator[CsvRow]:
    text = resources.files("longrm.evaluation").joinpath("published.toml").read_text(encoding="utf-8")
    published = tomllib.loads(text)
    for row in published["row"]:
        defects = "; ".join(published["defects"][name] for name in row["defects"])
        figures = {name: _number(value) for name, value in row["figures"].items()}
        yield {"model": row["model"], "source": published["source"], "defects": defects} | figures


def _metric(buckets: Mapping[str, Any], key: str, name: str) -> str:
    if key not in buckets:
        return ""
    value = buckets[key][name]["value"]
    return _percent(value) if metric_of(name).is_share else _number(value)


def _percent(share: float | None) -> str:
    return _number(None if share is None else 100 * share)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
