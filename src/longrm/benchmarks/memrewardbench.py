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

_USED = {"configuration", "task", "ctx_length", "question", "chosen", "rejected"}


def load_memrewardbench(request: BenchmarkRequest) -> LoadedBenchmark:
    """The pairs of a file, of a folder of files, or of the folders of its configurations, as `CONFIGURATION/ROW`.

    The task is the configuration, by the name of the file or folder, and the subtype the row's `task`, such as S-Drop.
    Where `task` is the configuration, as in the authors' README, or the file has another name, they are `task` and
    `subtask`. Lengths are those of the data, measured where it has none. A question is part of one text with its
    context, so the context is unknown.
    """
    path = Path(request.path)
    folders = [path / name for name in CONFIGURATIONS if (path / name).is_dir()]
    files = [file for folder in folders or [path] for file in find_files(folder)]
    loaded = load_rows(request, _comparison, files=files, file_columns=_configuration)
    return replace(loaded, states_length=True)


def _configuration(file: Path) -> FileRow:
    names = (file.name.split(".")[0], file.parent.name)
    return {"configuration": next((name for name in names if name in CONFIGURATIONS), "")}


def _comparison(row: FileRow, number: int, names: Counter[str]) -> Comparison:
    configuration, setting, used = row["configuration"], name_of(row, "task"), _USED
    # The README shortens Multi-turn_Dialogue_Understanding to Multi-turn_Dialogue.
    if not configuration or any(name.startswith(setting) for name in CONFIGURATIONS):
        configuration, setting, used = configuration or setting, name_of(row, "subtask"), {*_USED, "subtask"}
    given, length = columns_of(row, "chosen", "rejected"), labeled_length(row, "ctx_length")
    known = {"length": length} if length else {}
    metadata = {**known, "task": configuration, "subtype": setting}
    identity = f"{configuration}/{number}"
    return published_comparison(row, identity, "question", given, (1, 2), used=used, metadata=metadata)
