"""One row a comparison, for data frames and spreadsheets: `items.parquet` and `items.csv` of an evaluation's folder."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from longrm.errors import RunError
from longrm.evaluation.metrics import TOP1
from longrm.evaluation.summaries import DemoSummary, EvaluationSummary
from longrm.evaluation.summary_schema import load_summary
from longrm.evaluation.table import ScoreTable, is_scored
from longrm.reading import one_line
from longrm.reward_models.trials import points
from longrm.runs.folder import read_manifest, write_file
from longrm.runs.judgments import read_judgments
from longrm.runs.records import JudgmentRecord, Trial
from longrm.types import margin

if TYPE_CHECKING:  # it takes half a second, and only `read_run` needs it
    import pandas as pd

ITEMS, ITEMS_CSV = "items.parquet", "items.csv"
_WHOLE, _REAL, _TEXT, _YES_OR_NO = pa.int64(), pa.float64(), pa.string(), pa.bool_()
_SCORES, _PLACES = pa.list_(_REAL), pa.list_(_WHOLE)
_JUDGED = {
    "outcome": _TEXT,
    "order": _PLACES,
    "scores": _SCORES,
    "ranking": _PLACES,
    "reason": _TEXT,
    "attempts": _WHOLE,
    "contradicted": _YES_OR_NO,
    "criteria": pa.list_(_SCORES),
}
SCHEMA = pa.schema(
    {
        "id": _TEXT,
        "group": _TEXT,
        "length": _WHOLE,
        "tokens": _WHOLE,
        "depth": _REAL,
        "task": _TEXT,
        "subtype": _TEXT,
        "gold": _PLACES,
        "correct": _REAL,
        "margin": _REAL,
        **_JUDGED,
        "cut_tokens": _WHOLE,
        "context_check": _TEXT,
        "trials": pa.list_(pa.struct(_JUDGED)),
    }
)
"""The columns, whose meaning docs/runs.md tells."""


def write_items(records: Sequence[JudgmentRecord], folder: Path) -> None:
    """Writes `items.parquet` and `items.csv`, each in one step; equal records give equal bytes.

    In the CSV file lists and trials are JSON, and what is unknown is empty.

    Args:
        records: All judgments of the run, with their gold.
        folder: The run folder.

    Raises:
        RunError: A file cannot be written.
    """
    rows = _rows(records)
    parquet, text = pa.BufferOutputStream(), io.StringIO()
    pq.write_table(_table(rows), parquet, compression="zstd")
    writer = csv.DictWriter(text, SCHEMA.names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    write_file(folder / ITEMS, parquet.getvalue().to_pybytes())
    write_file(folder / ITEMS_CSV, text.getvalue())


def read_run(path: str | Path) -> "pd.DataFrame":
    """Every comparison of a finished run as one row of a data frame.

    Args:
        path: The folder of an evaluation, or of a demo: the rows of all its stages then, with the columns `stage` and
            `evaluation` ("pairs", "best_of_4" or "pointwise") before the others.

    Returns:
        The columns that docs/runs.md tells of, as `pandas.read_parquet` reads them from `items.parquet`; of a run
        without that file they are computed from its logs. The mean of `correct` is the run's main metric.

    Raises:
        RunError: The folder holds no such run, one that is not finished, or one that is damaged.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder; name the folder of a run")
    kind = read_manifest(folder)["kind"]
    if kind not in ("evaluation", "demo"):
        raise RunError(
            f"{folder} holds a run of kind '{kind}'; items are those of an evaluation, or of a demo's stages"
        )
    summary = load_summary(folder)
    if isinstance(summary, EvaluationSummary):
        return _read_table(folder).to_pandas()
    assert isinstance(summary, DemoSummary), "checked before"
    tables = []
    for place in sorted((folder / "stages").glob("*/*/")):
        load_summary(place)
        found = _read_table(place)
        for at, (name, value) in enumerate((("stage", place.parent.name), ("evaluation", place.name))):
            found = found.add_column(at, name, pa.array([value] * len(found), _TEXT))
        tables.append(found)
    if not tables:
        raise RunError(f"{folder} holds the summary of a demo, and no stages")
    return pa.concat_tables(tables).to_pandas()


def _read_table(folder: Path) -> pa.Table:
    if not (folder / ITEMS).exists():
        return _table(_rows(read_judgments(folder)))
    try:
        found = pq.ParquetFile(folder / ITEMS).read()
    except (OSError, pa.ArrowException) as error:
        fault = one_line(error)
    else:
        if found.schema.equals(SCHEMA):
            return found
        fault = "its columns are others"
    raise RunError(
        f"{folder / ITEMS} is damaged, or of another version: {fault}; remove it, and the logs are read"
    )


def _table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def _rows(records: Sequence[JudgmentRecord]) -> list[dict[str, Any]]:
    credit = iter(TOP1.earned(ScoreTable.of(records)).tolist())
    return [_row(record, next(credit) if is_scored(record) else None) for record in records]


def _row(record: JudgmentRecord, correct: float | None) -> dict[str, Any]:
    whole = Trial(
        record.order,
        record.outcome,
        record.scores,
        record.ranking,
        detail=record.detail,
        attempts=sum(trial.attempts for trial in record.trials),
        contradicted=record.contradicted,
        criteria=record.criteria,
    )
    values = points(whole)
    return {
        "id": record.id,
        "group": record.group,
        "length": record.length,
        "tokens": record.tokens,
        "depth": record.depth,
        "task": record.task or None,
        "subtype": record.subtype or None,
        "gold": _listed(record.ranks),
        "correct": correct,
        "margin": margin(values, record.ranks) if values and record.ranks is not None else None,
        **_judged(whole),
        "cut_tokens": 0 if record.cut is None else record.cut.tokens,
        "context_check": record.context_check or None,
        "trials": [_judged(trial) for trial in record.trials],
    }


def _judged(trial: Trial) -> dict[str, Any]:
    """A trial without its explanation, which may be as long as all the rest of the run; its log holds it."""
    return {
        "outcome": str(trial.outcome),
        "order": list(trial.order),
        "scores": _listed(trial.scores),
        "ranking": _listed(trial.ranking),
        "reason": trial.detail or None,
        "attempts": trial.attempts,
        "contradicted": trial.contradicted,
        "criteria": [list(row) for row in trial.criteria] or None,
    }


def _listed(values: Sequence[float] | None) -> list[float] | None:
    return list(values) if values else None


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | bool) else value
