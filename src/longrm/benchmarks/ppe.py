"""Preference Proxy Evaluations (PPE, arXiv 2410.14872): votes of people, and answers that were checked."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from longrm.benchmarks.benchmark import (
    UNREADABLE_PAIRS,
    BenchmarkRequest,
    LoadedBenchmark,
    Unrateable,
    load_rows,
    numbered,
    published_comparison,
)
from longrm.data.fields import FileRow, name_of
from longrm.reading import FieldError, short
from longrm.types import Comparison

VOTES, CORRECTNESS = "Human preference", "Correctness"
FINDINGS = {
    "voted_ties": "pairs that people found equally good; left out, as in PPE's accuracy",
    **UNREADABLE_PAIRS,
}

_PAIRS = "sampled_conflict_pairs"
_RANKS = {"model_a": (1, 2), "model_b": (2, 1)}
_SHOWN = ("model_a", "model_b", "model_name", "language", "category")


def load_ppe(request: BenchmarkRequest) -> LoadedBenchmark:
    """The pairs of one of PPE's data sets; the task is how they were labeled.

    A row of the human preferences is a pair. A row of the correctness sets has many answers of one model, right and
    wrong ones: each of its sampled pairs of one of each becomes `ID/MODEL#i>j`, where answer i is right and j is not.
    """
    return load_rows(request, _comparison, FINDINGS, _pairs)


def _pairs(row: FileRow) -> Iterator[dict[str, Any]]:
    """The row itself, or its sampled pairs with the right answer first."""
    if row.get(_PAIRS) is None:
        winner = name_of(row, "winner")
        if winner not in _RANKS and not winner.startswith("tie"):
            raise FieldError("winner", f"must be {', '.join(_RANKS)} or tie, got {short(winner)}")
        yield {**row, "ranks": _RANKS.get(winner, (1, 1))}
        return
    scores, pairs = row.get("scores"), row[_PAIRS]
    if not isinstance(scores, list | tuple) or not all(score in (0, 1) for score in scores):
        raise FieldError("scores", f"must be a list of true and false, one per answer, got {short(scores)}")
    if not isinstance(pairs, list | tuple):
        raise FieldError(_PAIRS, f"must be a list of pairs, got {short(pairs)}")
    name = f"{name_of(row, 'question_id')}/{name_of(row, 'model_name')}"
    known = {key: row[key] for key in ("prompt", *_SHOWN) if row.get(key) is not None}
    for pair in pairs:
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2
        if not is_pair or not all(type(place) is int and 0 <= place < len(scores) for place in pair):
            problem = f"must be pairs of places from 0 to {len(scores) - 1}"
            raise FieldError(_PAIRS, f"{problem}, got {short(pair)}")
        right, wrong = pair if scores[pair[0]] else (pair[1], pair[0])
        if scores[right] == scores[wrong]:
            raise FieldError(_PAIRS, f"{short(pair)} must be a right and a wrong answer by 'scores'")
        given = {f"response_{n}": row.get(f"response_{place + 1}") for n, place in ((1, right), (2, wrong))}
        yield {**known, **given, "question_id": f"{name}#{right}>{wrong}", "ranks": (1, 2), _PAIRS: (pair,)}


def _comparison(row: FileRow, number: int, names: Counter[str]) -> Comparison:
    if row["ranks"] == (1, 1):
        raise Unrateable("voted_ties")
    return published_comparison(
        row,
        numbered(name_of(row, "question_id"), names),
        "prompt",
        {name: row.get(name) for name in ("response_1", "response_2")},
        row["ranks"],
        used={name for name in row if name not in _SHOWN or row[name] is None},
        metadata={
            "task": VOTES if row.get(_PAIRS) is None else CORRECTNESS,
            "subtype": str(row.get("category") or row.get("language") or ""),
        },
    )
