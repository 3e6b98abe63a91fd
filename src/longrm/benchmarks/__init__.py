"""Benchmarks by name: each file returns comparisons."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from pydantic import Field

from longrm.benchmarks import probe as probes
from longrm.benchmarks.probe import Cell, Probe
from longrm.config import Config
from longrm.data import Reading, read
from longrm.errors import ConfigError
from longrm.types import Comparison

__all__ = ["Benchmark", "Cell", "Probe", "Source", "load"]


class Source(Config):
    """Which rows of a file are taken, and how they are read.

    Attributes:
        format: The rows' format; recognized from the columns when not given.
        on_bad_row: What a row that cannot be read does: "stop", or "skip" (counted and said).
        limit: Take the first rows only.
    """

    format: str | None = None
    on_bad_row: Literal["stop", "skip"] = "stop"
    limit: int | None = Field(None, ge=1)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Comparisons under a name.

    Attributes:
        name: As summaries and reports call it.
        comparisons: In an order that never changes.
        total: How many there are; None where only reading tells.
        reading: How the file was read, where it is one: its format, and what was skipped.
    """

    name: str
    comparisons: Iterable[Comparison]
    total: int | None = None
    reading: Reading | None = None


def load(bench: str, source: Source, probe: Probe) -> Benchmark:
    """Finds a benchmark by its name.

    Args:
        bench: `file:PATH` for preference data in any format that `longrm.data` reads, or `probe`.
        source: How a file is read.
        probe: What the probe asks.

    Raises:
        ConfigError: An unknown name, or a name without the path that it needs.
        DataError: A file that cannot be read.
    """
    name, _, path = bench.partition(":")
    if name == "probe" and not path:
        rows = islice(probes.comparisons(probe), source.limit)
        return Benchmark(bench, rows, min(probe.total, source.limit or probe.total))
    if name == "file" and path:
        reading = read(path, format=source.format, on_bad_row=source.on_bad_row)
        return Benchmark(bench, islice(_comparisons(reading), source.limit), reading=reading)
    raise ConfigError(f"no benchmark '{bench}'; known: probe, file:PATH")


def _comparisons(reading: Reading) -> Iterator[Comparison]:
    for row in reading:
        yield row.comparison
