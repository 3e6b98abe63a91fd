"""RM-Bench (arXiv 2410.16184): three right and three wrong responses, each in three styles."""

from collections import Counter
from typing import Any

from longrm.benchmarks.benchmark import (
    BenchmarkRequest,
    LoadedBenchmark,
    items_of,
    load_rows,
    numbered,
    prompt_group,
    published_comparison,
)
from longrm.data.fields import FileRow, messages_of, name_of, required
from longrm.reading import FieldError, short
from longrm.types import Comparison

DOMAINS = ("chat", "code", "math", "safety")
STYLES = ("concise", "detailed", "markdown")
"""The styles of the responses, in their order: each richer than the one before."""

_USED = {"id", "prompt", "chosen", "rejected", "domain"}


def load_rm_bench(request: BenchmarkRequest) -> LoadedBenchmark:
    """The items as `DOMAIN/ID`, numbered where an id is repeated: chosen responses first, in the order of `STYLES`."""

    def convert(row: FileRow, number: int, names: Counter[str]) -> Comparison:
        domain = name_of(row, "domain")
        task = next((known for known in DOMAINS if domain.startswith(known)), None)
        if task is None:
            raise FieldError("domain", f"RM-Bench has no {short(domain)}; known: {', '.join(DOMAINS)}")
        given: dict[str, Any] = {}
        for field in ("chosen", "rejected"):
            items = items_of(row, field)
            if len(items) != len(STYLES):
                raise FieldError(field, f"must be {len(STYLES)} responses, one per style, got {len(items)}")
            given |= items
        group = prompt_group(
            messages_of(required(row, "prompt")[1], "prompt", "user")
        )  # before the id: a row without a prompt takes no number
        return published_comparison(
            row,
            numbered(f"{domain}/{name_of(row, 'id')}", names),
            "prompt",
            given,
            (*[1] * len(STYLES), *[2] * len(STYLES)),
            used=_USED,
            group=group,
            metadata={"task": task, "subtype": domain},
        )

    return load_rows(request, convert)
