"""RM-Bench (arXiv 2410.16184): three right and three wrong responses, each in three styles."""

from collections import Counter
from pathlib import Path

from longrm.benchmarks.benchmark import (
    BenchmarkRequest,
    LoadedBenchmark,
    best_and_rest,
    load_rows,
    numbered,
    published_comparison,
)
from longrm.data.fields import FileRow, name_of
from longrm.reading import FieldError, short
from longrm.types import Comparison

DOMAINS = ("chat", "code", "math", "safety")
STYLES = ("concise", "detailed", "markdown")
"""The styles of the responses, in their order: each richer than the one before."""

_USED = {"id", "prompt", "chosen", "rejected", "domain", "domain of file"}


def load_rm_bench(request: BenchmarkRequest) -> LoadedBenchmark:
    """The items as `DOMAIN/ID`, numbered where an id is repeated: chosen responses first, in the order of `STYLES`.

    Only the file of all domains names them in its rows. Those of one domain begin with it, as in `chat_filtered.json`.
    """

    def convert(row: FileRow, number: int, names: Counter[str]) -> Comparison:
        if "domain" not in row and "domain of file" not in row:
            raise FieldError(
                "domain", "missing; add the column, or begin the file's name with it (chat_filtered.json)"
            )
        domain = name_of(row, "domain" if "domain" in row else "domain of file")
        task = next((known for known in DOMAINS if domain.startswith(known)), None)
        if task is None:
            raise FieldError("domain", f"RM-Bench has no {short(domain)}; known: {', '.join(DOMAINS)}")
        responses, ranks = best_and_rest(row)
        for field in ("chosen", "rejected"):
            if len(row[field]) != len(STYLES):
                raise FieldError(field, f"must be one response per style ({', '.join(STYLES)})")
        identity = numbered(f"{domain}/{name_of(row, 'id')}", names)
        metadata = {"task": task, "subtype": domain}
        return published_comparison(row, identity, "prompt", responses, ranks, used=_USED, metadata=metadata)

    return load_rows(request, convert, file_columns=_domain)


def _domain(file: Path) -> FileRow:
    name = file.name.partition("_")[0]
    return {"domain of file": name} if name.startswith(DOMAINS) else {}
