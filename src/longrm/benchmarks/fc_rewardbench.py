"""FC-RewardBench (ToolRM, arXiv 2509.11963): right and wrong tool calls for single-turn requests of BFCL."""

import hashlib
import json
from collections import Counter
from dataclasses import replace

from longrm.benchmarks.benchmark import (
    BenchmarkRequest,
    LoadedBenchmark,
    columns_of,
    load_rows,
    numbered,
    published_comparison,
)
from longrm.data.fields import FileRow, name_of, required, tools_of
from longrm.types import Comparison

_OUTPUTS = ("chosen_output", "rejected_output")
_USED = {"tools", "conversation", *_OUTPUTS, "error_type", "test_category", "test_id"}


def load_fc_rewardbench(request: BenchmarkRequest) -> LoadedBenchmark:
    """The pairs as `test_id`; the task is the error type, the subtype the category of BFCL.

    Requests with the same tools are a group. Outputs stay the texts that they are, on both sides: as tool calls of a
    message, those that cannot be parsed would look unlike all others, and some chat templates refuse several calls.
    """
    return load_rows(request, _comparison)


def _comparison(row: FileRow, number: int, names: Counter[str]) -> Comparison:
    tools = tools_of(required(row, "tools")[1])
    # Published as JSON texts; where a file has lists they are written so.
    outputs = {
        field: value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for field, value in columns_of(row, *_OUTPUTS).items()
    }
    comparison = published_comparison(
        row,
        numbered(name_of(row, "test_id"), names),
        "conversation",
        outputs,
        (1, 2),
        used=_USED,
        metadata={"task": name_of(row, "error_type"), "subtype": name_of(row, "test_category")},
        group=hashlib.sha256(json.dumps(tools, sort_keys=True).encode()).hexdigest()[:16],
    )
    return replace(comparison, tools=tools)
