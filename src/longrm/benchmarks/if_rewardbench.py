"""IF-RewardBench (arXiv 2603.04738): responses in a partial order, by the parts of an instruction that they follow."""

from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from longrm.benchmarks.benchmark import (
    BenchmarkRequest,
    LoadedBenchmark,
    load_rows,
    published_comparison,
)
from longrm.data.criteria import criteria_of
from longrm.data.fields import FileRow, name_of, required, to_json_types
from longrm.reading import FieldError, short
from longrm.types import Comparison

TYPES = ("Single_Turn", "Multi_Turn", "System_Prompt")
"""The types of instructions, over which the authors average."""

_USED = {"id", "group", "messages", "checklist", "responses", "preference_graph", "chosen", "rejected"}


def load_if_rewardbench(request: BenchmarkRequest) -> LoadedBenchmark:
    """Every edge of every preference graph as a pair `ID#i>j`, where response i is better; the item is the group.

    Responses without an edge between them are never compared, not even if other edges imply their order. The checklist
    becomes `rubrics`, of criteria with equal weights.
    """
    return load_rows(request, _comparison, parts=_pairs)


def _pairs(row: FileRow) -> Iterator[dict[str, Any]]:
    """The edges of an item; an item whose graph is not a partial order is an error."""
    name = name_of(row, "id")
    responses: dict[str, Mapping[str, Any]] = {}
    for index, response in enumerate(_list(row, "responses")):
        identity = _id_of(response, f"responses[{index}]")
        if identity in responses:
            raise FieldError(f"responses[{index}].response_id", f"{short(identity)} is not unique")
        responses[identity] = response
    edges: list[list[str]] = []
    for index, edge in enumerate(_list(row, "preference_graph")):
        ends = []
        for end in ("chosen", "rejected"):
            field = f"preference_graph[{index}].{end}"
            identity = _id_of(edge.get(end) if isinstance(edge, Mapping) else None, field)
            if identity not in responses:
                raise FieldError(
                    field, f"no response has the id {short(identity)}; known: {', '.join(responses)}"
                )
            ends.append(identity)
        edges.append(ends)
    graph: dict[str, list[str]] = {}
    for better, worse in edges:
        graph.setdefault(worse, []).append(better)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise FieldError("preference_graph", f"has a cycle: {' > '.join(error.args[1])}") from None
    for better, worse in edges:
        pair = responses[better], responses[worse]
        yield {
            **row,
            "id": f"{name}#{better}>{worse}",
            "group": name,
            "chosen": pair[0].get("response"),
            "rejected": pair[1].get("response"),
            "labels": [to_json_types(one.get("labels")) for one in pair],
        }


def _id_of(value: Any, field: str) -> str:
    if not isinstance(value, Mapping):
        raise FieldError(field, f"must be an object with a response_id, got {short(value)}")
    try:
        return name_of(value, "response_id")
    except FieldError as error:
        raise FieldError(f"{field}.response_id", error.problem) from None


def _list(row: FileRow, field: str) -> list[Any]:
    value = required(row, field)[1]
    if not isinstance(value, list | tuple) or not value:
        raise FieldError(field, f"must be a list that is not empty, got {short(value)}")
    return list(value)


def _comparison(row: FileRow, number: int, names: Counter[str]) -> Comparison:
    kind = name_of(row, "instruction_type")
    if kind not in TYPES:
        raise FieldError("instruction_type", f"unknown type {short(kind)}; known: {', '.join(TYPES)}")
    return published_comparison(
        row,
        name_of(row, "id"),
        "messages",
        {field: row.get(field) for field in ("chosen", "rejected")},
        (1, 2),
        used=_USED,
        group=name_of(row, "group"),
        metadata={"task": kind},
        rubrics=criteria_of(_list(row, "checklist"), "checklist"),
    )
