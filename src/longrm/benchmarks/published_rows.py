"""The rows of a benchmark's published files: each becomes a comparison, or is left out and counted."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from longrm.benchmarks.auditor import AuditedComparisons, Auditor
from longrm.benchmarks.benchmark_data import (
    BenchmarkRequest,
    LoadedBenchmark,
    measure_with,
    read_through,
    with_length,
)
from longrm.data.fields import FileRow, length_and_depth_of, messages_of, whole_length
from longrm.data.files import RawRow, find_files, origin_of, raw_rows
from longrm.data.readers import RowError, convert_row
from longrm.reading import FieldError, short
from longrm.types import Comparison, Response

Converter = Callable[[FileRow, int], Comparison]
"""Makes a row and its number, from 1 over all files, a comparison; raises `FieldError` or `Unrateable`."""

PartsOfRow = Callable[[FileRow], Iterable[FileRow]]
"""The rows that one row of a file holds, each of which makes a comparison; raises `FieldError`."""


class Unrateable(Exception):  # noqa: N818  # no error: such an item is counted
    """An item that no judge can rate; its message is a kind of finding."""


def load_rows(
    request: BenchmarkRequest,
    converter: Callable[[], Converter],
    kinds: Mapping[str, str],
    parts: PartsOfRow = lambda row: (row,),
    files_of: Callable[[Path], list[Path]] = find_files,
) -> LoadedBenchmark:
    """A benchmark whose rows, those of a file or of a folder of files, tell no length: it is measured.

    Args:
        request: What was asked for.
        converter: Makes what converts the rows of one reading.
        kinds: The kinds of finding that it may note, in words.
        parts: What of a row makes a comparison each: the row itself, where it is not given.
        files_of: Finds the files of a path, in order; raises `DataError` where there are none.

    Raises:
        DataError: There is nothing to read, or a row cannot be read though that stops the run.
    """
    path, source = Path(request.path), request.source
    files = files_of(path)
    measure = measure_with(source.tokenizer)

    def comparisons(auditor: Auditor) -> Iterator[Comparison]:
        return read_rows(files, converter(), auditor, source.on_bad_row, parts)

    read_through(comparisons(Auditor(kinds)), source)
    rows = AuditedComparisons(lambda auditor: with_length(comparisons(auditor), measure), kinds, source.limit)
    return LoadedBenchmark(request.name, rows, provenance=origin_of(files), states_length=False)


def read_rows(
    files: Sequence[Path],
    convert: Converter,
    auditor: Auditor,
    on_bad_row: Literal["stop", "skip"],
    parts: PartsOfRow = lambda row: (row,),
) -> Iterator[Comparison]:
    """Converts the rows of all files, one by one; what is left out is counted with its place.

    Raises:
        DataError: A row cannot be read, and `on_bad_row` is "stop"; the message names file, row and field.
    """
    seen: dict[str, str] = {}

    def checked(raw: RawRow, row: FileRow) -> Comparison:
        comparison = convert(row, raw.number)
        length_and_depth_of(comparison.metadata)
        return comparison

    for raw in (part for row in raw_rows(files) for part in _parts_of(row, parts)):
        try:
            comparison = convert_row(raw, checked, seen)
        except RowError as error:
            if on_bad_row == "stop":
                raise
            auditor.note("unreadable_rows", str(error))
        except Unrateable as reason:
            auditor.note(str(reason), raw.place)
        else:
            yield comparison


def _parts_of(raw: RawRow, parts: PartsOfRow) -> list[RawRow]:
    """The rows that one holds, all at its place; itself, with the fault, where it cannot be taken apart."""
    if raw.value is None:
        return [raw]
    try:
        return [replace(raw, value=dict(part)) for part in parts(raw.value)]
    except FieldError as fault:
        return [replace(raw, value=None, fault=str(fault))]


def numbered_names() -> Callable[[str], str]:
    """Numbers names that come again, for one reading: what was `a` before is then `a#2`."""
    seen: Counter[str] = Counter()

    def name(given: str) -> str:
        seen[given] += 1
        return given if seen[given] == 1 else f"{given}#{seen[given]}"

    return name


def labeled_length(row: FileRow, field: str) -> int | None:
    """The length bucket in tokens that a column tells: "4k" is 4096; None where it is empty.

    Raises:
        FieldError: It is no length.
    """
    label = row.get(field)
    if not isinstance(label, str):
        return None if label is None else whole_length(label, field)
    found = re.fullmatch(r"([1-9]\d{0,14})(k?)", label.strip().lower())
    if not found:
        raise FieldError(field, f"needs a length such as '4k' or 4096, got {short(label)}")
    return whole_length(int(found[1]) * (1024 if found[2] else 1), field)


def rateable_responses(given: Mapping[str, Any], ranks: Sequence[int]) -> tuple[Response, ...]:
    """The responses of a row by the names of their fields, in the order of their ranks' list.

    Raises:
        FieldError: One is neither a text nor messages.
        Unrateable: One is empty, or two are identical but ranked apart.
    """
    if any(value is None or (isinstance(value, str) and not value.strip()) for value in given.values()):
        raise Unrateable("empty_responses")
    responses = tuple(messages_of(value, field, "assistant") for field, value in given.items())
    for (one, rank), (other, other_rank) in combinations(zip(responses, ranks, strict=True), 2):
        if one == other and rank != other_rank:
            raise Unrateable("identical_responses")
    return responses


def held(row: FileRow, *fields: str) -> dict[str, Any]:
    """What columns hold, by their names; null is left to `rateable_responses`.

    Raises:
        FieldError: There is no such column.
    """
    missing = next((field for field in fields if field not in row), None)
    if missing is not None:
        raise FieldError(missing, f"missing; add a column '{missing}'")
    return {field: row[field] for field in fields}


def listed(row: FileRow, field: str, least: int = 1) -> dict[str, Any]:
    """The items of a list column, `least` or more, under names that say where they stand."""
    value = row.get(field)
    if not isinstance(value, list | tuple) or len(value) < least:
        what = "response" if least == 1 else "responses"
        raise FieldError(field, f"needs a list of at least {least} {what}")
    return {f"{field}[{index}]": item for index, item in enumerate(value)}
