"""Tables for the terminal; they fit 80 columns."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from longrm.cli.terminal import print_lines, print_table

if TYPE_CHECKING:  # numpy is not loaded for the other commands
    from longrm.evaluation.summaries import ContextBoundary

FAILURES = {
    "format_missed": "no verdict in the text",
    "context_ignored": "same verdict without the context",
    "contradicted": "explanation against verdict",
}
"""What the failure patterns of a summary are called."""


def percentage(metric: Mapping[str, Any], *, interval: bool = True) -> str:
    """A metric as a percentage, with its 95% interval; a dash where it is undefined."""
    if metric["value"] is None:
        return "–"
    value = f"{100 * metric['value']:.1f}"
    if not interval or metric["low"] is None:
        return value
    return f"{value} [{100 * metric['low']:.1f}, {100 * metric['high']:.1f}]"


def print_evaluation(summary: Mapping[str, Any]) -> None:
    """Prints accuracy by length and by task, and one line for each other result that there is."""
    from longrm.evaluation.summary_schema import parse_evaluation
    from longrm.report import findings

    typed = parse_evaluation(summary)

    print_lines([f"{summary['model']} on {summary['bench']}"])
    if summary["chance"]:
        _print_metrics(summary)
    else:
        print_lines(["No gold order is known, so there is no accuracy."])
    lines = (
        _outcomes(summary["counts"]),
        findings.cuts(typed),
        findings.order(typed),
        _failures(summary["failures"]),
        _unchecked(summary["counts"]),
        findings.baselines(typed),
        *findings.rules(typed),
        *findings.wrong_data(typed),
        boundary_line(typed.boundary) if typed.boundary else "",
    )
    print_lines(filter(None, lines))


def _print_metrics(summary: Mapping[str, Any]) -> None:
    from longrm.evaluation.summaries import main_metric

    metrics, name = summary["metrics"], main_metric(summary["metrics"]["overall"])
    columns = (f"{name.replace('_', ' ')}, %", "n", "groups")
    print_table(
        ("length", *columns),
        _rows({"all": metrics["overall"]} | metrics["by_length"], name),
        caption=f"95% intervals; chance is {100 * summary['chance'][name]:.1f}%",
    )
    if len(metrics["by_task"]) > 1:
        mean = ("mean", percentage(metrics["macro"]["by_task"]), "", "")
        print_table(("task", *columns), [*_rows(metrics["by_task"], name), mean], title="By task")


def _rows(parts: Mapping[str, Any], name: str) -> list[tuple[str, ...]]:
    return [
        (part, percentage(m[name]), str(m[name]["n"]), str(m[name]["groups"])) for part, m in parts.items()
    ]


def _outcomes(counts: Mapping[str, Any]) -> str:
    outcomes = ", ".join(
        f"{count} {key.replace('_', ' ')}" for key, count in counts["outcomes"].items() if count
    )
    trials = counts["trials"]["total"]
    return f"Outcomes: {outcomes}" + (f", in {trials} trials" if trials != counts["comparisons"] else "")


def boundary_line(boundary: "ContextBoundary") -> str:
    """The context boundary in one sentence."""
    from longrm.report import wording

    parts = [wording.STATUSES[boundary.status][1]]
    if boundary.estimate.value is not None:
        estimate = f"{wording.boundary_estimate(boundary)} {wording.boundary_interval(boundary)}"
        parts.append(f"estimate {estimate.strip()} tokens")
    parts.append(f"accuracy threshold {boundary.tau:.2f}")
    if boundary.status == "unresolved" and boundary.pairs_to_resolve is not None:
        parts.append(f"about {boundary.pairs_to_resolve} pairs a length would resolve it")
    return "Context boundary: " + "; ".join(filter(None, parts))


def _unchecked(counts: Mapping[str, Any]) -> str:
    """The comparisons whose context check came to nothing, where there was one."""
    states = counts["context_check"] or {}
    parts = {"unanswered": "not answered", "impossible": "without a known context or another to swap in"}
    found = [f"{states[name]} {meaning}" for name, meaning in parts.items() if states.get(name)]
    return "Context not checked: " + ", ".join(found) if found else ""


def _failures(failures: Mapping[str, Any]) -> str:
    """The failure patterns that occurred."""
    found = {name: metric for name, metric in failures.items() if metric and metric["value"]}
    shares = "; ".join(f"{FAILURES[name]} {percentage(metric)}" for name, metric in found.items())
    return f"Failures, %: {shares}" if shares else ""


def print_stages(stages: Mapping[str, Any], title: str) -> None:
    """Prints one row a stage and one column a length."""
    from longrm.evaluation.summaries import main_metric

    first = next(iter(stages.values()))
    name = main_metric(first["metrics"]["overall"])
    lengths = list(first["metrics"]["by_length"])
    rows = [
        (stage, *(percentage(summary["metrics"]["by_length"][n][name], interval=False) for n in lengths))
        for stage, summary in stages.items()
    ]
    print_table(("stage", *lengths), rows, title=title)
