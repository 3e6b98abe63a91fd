"""Comparisons in a file or folder of any format that longrm reads."""

from collections.abc import Iterator

from longrm.benchmarks.auditor import AuditedComparisons
from longrm.benchmarks.benchmark_data import (
    BenchmarkRequest,
    LoadedBenchmark,
    measure_with,
    read_through,
    with_length,
)
from longrm.data import ComparisonReader, read
from longrm.data.fields import length_and_depth_of
from longrm.data.files import origin_of
from longrm.errors import DataError
from longrm.reading import FieldError
from longrm.types import Comparison


def load_comparison_file(request: BenchmarkRequest) -> LoadedBenchmark:
    """The comparisons of a file of one's own.

    Raises:
        DataError: There is nothing to read, or a row cannot be read though that stops the run.
    """
    source = request.source
    reading = read(request.path, format=source.format, on_bad_row=source.on_bad_row, columns=source.columns)
    measure = measure_with(source.tokenizer)
    read_through(_comparisons(reading), source)
    rows = AuditedComparisons(lambda _: with_length(_comparisons(reading), measure), limit=source.limit)
    return LoadedBenchmark(request.name, rows, reading=reading, provenance=origin_of(reading.files))


def _comparisons(reading: ComparisonReader) -> Iterator[Comparison]:
    """The comparisons of a file; a row that names no place that can be is one that cannot be read."""
    for row in reading:
        try:
            length_and_depth_of(row.comparison.metadata)
        except FieldError as fault:
            message = f"{row.place}, {fault}"
            if reading.on_bad_row == "stop":
                raise DataError(message) from fault
            reading.skipped = reading.skipped.with_one_more(message)
        else:
            yield row.comparison
