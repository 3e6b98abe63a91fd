"""Preference Proxy Evaluations (PPE, arXiv 2410.14872): votes of people, and answers that were checked."""

from collections.abc import Iterator, Sequence
from typing import Any

from longrm.benchmarks.auditor import UNREADABLE
from longrm.benchmarks.benchmark_data import BenchmarkRequest, LoadedBenchmark
from longrm.benchmarks.published_rows import (
    Converter,
    Unrateable,
    load_rows,
    numbered_names,
    rateable_responses,
)
from longrm.data.fields import FileRow, group_of, messages_of, name_of, required, to_json_types
from longrm.reading import FieldError, short
from longrm.types import Comparison

VOTES, CORRECTNESS = "Human preference", "Correctness"
FINDINGS = {
    "voted_ties": "pairs that people found equally good; left out, as in PPE's accuracy",
    **UNREADABLE,
}

_PAIRS = "sampled_conflict_pairs"
_RANKS = {"model_a": (1, 2), "model_b": (2, 1)}
_SHOWN = ("model_a", "model_b", "model_name", "language", "category")


def load_ppe(request: BenchmarkRequest) -> LoadedBenchmark:
    """The pairs of one of PPE's data sets, a file or a folder of files; the task is what they were labeled by.

    A row of the human preferences is a pair. A row of the correctness sets holds many answers of one model, right and
    wrong ones: its sampled pairs of one of each become `ID/MODEL#i>j`, where answer i is right and j is not.
    """
    return load_rows(request, _converter, FINDINGS, _pairs)


def _pairs(row: FileRow) -> Iterator[dict[str, Any]]:
    """The row itself, or its sampled pairs with the right answer first."""
    if row.get(_PAIRS) is None:
        yield {**row, "ranks": _voted(row)}
        return
    scores, pairs = row.get("scores"), row[_PAIRS]
    if not isinstance(scores, list | tuple) or not all(score in (0, 1) for score in scores):
        raise FieldError("scores", f"needs a list of true and false, one an answer, got {short(scores)}")
    if not isinstance(pairs, list | tuple):
        raise FieldError(_PAIRS, f"needs a list of pairs, got {short(pairs)}")
    name = f"{name_of(row, 'question_id')}/{name_of(row, 'model_name')}"
    known = {key: row[key] for key in ("prompt", *_SHOWN) if row.get(key) is not None}
    for pair in pairs:
        right, wrong = _right_first(pair, scores)
        given = {f"response_{n}": row.get(f"response_{index + 1}") for n, index in ((1, right), (2, wrong))}
        yield {**known, **given, "question_id": f"{name}#{right}>{wrong}", "ranks": (1, 2), _PAIRS: (pair,)}


def _right_first(pair: Any, scores: Sequence[Any]) -> tuple[int, int]:
    places = {*range(len(scores))}
    if (
        not isinstance(pair, list | tuple)
        or len(pair) != 2
        or not all(type(p) is int and p in places for p in pair)
    ):
        raise FieldError(_PAIRS, f"needs pairs of two places from 0 to {len(scores) - 1}, got {short(pair)}")
    one, other = pair
    if scores[one] == scores[other]:
        raise FieldError(_PAIRS, f"{short(pair)} are alike in 'scores'; a pair needs a right and a wrong one")
    return (one, other) if scores[one] else (other, one)


def _voted(row: FileRow) -> tuple[int, int]:
    winner = name_of(row, "winner")
    if winner not in _RANKS and not winner.startswith("tie"):
        raise FieldError("winner", f"needs {', '.join(_RANKS)} or tie, got {short(winner)}")
    return _RANKS.get(winner, (1, 1))


def _converter() -> Converter:
    numbered = numbered_names()

    def convert(row: FileRow, number: int) -> Comparison:
        ranks = row["ranks"]
        if ranks == (1, 1):
            raise Unrateable("voted_ties")
        prompt = messages_of(required(row, "prompt")[1], "prompt", "user")
        return Comparison(
            id=numbered(name_of(row, "question_id")),
            group=group_of({}, prompt, (), None),
            prompt=prompt,
            responses=rateable_responses({f"response_{n}": row.get(f"response_{n}") for n in (1, 2)}, ranks),
            ranks=ranks,
            metadata={
                **{key: to_json_types(row[key]) for key in _SHOWN if row.get(key) is not None},
                "task": VOTES if row.get(_PAIRS) is None else CORRECTNESS,
                "subtype": str(row.get("category") or row.get("language") or ""),
            },
        )

    return convert
