"""IF-RewardBench (arXiv 2603.04738): responses in a partial order, by the parts of an instruction that they follow."""

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from longrm.benchmarks.auditor import UNREADABLE
from longrm.benchmarks.benchmark_data import BenchmarkRequest, LoadedBenchmark
from longrm.benchmarks.published_rows import load_rows, rateable_responses
from longrm.data.criteria import criteria_of
from longrm.data.fields import FileRow, messages_of, name_of, required, to_json_types
from longrm.reading import FieldError, short
from longrm.types import Comparison

TYPES = ("Single_Turn", "Multi_Turn", "System_Prompt")
"""The types of instructions, over which the authors average."""

_USED = {"id", "group", "messages", "checklist", "responses", "preference_graph", "chosen", "rejected"}


def load_if_rewardbench(request: BenchmarkRequest) -> LoadedBenchmark:
    """Every edge of every preference graph as a pair `ID#i>j`, where response i is better; the item is the group.

    Responses that no edge joins are never compared. An edge that follows from others is a pair where the file has
    it, and none where it has not. The checklist becomes `rubrics`, of criteria with equal weights.
    """
    return load_rows(request, lambda: _comparison, UNREADABLE, _pairs)


def _pairs(row: FileRow) -> Iterator[dict[str, Any]]:
    """An item's edges; nothing is yielded of one whose graph is no partial order of its responses."""
    name, responses = name_of(row, "id"), _by_id(row)
    edges = [_edge(edge, index, responses) for index, edge in enumerate(_list(row, "preference_graph"))]
    graph: dict[str, list[str]] = {}
    for better, worse in edges:
        graph.setdefault(worse, []).append(better)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle = " > ".join(error.args[1])
        raise FieldError("preference_graph", f"goes round in a circle: {cycle}; leave an edge out") from None
    for better, worse in edges:
        pair = responses[better], responses[worse]
        chosen, rejected = (one.get("response") for one in pair)
        labels = [to_json_types(one.get("labels")) for one in pair]
        yield {
            **row,
            "id": f"{name}#{better}>{worse}",
            "group": name,
            "chosen": chosen,
            "rejected": rejected,
            "labels": labels,
        }


def _by_id(row: FileRow) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for index, response in enumerate(_list(row, "responses")):
        field = f"responses[{index}]"
        if not isinstance(response, Mapping):
            raise FieldError(field, f"needs an object with response_id and response, got {short(response)}")
        name = _id_of(response, field)
        if name in found:
            raise FieldError(f"{field}.response_id", f"{short(name)} is also another's; make them unique")
        found[name] = response
    return found


def _edge(edge: Any, index: int, responses: Mapping[str, Any]) -> tuple[str, str]:
    ends = []
    for end in ("chosen", "rejected"):
        field = f"preference_graph[{index}].{end}"
        side = edge.get(end) if isinstance(edge, Mapping) else None
        if not isinstance(side, Mapping):
            raise FieldError(field, f"needs an object with a response_id, got {short(side)}")
        name = _id_of(side, field)
        if name not in responses:
            raise FieldError(field, f"no response has the id {short(name)}; known: {', '.join(responses)}")
        ends.append(name)
    return ends[0], ends[1]


def _id_of(value: Mapping[str, Any], field: str) -> str:
    try:
        return name_of(value, "response_id")
    except FieldError as fault:
        raise FieldError(field, str(fault)) from None


def _list(row: FileRow, field: str) -> list[Any]:
    value = required(row, field)[1]
    if not isinstance(value, list | tuple) or not value:
        raise FieldError(field, f"needs a list of one at least, got {short(value)}")
    return list(value)


def _comparison(row: FileRow, number: int) -> Comparison:
    kind = name_of(row, "instruction_type")
    if kind not in TYPES:
        raise FieldError("instruction_type", f"there is no {short(kind)}; known: {', '.join(TYPES)}")
    checklist = _list(row, "checklist")
    return Comparison(
        id=name_of(row, "id"),
        group=name_of(row, "group"),
        prompt=messages_of(required(row, "messages")[1], "messages", "user"),
        responses=rateable_responses({field: row.get(field) for field in ("chosen", "rejected")}, (1, 2)),
        ranks=(1, 2),
        metadata={
            **{key: to_json_types(value) for key, value in row.items() if key not in _USED},
            "task": kind,
        },
        rubrics=criteria_of(checklist, "checklist"),
    )
