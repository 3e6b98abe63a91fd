"""RM-Bench (arXiv 2410.16184): three right and three wrong responses, each in three styles."""

from longrm.benchmarks.auditor import UNREADABLE
from longrm.benchmarks.benchmark_data import BenchmarkRequest, LoadedBenchmark
from longrm.benchmarks.published_rows import Converter, listed, load_rows, numbered_names, rateable_responses
from longrm.data.fields import FileRow, group_of, messages_of, name_of, required, to_json_types
from longrm.reading import FieldError, short
from longrm.types import Comparison

DOMAINS = ("chat", "code", "math", "safety")
STYLES = ("concise", "detailed", "markdown")
"""The styles of the responses, in their order: each richer than the one before."""

_USED = {"id", "prompt", "chosen", "rejected", "domain"}


def load_rm_bench(request: BenchmarkRequest) -> LoadedBenchmark:
    """The items of a file, or of a folder of files: six responses, chosen ones first, in the order of `STYLES`.

    They are named after their domain and their id, with the number of its occurrence where an id comes again.
    """
    return load_rows(request, _converter, UNREADABLE)


def _converter() -> Converter:
    numbered = numbered_names()

    def convert(row: FileRow, number: int) -> Comparison:
        domain = name_of(row, "domain")
        task = next((known for known in DOMAINS if domain.startswith(known)), None)
        if task is None:
            raise FieldError("domain", f"RM-Bench has no {short(domain)}; known: {', '.join(DOMAINS)}")
        prompt = messages_of(required(row, "prompt")[1], "prompt", "user")
        chosen, rejected = listed(row, "chosen"), listed(row, "rejected")
        for field, given in (("chosen", chosen), ("rejected", rejected)):
            if len(given) != len(STYLES):
                raise FieldError(
                    field,
                    f"needs {len(STYLES)} responses, one a style ({', '.join(STYLES)}), got {len(given)}",
                )
        ranks = (*[1] * len(chosen), *[2] * len(rejected))
        return Comparison(
            id=numbered(f"{domain}/{name_of(row, 'id')}"),
            group=group_of({}, prompt, (), None),
            prompt=prompt,
            responses=rateable_responses(chosen | rejected, ranks),
            ranks=ranks,
            metadata={
                **{key: to_json_types(value) for key, value in row.items() if key not in _USED},
                "task": task,
                "subtype": domain,
            },
        )

    return convert
