"""RewardBench 2 (arXiv 2506.01937): the best of four in five subsets, and many right answers in a sixth."""

from longrm.benchmarks.auditor import UNREADABLE
from longrm.benchmarks.benchmark_data import BenchmarkRequest, LoadedBenchmark
from longrm.benchmarks.published_rows import listed, load_rows, rateable_responses
from longrm.data.fields import FileRow, group_of, messages_of, name_of, required, to_json_types
from longrm.reading import FieldError, short
from longrm.types import Comparison

TIES = "Ties"
SUBSETS = ("Factuality", "Precise IF", "Math", "Safety", "Focus", TIES)

_USED = {"id", "prompt", "chosen", "rejected", "subset"}


def load_rewardbench_2(request: BenchmarkRequest) -> LoadedBenchmark:
    """The items under their own ids: all chosen responses have rank 1, all rejected ones rank 2.

    Those of the ties are named `ref:K` (one right answer) and `tied:K` (several); both are of the group `Ties/K`.
    """
    return load_rows(request, lambda: _comparison, UNREADABLE)


def _comparison(row: FileRow, number: int) -> Comparison:
    subset = name_of(row, "subset")
    if subset not in SUBSETS:
        raise FieldError("subset", f"RewardBench 2 has no {short(subset)}; known: {', '.join(SUBSETS)}")
    identity = name_of(row, "id")
    kind, _, pair = identity.partition(":")
    if subset == TIES and not (kind in {"ref", "tied"} and pair.isdecimal()):
        raise FieldError("id", f"ties are named 'ref:K' or 'tied:K', got {short(identity)}")
    prompt = messages_of(required(row, "prompt")[1], "prompt", "user")
    chosen, rejected = listed(row, "chosen"), listed(row, "rejected")
    ranks = (*[1] * len(chosen), *[2] * len(rejected))
    return Comparison(
        id=identity,
        group=f"{TIES}/{pair}" if subset == TIES else group_of(row, prompt, (), None),
        prompt=prompt,
        responses=rateable_responses(chosen | rejected, ranks),
        ranks=ranks,
        metadata={
            **{key: to_json_types(value) for key, value in row.items() if key not in _USED},
            "task": subset,
            "subtype": kind if subset == TIES else "",
        },
    )
