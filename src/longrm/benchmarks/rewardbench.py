"""RewardBench (arXiv 2403.13787): short pairs in four sections. RewardBench 2 (arXiv 2506.01937): the best of four."""

from collections import Counter

from longrm.benchmarks.benchmark import (
    BenchmarkRequest,
    LoadedBenchmark,
    best_and_rest,
    columns_of,
    load_rows,
    numbered,
    published_comparison,
)
from longrm.data.fields import FileRow, name_of
from longrm.reading import FieldError, short
from longrm.types import Comparison

SECTIONS: dict[str, tuple[str, ...]] = {
    "Chat": ("alpacaeval-easy", "alpacaeval-length", "alpacaeval-hard", "mt-bench-easy", "mt-bench-med"),
    "Chat Hard": (
        "mt-bench-hard",
        "llmbar-natural",
        "llmbar-adver-neighbor",
        "llmbar-adver-GPTInst",
        "llmbar-adver-GPTOut",
        "llmbar-adver-manual",
    ),
    "Safety": (
        "refusals-dangerous",
        "refusals-offensive",
        "xstest-should-refuse",
        "xstest-should-respond",
        "donotanswer",
    ),
    "Reasoning": ("math-prm", "hep-cpp", "hep-go", "hep-java", "hep-js", "hep-python", "hep-rust"),
}
"""The subsets of each section of RewardBench."""

TIES = "Ties"
SUBSETS = ("Factuality", "Precise IF", "Math", "Safety", "Focus", TIES)
"""The subsets of RewardBench 2."""

_SECTION_OF = {subset: section for section, subsets in SECTIONS.items() for subset in subsets}
_USED = {"id", "prompt", "chosen", "rejected", "subset"}


def load_rewardbench(request: BenchmarkRequest) -> LoadedBenchmark:
    """The pairs as `SUBSET/ID`, numbered where an id is repeated; the task is the section."""

    def convert(row: FileRow, number: int, names: Counter[str]) -> Comparison:
        subset = name_of(row, "subset")
        identity = numbered(f"{subset}/{name_of(row, 'id')}", names)
        if subset not in _SECTION_OF:
            raise FieldError("subset", f"RewardBench has no {short(subset)}; known: {', '.join(_SECTION_OF)}")
        given = columns_of(row, "chosen", "rejected")
        metadata = {"task": _SECTION_OF[subset], "subtype": subset}
        return published_comparison(row, identity, "prompt", given, (1, 2), used=_USED, metadata=metadata)

    return load_rows(request, convert)


def load_rewardbench_2(request: BenchmarkRequest) -> LoadedBenchmark:
    """The items under their own ids: all chosen responses have rank 1, all rejected ones rank 2.

    Ties are named `ref:K` (one right answer) and `tied:K` (several); both have the group `Ties/K`.
    """

    def convert(row: FileRow, number: int, names: Counter[str]) -> Comparison:
        subset = name_of(row, "subset")
        if subset not in SUBSETS:
            raise FieldError("subset", f"RewardBench 2 has no {short(subset)}; known: {', '.join(SUBSETS)}")
        identity = name_of(row, "id")
        kind, _, pair = identity.partition(":")
        if subset == TIES and not (kind in {"ref", "tied"} and pair.isdecimal()):
            raise FieldError("id", f"ties are named 'ref:K' or 'tied:K', got {short(identity)}")
        responses, ranks = best_and_rest(row)
        return published_comparison(
            row,
            identity,
            "prompt",
            responses,
            ranks,
            used=_USED,
            group=f"{TIES}/{pair}" if subset == TIES else None,
            metadata={"task": subset, "subtype": kind if subset == TIES else ""},
        )

    return load_rows(request, convert)
