"""Long-form RewardBench (arXiv 2603.12963): long responses, the best of four or of two, and errors at known places."""

from collections import Counter
from dataclasses import replace

from longrm.benchmarks.benchmark import (
    BenchmarkRequest,
    LoadedBenchmark,
    best_and_rest,
    bucket,
    load_rows,
    measure_with,
    numbered,
    published_comparison,
)
from longrm.data.fields import FileRow, name_of
from longrm.types import Comparison, text_of

NEEDLE = "needle"
"""The task of rows with the place of their error."""

_POSITIONS = ("tagged_position", "tag_position")  # two scripts of the authors write the same column
_USED = {"id", "prompt", "chosen", "rejected", "subset", *_POSITIONS}


def load_long_form_rewardbench(request: BenchmarkRequest) -> LoadedBenchmark:
    """The items as `SUBSET/ID`: all chosen responses have rank 1, all rejected ones rank 2.

    The responses are what is long here: `length` is the bucket of prompt and longest response together, and `depth` is
    the place of the error in its response, for items of the needle test.
    """
    measure = measure_with(request.source.tokenizer)

    def convert(row: FileRow, number: int, names: Counter[str]) -> Comparison:
        position = next((row[name] for name in _POSITIONS if row.get(name) is not None), None)
        subset = NEEDLE if position is not None and row.get("subset") is None else name_of(row, "subset")
        own = str(number) if row.get("id") is None else name_of(row, "id")
        # One response may be a text.
        lists = {k: [row[k]] if isinstance(row.get(k), str) else row.get(k) for k in ("chosen", "rejected")}
        responses, ranks = best_and_rest(lists)
        depth = {} if position is None else {"depth": position}
        identity = numbered(f"{subset}/{own}", names)
        item = published_comparison(row, identity, "prompt", responses, ranks, used=_USED, metadata=depth)
        longest = max(measure(text_of(response)) for response in item.responses)
        length = bucket(measure(text_of(item.prompt)) + longest)
        return replace(item, metadata={**item.metadata, "length": length, "task": subset})

    return load_rows(request, convert)
