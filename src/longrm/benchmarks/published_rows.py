"""The rows of a benchmark's published files: each becomes a comparison, or is left out and counted."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from longrm.benchmarks.auditor import AuditedComparisons, Auditor
from longrm.benchmarks.benchmark_data import BenchmarkRequest, LoadedBenchmark, read_through, with_length
from longrm.benchmarks.lengths import measure_with
from longrm.data.fields import FieldError, FileRow, length_and_depth_of, messages_of
from longrm.data.files import find_files, raw_rows
from longrm.errors import DataError
from longrm.reading import located, short
from longrm.types import Comparison, Response

Converter = Callable[[FileRow, int], Comparison]
"""Makes a row and its number, from 1 over all files, a comparison; raises `FieldError` or `Unrateable`."""


class Unrateable(Exception):  # noqa: N818  # no error: such an item is counted
    """An item that no judge can rate; its message is a kind of finding."""


class _RowError(DataError):
    """A row that may be skipped, unlike what a benchmark refuses on its own account."""


def load_rows(
    request: BenchmarkRequest, converter: Callable[[], Converter], kinds: Mapping[str, str]
) -> LoadedBenchmark:
    """A benchmark whose rows tell no length: it is measured.

    Args:
        request: What was asked for: the rows of a file, or of a folder of files.
        converter: Makes what converts the rows of one reading.
        kinds: The kinds of finding that it may note, in words.

    Raises:
        DataError: There is nothing to read, or a row cannot be read though that stops the run.
    """
    path, source = Path(request.path), request.source
    find_files(path)  # raises now, and not when the first comparison is asked for
    measure = measure_with(source.tokenizer)

    def comparisons(auditor: Auditor) -> Iterator[Comparison]:
        return read_rows(find_files(path), converter(), auditor, source.on_bad_row)

    read_through(comparisons(Auditor(kinds)), source)
    rows = AuditedComparisons(lambda auditor: with_length(comparisons(auditor), measure), kinds, source.limit)
    return LoadedBenchmark(request.name, rows)


def read_rows(
    files: Sequence[Path],
    convert: Converter,
    auditor: Auditor,
    on_bad_row: Literal["stop", "skip"],
) -> Iterator[Comparison]:
    """Converts the rows of all files, one by one.

    Args:
        files: In order.
        convert: Makes each row a comparison.
        auditor: Counts what is left out, with its place.
        on_bad_row: What a row that cannot be read does: "stop", or "skip".

    Raises:
        DataError: A row cannot be read; the message names file, row and field.
    """
    seen: dict[str, str] = {}
    for raw in raw_rows(files):
        try:
            if raw.value is None:
                raise _RowError(raw.message)
            try:
                comparison = convert(raw.value, raw.number)
                length_and_depth_of(comparison.metadata)
            except FieldError as fault:
                raise _RowError(located(raw.place, fault)) from fault
            if comparison.id in seen:
                twice = f"{short(comparison.id)} is also at {seen[comparison.id]}; make ids unique"
                raise _RowError(located(raw.place, FieldError("id", twice)))
            seen[comparison.id] = raw.place
        except _RowError as error:
            if on_bad_row == "stop":
                raise
            auditor.note("unreadable_rows", str(error))
        except Unrateable as reason:
            auditor.note(str(reason), raw.place)
        else:
            yield comparison


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


def listed(row: FileRow, field: str, least: int = 1) -> dict[str, Any]:
    """The items of a list column under names that say where they stand.

    Raises:
        FieldError: It holds no list, or one of fewer items.
    """
    value = row.get(field)
    if not isinstance(value, list | tuple) or len(value) < least:
        raise FieldError(
            field, f"needs a list of at least {least} {'response' if least == 1 else 'responses'}"
        )
    return {f"{field}[{index}]": item for index, item in enumerate(value)}
