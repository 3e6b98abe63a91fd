"""MemRewardBench (arXiv 2601.11969): pairs of ways in which a model managed its memory of 8K to 128K tokens."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from longrm.benchmarks.benchmark import (
    BenchmarkRequest,
    LoadedBenchmark,
    columns_of,
    labeled_length,
    load_rows,
    published_comparison,
)
from longrm.data.fields import FileRow, name_of
from longrm.data.files import find_files
from longrm.types import Comparison

CONFIGURATIONS = ("Long-context_Reasoning", "Multi-turn_Dialogue_Understanding", "Long-form_Generation")
"""The parts in which it is published, as files or as folders of files."""

_USED = {"task", "subtask", "ctx_length", "question", "chosen", "rejected"}


def load_memrewardbench(request: BenchmarkRequest) -> LoadedBenchmark:
    """The pairs of a file, of a folder of files, or of the folders of its configurations, as `TASK/ROW`.

    Lengths are those of the data. A question is part of one text with its context, so the context is unknown.
    """
    path = Path(request.path)
    folders = [path / name for name in CONFIGURATIONS if (path / name).is_dir()]
    files = [file for folder in folders or [path] for file in find_files(folder)]
    return replace(load_rows(request, _comparison, files=files), states_length=True)


def _comparison(row: FileRow, number: int, names: Counter[str]) -> Comparison:
    task, length = name_of(row, "task"), labeled_length(row, "ctx_length")
    given = columns_of(row, "chosen", "rejected")
    known = {"length": length} if length else {}
    metadata = {**known, "task": task, "subtype": name_of(row, "subtask")}
    return published_comparison(
        row, f"{task}/{number}", "question", given, (1, 2), used=_USED, metadata=metadata
    )
