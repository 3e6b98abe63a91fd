"""JudgeBench (arXiv 2410.12784): pairs of which one is objectively right."""

from longrm.benchmarks.auditor import UNREADABLE
from longrm.benchmarks.benchmark_data import BenchmarkRequest, LoadedBenchmark
from longrm.benchmarks.published_rows import Converter, Unrateable, held, load_rows, rateable_responses
from longrm.data.fields import FileRow, group_of, messages_of, name_of, required, to_json_types
from longrm.reading import FieldError, short
from longrm.types import Comparison

CATEGORIES = {
    "mmlu-pro": "Knowledge",
    "livebench-reasoning": "Reasoning",
    "livebench-math": "Math",
    "livecodebench": "Coding",
}
"""The categories by how the names of their sources begin."""

FINDINGS = {
    "repeated_pairs": "rows of a pair that came before, judged by another judge; left out",
    **UNREADABLE,
}

_RANKS = {"A>B": (1, 2), "B>A": (2, 1)}


def load_judgebench(request: BenchmarkRequest) -> LoadedBenchmark:
    """The pairs of a file, or of a folder of files, under their `pair_id`; the task is the category.

    A pair that several judges judged comes once. The judgments recorded beside the pairs are not looked at.
    Where both responses are identical the gold ranks tie: nobody can be right, but the pair counts in its rule.
    """
    return load_rows(request, _converter, FINDINGS)


def _converter() -> Converter:
    seen: set[str] = set()

    def convert(row: FileRow, number: int) -> Comparison:
        identity = name_of(row, "pair_id")
        if identity in seen:
            raise Unrateable("repeated_pairs")
        seen.add(identity)
        return _comparison(identity, row)

    return convert


def _comparison(identity: str, row: FileRow) -> Comparison:
    source = name_of(row, "source")
    category = next((name for start, name in CATEGORIES.items() if source.startswith(start)), None)
    if category is None:
        raise FieldError(
            "source", f"of no known category, got {short(source)}; known: {', '.join(CATEGORIES)}"
        )
    label = name_of(row, "label")
    if label not in _RANKS:
        raise FieldError("label", f"needs {' or '.join(_RANKS)}, got {short(label)}")
    prompt = messages_of(required(row, "question")[1], "question", "user")
    given = held(row, "response_A", "response_B")
    ranks = (1, 1) if given["response_A"] == given["response_B"] else _RANKS[label]
    return Comparison(
        id=identity,
        group=group_of({}, prompt, (), None),
        prompt=prompt,
        responses=rateable_responses(given, ranks),
        ranks=ranks,
        metadata={
            "task": category,
            "subtype": source,
            "source": source,
            "response_model": to_json_types(row.get("response_model")),
        },
    )
