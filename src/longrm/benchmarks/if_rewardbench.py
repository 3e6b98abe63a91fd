"""IF-RewardBench (arXiv 2603.04738): responses in a partial order, by the parts of an instruction that they follow."""

from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from longrm.benchmarks.benchmark import (
    UNREADABLE_PAIRS,
    BenchmarkRequest,
    LoadedBenchmark,
    load_rows,
    published_comparison,
)
from longrm.data.criteria import criteria_of
from longrm.data.fields import FileRow, name_of, required, to_json_types, validated
from longrm.reading import FieldError, short
from longrm.types import Comparison

TYPES = ("Single_Turn", "Multi_Turn", "System_Prompt")
"""The types of instructions, over which the authors average."""

_USED = {"id", "group", "messages", "checklist", "responses", "preference_graph", "chosen", "rejected"}


class _Response(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    response_id: str
    response: Any = None
    labels: Any = None


class _Edge(BaseModel):
    chosen: _Response
    rejected: _Response


class _Item(BaseModel):
    responses: list[_Response] = Field(min_length=1)
    preference_graph: list[_Edge] = Field(min_length=1)


_ITEM = TypeAdapter(_Item)


def load_if_rewardbench(request: BenchmarkRequest) -> LoadedBenchmark:
    """Every edge of every preference graph as a pair `ID#i>j`, where response i is better; the item is the group.

    Responses without an edge between them are never compared, not even if other edges imply their order. The checklist
    becomes `rubrics`, of criteria with equal weights.
    """
    return load_rows(request, _comparison, UNREADABLE_PAIRS, _pairs)


def _pairs(row: FileRow) -> Iterator[dict[str, Any]]:
    """The edges of an item; an item whose graph is not a partial order is an error."""
    name = name_of(row, "id")
    item: _Item = validated(_ITEM, dict(row))
    responses = {response.response_id: response for response in item.responses}
    if len(responses) < len(item.responses):
        raise FieldError("responses", "their response_id must be unique")
    graph: dict[str, list[str]] = {}
    for index, edge in enumerate(item.preference_graph):
        for side in (edge.chosen, edge.rejected):
            if side.response_id not in responses:
                field = f"preference_graph[{index}]"
                raise FieldError(field, f"no response has the id {short(side.response_id)}")
        graph.setdefault(edge.rejected.response_id, []).append(edge.chosen.response_id)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise FieldError("preference_graph", f"has a cycle: {' > '.join(error.args[1])}") from None
    for edge in item.preference_graph:
        better, worse = responses[edge.chosen.response_id], responses[edge.rejected.response_id]
        yield {
            **row,
            "id": f"{name}#{better.response_id}>{worse.response_id}",
            "group": name,
            "chosen": better.response,
            "rejected": worse.response,
            "labels": [to_json_types(better.labels), to_json_types(worse.labels)],
        }


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
        rubrics=criteria_of(required(row, "checklist")[1], "checklist"),
    )
