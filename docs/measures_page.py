"""Writes the table of metrics in `docs/measures.md` and the schema of summaries; `--check` fails if one is outdated."""

import json
import sys
from pathlib import Path

from longrm.evaluation.metrics import METRICS, EvaluationMetric
from longrm.evaluation.summary_schema import summary_schema
from longrm.evaluation.table import JudgmentTable, scored_table
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome

PAGE = Path(__file__).with_name("measures.md")
SCHEMA = Path(__file__).parents[1] / "src" / "longrm" / "runs" / "summary.schema.json"
BEGIN, END = "<!-- metrics: made by `make docs` -->", "<!-- end of metrics -->"
SIZES = (2, 3, 4)
"""Numbers of responses for which the table has chance levels."""


def table() -> str:
    """The metrics as a table of Markdown."""
    head = ("key", "title", "what it measures", "range", "needs", "chance with 2, 3, 4 responses", "of pairs")
    rows = [[f"`{metric.name}`", *columns(metric)] for metric in METRICS.values()]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def columns(metric: EvaluationMetric) -> list[str]:
    low, high = metric.span
    levels = ", ".join(f"{metric.chance_on(strict_order(size)):.3g}" for size in SIZES)
    reported = "yes" if metric.for_pairs else "no"
    needs = "scores" if metric.needs_scores else "any verdict"
    return [metric.title, metric.description, f"{low:g} to {high:g}", needs, levels, reported]


def strict_order(size: int) -> JudgmentTable:
    """One comparison of so many responses, none of which gold ties."""
    ranks, order = tuple(range(1, size + 1)), tuple(range(size))
    scores = tuple(map(float, order))
    return scored_table(
        [JudgmentRecord(id="a", group="a", outcome=Outcome.ANSWERED, ranks=ranks, order=order, scores=scores)]
    )


def page() -> str:
    """The page as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, found, after = rest.partition(END)
    assert found, f"{PAGE.name} needs the lines {BEGIN!r} and {END!r}"
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> None:
    made = {PAGE: page(), SCHEMA: json.dumps(summary_schema(), indent=1, ensure_ascii=False) + "\n"}
    for path, text in made.items():
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.name} is out of date: run `make docs` and commit it")


if __name__ == "__main__":
    main()
