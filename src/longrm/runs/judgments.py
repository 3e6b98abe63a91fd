"""The judgments of an evaluation with their gold, read from its logs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from longrm.errors import RunError
from longrm.reading import reading
from longrm.runs.logs import GOLD, JUDGMENTS, Log, parts_of, read_all
from longrm.runs.records import GoldRecord, JudgmentRecord


class Judgments(Sequence[JudgmentRecord]):
    """The last judgment of every comparison with its gold ranks, in the order of first judgment.

    Records are parsed from the log whenever they are used, because a million of them would take 3 GB. This keeps only
    where each is, and its gold.

    Attributes:
        ids: Ids of the comparisons.
        ranks: Their gold ranks; None if unknown.
        digests: Hashes of their prompts and responses; empty if unknown.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / JUDGMENTS
        self._logs = [Log(path, JudgmentRecord) for path in (self._path, *parts_of(self._path))]
        # A comparison that was judged again after an error has several records; its last one counts.
        places: dict[str, tuple[int, int]] = {}
        for number, log in enumerate(self._logs):
            for offset, record in log.with_offsets():
                places[record.id] = number, offset
        self.ids = list(places)
        self._log, self._offset = np.array(list(places.values()), np.int64).reshape(-1, 2).T.copy()
        del places
        known: dict[Any, Any] = {}  # one object for all equal ranks
        gold = {
            one.id: (known.setdefault(one.ranks, one.ranks), one.digest)
            for one in read_all(folder / GOLD, GoldRecord)
        }
        found = [gold.get(name, (None, "")) for name in self.ids]
        self.ranks, self.digests = [ranks for ranks, _ in found], [digest for _, digest in found]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[JudgmentRecord]:
        return self.at(range(len(self)))

    def __getitem__(self, row: Any) -> Any:
        rows = range(len(self))[row]
        return list(self.at(rows)) if isinstance(row, slice) else next(self.at([rows]))

    def at(self, rows: Sequence[int]) -> Iterator[JudgmentRecord]:
        """Reads the records of some rows."""
        for log, of_log in groupby(rows, self._log.__getitem__):
            numbers = list(of_log)
            records = self._logs[log].at(self._offset[numbers].tolist())
            with reading(self._path, RunError):
                for row, record in zip(numbers, records, strict=True):
                    yield replace(record, ranks=self.ranks[row])
