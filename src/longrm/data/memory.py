"""Rows in memory, under a name that takes the place of a path: in settings, in manifests, and when a run continues.

The name has a digest of the rows. Equal rows have one name in every process and as every kind of object, and other
rows are another data set.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

from longrm.errors import DataError
from longrm.reading import is_text, short

if TYPE_CHECKING:  # pandas takes half a second to import
    import pandas as pd

Data: TypeAlias = "str | Path | Iterable[Mapping[str, object]] | pd.DataFrame"
"""A path or name of rows in files, or rows in memory: a `datasets.Dataset`, a data frame, or an iterable of dicts."""

# Rows of a data frame that are turned into Python objects at a time.
_BATCH = 64


class MemoryRows:
    """Rows in memory; `str` gives their name, under which `find_files` finds them as long as this object exists.

    Attributes:
        what: A description for messages, such as "the list".
        digest: SHA-256 of the rows as JSON lines.
    """

    def __init__(self, rows: Any) -> None:
        self.what = f"the {type(rows).__name__}"
        if isinstance(rows, Mapping):  # also a DatasetDict
            raise DataError(
                f"{self.what} is not a data set: pass a list of rows, or one of its data sets ({short([*rows])})"
            )
        if not isinstance(rows, Iterable):
            raise DataError(
                f"{self.what} is not a data set; pass a path, Dataset, DataFrame or list of dicts"
            )
        self._rows = list(rows) if isinstance(rows, Iterator) else rows
        digest, row = hashlib.sha256(), None
        for row in self:
            digest.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
        if row is None:
            raise DataError(f"{self.what} has no rows")
        self.digest = digest.hexdigest()

    def __str__(self) -> str:
        return f"rows-{self.digest[:16]}"

    def __iter__(self) -> Iterator[Any]:
        """The rows as dicts of JSON's types, dates and bytes; an item that is no dict is left as it is."""
        rows: Any = self._rows
        return map(_plain, _frame_rows(rows) if hasattr(rows, "itertuples") else rows)


IN_MEMORY: WeakValueDictionary[str, MemoryRows] = WeakValueDictionary()
"""Rows in memory by their names."""


def named(data: "Data | MemoryRows") -> Path | MemoryRows:
    """A path as it is; rows in memory as an object that the caller must keep until the work is done."""
    if isinstance(data, str | Path | MemoryRows):
        return data if isinstance(data, MemoryRows) else Path(data)
    rows = MemoryRows(data)
    kept = IN_MEMORY.setdefault(str(rows), rows)  # perhaps equal rows, which another caller keeps
    kept.what = rows.what
    return kept


def _frame_rows(frame: Any) -> Iterator[dict[str, Any]]:
    """The rows of a data frame; missing cells (NaN, NaT, NA) are None."""
    for start in range(0, len(frame), _BATCH):
        part = frame.iloc[start : start + _BATCH].astype(object)
        for cells in part.where(part.notna(), None).itertuples(index=False, name=None):
            yield dict(zip(map(str, frame.columns), cells, strict=True))


def _plain(value: Any) -> Any:
    """Turns arrays and scalars of numpy or torch, also within lists and dicts, into lists and numbers."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return value if is_text(value) else value.encode(errors="replace").decode()  # as in files
    return _plain(value.tolist()) if hasattr(value, "tolist") else value
