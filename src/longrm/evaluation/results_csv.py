"""A run in the layout of the LongRM paper's tables, beside the rows that the paper prints."""

import csv
import io
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from longrm.evaluation.breakdown import BEST_OF
from longrm.evaluation.metrics import main_metric
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

Row = dict[str, str]


def write_results(summary: Mapping[str, Any], path: Path) -> None:
    """Writes a CSV file in percent, as the paper prints its figures; a figure that does not exist stays empty.

    On Long-RewardBench, tasks, lengths and `macro` (the mean over lengths) are of the pairs alone; Rank2 to Rank4
    are of the rankings, `avg` of everything. This run comes with position-wise matches (the paper's Eq. 2), then,
    if there are rankings, with exact orders, then as the release scores it, if that was asked for. Below come the
    published rows with the known defects of each; `RewardBench` is the published average on short contexts.

    Nothing of the paper compares with another benchmark: the run stands alone there, in columns of its own tasks
    and lengths (in tokens), by its main accuracy.

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


def _own(summary: Mapping[str, Any]) -> Iterator[Row]:
    metrics = summary["metrics"]
    model = {"model": summary["model"], "defects": ""}
    shared: Row = {}
    if pairs := _pairs(metrics):
        shared = {
            **{task: _metric(pairs["by_task"], task, "pair_accuracy") for task in TASKS},
            **{
                name: _metric(pairs["by_length"], tokens, "pair_accuracy") for name, tokens in LENGTHS.items()
            },
            "macro": _percent(pairs["macro"]["by_length"]["value"]),
        }
    several = "position_match" in metrics["overall"]
    for name in ("position_match", "exact_order") if several else ("pair_accuracy",):
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
        metrics["by_subtype"][n]["pair_accuracy"]["n"] for n in BEST_OF if n in metrics["by_subtype"]
    )
    return None if ranked or "position_match" in metrics["overall"] else metrics


def _elsewhere(summary: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """Columns and the row of a run on another benchmark."""
    metrics = summary["metrics"]
    name = main_metric(summary)
    tasks = {f"task {task}": _metric(metrics["by_task"], task, name) for task in metrics["by_task"]}
    lengths = {f"length {size}": _metric(metrics["by_length"], size, name) for size in metrics["by_length"]}
    row = {
        "bench": summary["bench"],
        "model": summary["model"],
        "source": f"this run, {name}",
        **tasks,
        "avg": _metric(metrics, "overall", name),
        **lengths,
        "macro": _percent(metrics["macro"]["by_length"]["value"]),
    }
    return list(row), [row]


def _published() -> Iterator[Row]:
    text = resources.files("longrm.evaluation").joinpath("published.toml").read_text(encoding="utf-8")
    published = tomllib.loads(text)
    for row in published["row"]:
        defects = "; ".join(published["defects"][name] for name in row["defects"])
        figures = {name: _number(value) for name, value in row["figures"].items()}
        yield {"model": row["model"], "source": published["source"], "defects": defects} | figures


def _metric(buckets: Mapping[str, Any], key: str, name: str) -> str:
    return _percent(buckets[key][name]["value"]) if key in buckets else ""


def _percent(share: float | None) -> str:
    return _number(None if share is None else 100 * share)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
