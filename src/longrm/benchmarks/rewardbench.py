"""RewardBench (arXiv 2403.13787): short pairs in four sections."""

from longrm.benchmarks.auditor import UNREADABLE
from longrm.benchmarks.benchmark_data import BenchmarkRequest, LoadedBenchmark
from longrm.benchmarks.published_rows import Converter, held, load_rows, numbered_names, rateable_responses
from longrm.data.fields import FileRow, group_of, messages_of, name_of, required, to_json_types
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
"""The subsets of each section."""


_SECTION_OF = {subset: section for section, subsets in SECTIONS.items() for subset in subsets}
_USED = {"id", "prompt", "chosen", "rejected", "subset"}


def load_rewardbench(request: BenchmarkRequest) -> LoadedBenchmark:
    """The pairs of a file, or of a folder of files; the task is the section.

    They are named after their subset and their id, with the number of its occurrence where an id comes again.
    """
    return load_rows(request, _converter, UNREADABLE)


def _converter() -> Converter:
    numbered = numbered_names()

    def convert(row: FileRow, number: int) -> Comparison:
        return _comparison(numbered(f"{name_of(row, 'subset')}/{name_of(row, 'id')}"), row)

    return convert


def _comparison(identity: str, row: FileRow) -> Comparison:
    subset = str(row["subset"])
    if subset not in _SECTION_OF:
        raise FieldError("subset", f"RewardBench has no {short(subset)}; known: {', '.join(_SECTION_OF)}")
    prompt = messages_of(required(row, "prompt")[1], "prompt", "user")
    return Comparison(
        id=identity,
        group=group_of(row, prompt, (), None),
        prompt=prompt,
        responses=rateable_responses(held(row, "chosen", "rejected"), (1, 2)),
        ranks=(1, 2),
        metadata={
            **{key: to_json_types(value) for key, value in row.items() if key not in _USED},
            "task": _SECTION_OF[subset],
            "subtype": subset,
        },
    )
