"""`items.parquet` and `items.csv`: one row per comparison of an evaluation, for data frames and spreadsheets."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from longrm.errors import RunError
from longrm.evaluation.table import is_scored, top1_credit
from longrm.jsonl import writable
from longrm.reading import reading
from longrm.reward_models.trials import to_scores
from longrm.runs.judgments import Judgments
from longrm.runs.records import JudgmentRecord
from longrm.runs.scratch import replacing
from longrm.types import Trial, margin

if TYPE_CHECKING:
    import pandas as pd

    from longrm.evaluation.read_run import Run

ITEMS, ITEMS_CSV = "items.parquet", "items.csv"
_INT, _FLOAT, _TEXT, _BOOL = pa.int64(), pa.float64(), pa.string(), pa.bool_()
_SCORES, _INTS = pa.list_(_FLOAT), pa.list_(_INT)
_TRIAL = {
    "outcome": _TEXT,
    "order": _INTS,
    "scores": _SCORES,
    "ranking": _INTS,
    "reason": _TEXT,
    "attempts": _INT,
    "contradicted": _BOOL,
    "criteria": pa.list_(_SCORES),
}
SCHEMA = pa.schema(
    {
        "id": _TEXT,
        "group": _TEXT,
        "length": _INT,
        "tokens": _INT,
        "depth": _FLOAT,
        "task": _TEXT,
        "subtype": _TEXT,
        "gold": _INTS,
        "correct": _FLOAT,
        "margin": _FLOAT,
        **_TRIAL,
        "cut_tokens": _INT,
        "context_check": _TEXT,
        "solved": _BOOL,
        "trials": pa.list_(pa.struct(_TRIAL)),
    }
)
"""The columns; docs/runs.md describes them."""


_BATCH = 8192  # comparisons that are in memory at once, 8 KB each, and a row group


def write_items(records: Iterable[JudgmentRecord], folder: Path) -> None:
    """Writes `items.parquet` and `items.csv` of all judgments of a run with their gold; equal records, equal bytes.

    In the CSV file lists and trials are JSON, and unknown values are empty.
    """
    with (
        writable(folder / ITEMS),
        replacing(folder / ITEMS) as binary,
        replacing(folder / ITEMS_CSV) as text,
        pq.ParquetWriter(binary, SCHEMA, compression="zstd") as parquet,
    ):
        # Texts may contain file names that are not UTF-8.
        lines = io.TextIOWrapper(text, "utf-8", "backslashreplace", newline="")
        writer = csv.DictWriter(lines, SCHEMA.names, lineterminator="\n")
        writer.writeheader()
        for batch in _batches(records):
            parquet.write_table(pa.Table.from_pylist(batch, schema=SCHEMA))
            writer.writerows({name: _cell(value) for name, value in row.items()} for row in batch)
        lines.detach()


def read_items(run: "Run") -> "pd.DataFrame":
    """The items of a finished evaluation; see `longrm.read_run`."""
    _ = run.evaluation  # an unfinished or damaged run is an error
    if not (run.path / ITEMS).exists():
        tables = [pa.Table.from_pylist(batch, schema=SCHEMA) for batch in _batches(Judgments(run.path))]
        return pa.concat_tables([SCHEMA.empty_table(), *tables]).to_pandas()
    with reading(run.path / ITEMS, RunError):
        return pq.ParquetFile(run.path / ITEMS).read().to_pandas()


def _batches(records: Iterable[JudgmentRecord]) -> Iterator[list[dict[str, Any]]]:
    rows = map(_row, records)
    while batch := list(islice(rows, _BATCH)):
        yield batch


def _row(record: JudgmentRecord) -> dict[str, Any]:
    values, ranks = to_scores(record), record.ranks
    correct = None
    if is_scored(record):
        assert ranks is not None
        correct = top1_credit(values, ranks) if values else 0.0
    return {
        "id": record.id,
        "group": record.group,
        "length": record.length,
        "tokens": record.prompt_tokens,
        "depth": record.depth,
        "task": record.task or None,
        "subtype": record.subtype or None,
        "gold": list(ranks) if ranks else None,
        "correct": correct,
        "margin": margin(values, ranks) if values and ranks is not None else None,
        **_trial(record),
        "attempts": sum(trial.attempts for trial in record.trials),
        "cut_tokens": 0 if record.cut is None else record.cut.tokens,
        "context_check": record.context_check or None,
        "solved": record.committed and record.committed.solved,
        "trials": [_trial(trial) for trial in record.trials],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    """A trial without its explanation, which can be as long as the rest of the run; the log has it."""
    return {
        "outcome": str(trial.outcome),
        "order": list(trial.order),
        "scores": list(trial.scores) or None,
        "ranking": list(trial.ranking) or None,
        "reason": trial.detail or None,
        "attempts": trial.attempts,
        "contradicted": trial.contradicted,
        "criteria": [list(row) for row in trial.criteria] or None,
    }


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | bool) else value
