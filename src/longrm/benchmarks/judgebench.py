"""JudgeBench (arXiv 2410.12784): pairs of which one is objectively right."""

from collections import Counter
from typing import Any

from longrm.benchmarks.benchmark import (
    UNREADABLE,
    BenchmarkRequest,
    LoadedBenchmark,
    Unrateable,
    columns_of,
    load_rows,
    published_comparison,
)
from longrm.data.fields import FileRow, name_of, to_json_types
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
    "repeated_pairs": "rows of a pair that came before; left out",
    **UNREADABLE,
}

_TEXTS = ("question", "response_A", "response_B", "label")
_RANKS = {"A>B": (1, 2), "B>A": (2, 1)}


def load_judgebench(request: BenchmarkRequest) -> LoadedBenchmark:
    """The pairs under their `pair_id`; the task is the category.

    A pair that several judges judged is taken once. The recorded judgments are not read. Identical
    responses get tied gold ranks: such a pair has no right answer, but it counts in JudgeBench's rule.
    """
    texts: dict[str, tuple[Any, ...]] = {}

    def convert(row: FileRow, number: int, names: Counter[str]) -> Comparison:
        identity = name_of(row, "pair_id")
        text = tuple(map(row.get, _TEXTS))
        if texts.setdefault(identity, text) != text:
            raise FieldError("pair_id", f"{short(identity)} came before with other texts or another label")
        names[identity] += 1
        if names[identity] > 1:
            raise Unrateable("repeated_pairs")
        source, label = name_of(row, "source"), name_of(row, "label")
        category = next((name for start, name in CATEGORIES.items() if source.startswith(start)), None)
        if category is None:
            raise FieldError("source", f"unknown category {short(source)}; known: {', '.join(CATEGORIES)}")
        if label not in _RANKS:
            raise FieldError("label", f"must be {' or '.join(_RANKS)}, got {short(label)}")
        given = columns_of(row, "response_A", "response_B")
        ranks = (1, 1) if given["response_A"] == given["response_B"] else _RANKS[label]
        model = to_json_types(row.get("response_model"))
        return published_comparison(
            row,
            identity,
            "question",
            given,
            ranks,
            used=row.keys(),
            metadata={"task": category, "subtype": source, "source": source, "response_model": model},
        )

    return load_rows(request, convert, FINDINGS)
