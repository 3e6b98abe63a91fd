"""Benchmarks by name: each file returns comparisons."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from pydantic import Field

from longrm import hub
from longrm.benchmarks import judgebench, long_rewardbench, rewardbench, rewardbench_2
from longrm.benchmarks import leval as leval_
from longrm.benchmarks import probe as probes
from longrm.benchmarks.audit import Audit, Audited, Auditor
from longrm.benchmarks.lengths import bucket, measure_with
from longrm.benchmarks.leval import Leval
from longrm.benchmarks.probe import Cell, Probe
from longrm.config import Config
from longrm.data import Reading, read
from longrm.data.fields import FieldError
from longrm.data.files import find_files
from longrm.data.places import place_of
from longrm.errors import ConfigError, DataError
from longrm.types import Comparison, text_of

__all__ = ["Audit", "Audited", "Benchmark", "Cell", "Leval", "Probe", "Source", "load"]

_logger = logging.getLogger(__name__)


class Source(Config):
    """Which rows of a file are taken, and how they are read.

    Attributes:
        format: The rows' format, of `file` only; recognized from the columns when not given.
        on_bad_row: What a row that cannot be read does: "stop", or "skip" (counted and said).
        limit: Take the first comparisons only.
        strict: Refuse a benchmark whose candidates come best first by order, but not by their scores.
        tokenizer: "words", or a tokenizer's file, folder or Hub id, that measures lengths where the data names none;
            estimated from words and marks when not given.
    """

    format: str | None = None
    on_bad_row: Literal["stop", "skip"] = "stop"
    limit: int | None = Field(None, ge=1)
    strict: bool = False
    tokenizer: str | None = None


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Comparisons under a name.

    Attributes:
        name: As summaries and reports call it.
        comparisons: In an order that never changes; may be iterated again and again.
        total: How many there are; None where only reading tells.
        reading: How the file was read, where it is one: its format, and what was skipped.
        rule: Which published rule sums it up: "judgebench", "rewardbench", "rewardbench-2", or none.
        provenance: What the manifest of a run tells of it: its commit, where it comes from the Hub.
    """

    name: str
    comparisons: Iterable[Comparison]
    total: int | None = None
    reading: Reading | None = None
    rule: str = ""
    provenance: Mapping[str, str] = field(default_factory=dict)

    @property
    def audit(self) -> Audit | None:
        """What the latest complete iteration found; None before, and for comparisons that nobody audits."""
        return self.comparisons.audit if isinstance(self.comparisons, Audited) else None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A benchmark's name with the path in it, and the settings of all benchmarks."""

    name: str
    path: str
    source: Source
    probe: Probe
    leval: Leval


def load(bench: str, *, source: Source, probe: Probe, leval: Leval) -> Benchmark:
    """Finds a benchmark by its name.

    Args:
        bench: `probe`, or another name of `BENCHMARKS` with a path, such as `file:pairs.jsonl`.
        source: How files are read.
        probe: What the probe asks.
        leval: Which answers of L-Eval are compared.

    Raises:
        ConfigError: An unknown name, or a name without the path that it needs.
        DataError: There is nothing to read at the path.
        ModelError: There is no such tokenizer to measure lengths with.
    """
    name, _, path = bench.partition(":")
    if name in BENCHMARKS and bool(path) == (name != "probe"):
        return BENCHMARKS[name](_Asked(bench, path, source, probe, leval))
    usage = {known: known if known == "probe" else f"{known}:PATH" for known in BENCHMARKS}
    near = get_close_matches(name, BENCHMARKS, n=1)
    hint = f"did you mean '{usage[near[0]]}'? " if near else ""
    raise ConfigError(f"no benchmark '{bench}'; {hint}known: {', '.join(usage.values())}")


def _probe(asked: _Asked) -> Benchmark:
    limit = asked.source.limit
    rows = Audited(lambda _: probes.comparisons(asked.probe), limit=limit)
    return Benchmark(asked.name, rows, min(asked.probe.total, limit or asked.probe.total))


def _file(asked: _Asked) -> Benchmark:
    reading = read(asked.path, format=asked.source.format, on_bad_row=asked.source.on_bad_row)
    measure = measure_with(asked.source.tokenizer)
    _read_through(_comparisons(reading), asked.source)
    rows = Audited(lambda _: _with_length(_comparisons(reading), measure), limit=asked.source.limit)
    return Benchmark(asked.name, rows, reading=reading)


def _comparisons(reading: Reading) -> Iterator[Comparison]:
    """The comparisons of a file; a row that names no place that can be is one that cannot be read."""
    for row in reading:
        try:
            place_of(row.comparison.metadata)
        except FieldError as fault:
            message = f"{row.place}, {fault}"
            if reading.on_bad_row == "stop":
                raise DataError(message) from fault
            reading.skipped = reading.skipped.with_one_more(message)
        else:
            yield row.comparison


def _long_rewardbench(asked: _Asked) -> Benchmark:
    source, files = asked.source, long_rewardbench.find_files(asked.path)
    _logger.info("Long-RewardBench: reading %s", ", ".join(str(file) for file in files.values()))
    comparisons = partial(
        long_rewardbench.comparisons, files, on_bad_row=source.on_bad_row, strict=source.strict
    )
    rows = partial(comparisons, measure_with(source.tokenizer))
    unmeasured = comparisons(measure=len, auditor=Auditor(long_rewardbench.LOOKS_FOR))
    _read_through(unmeasured, source, refuses=source.strict)
    commit = hub.commit_of(next(iter(files.values())).parent)
    told = {} if commit is None else {"commit": commit}
    return Benchmark(asked.name, Audited(rows, long_rewardbench.LOOKS_FOR, source.limit), provenance=told)


def _rewardbench(asked: _Asked) -> Benchmark:
    return _of_rows(asked, rewardbench.comparisons, rewardbench.LOOKS_FOR, "rewardbench")


def _rewardbench_2(asked: _Asked) -> Benchmark:
    return _of_rows(asked, rewardbench_2.comparisons, rewardbench_2.LOOKS_FOR, "rewardbench-2")


def _judgebench(asked: _Asked) -> Benchmark:
    return _of_rows(asked, judgebench.comparisons, judgebench.LOOKS_FOR, "judgebench")


def _leval(asked: _Asked) -> Benchmark:
    folder = Path(asked.path)
    leval_.find_files(folder, asked.leval)  # raises now, and not when the first comparison is asked for
    rows = partial(leval_.comparisons, folder, asked.leval, measure_with(asked.source.tokenizer))
    return Benchmark(asked.name, Audited(rows, leval_.LOOKS_FOR, asked.source.limit))


def _of_rows(
    asked: _Asked, comparisons: Callable[..., Iterator[Comparison]], looks_for: Iterable[str], rule: str
) -> Benchmark:
    path = Path(asked.path)
    find_files(path)  # raises now, likewise
    measure = measure_with(asked.source.tokenizer)
    read_rows = partial(comparisons, path, on_bad_row=asked.source.on_bad_row)
    _read_through(read_rows(Auditor(looks_for)), asked.source)
    rows = Audited(lambda auditor: _with_length(read_rows(auditor), measure), looks_for, asked.source.limit)
    return Benchmark(asked.name, rows, rule=rule)


def _read_through(rows: Iterable[Comparison], source: Source, *, refuses: bool = False) -> None:
    """Reads all rows that will be taken, where one may stop the run: before any work is done, not when it comes by."""
    if refuses or source.on_bad_row == "stop":
        deque(islice(rows, source.limit), maxlen=0)


def _with_length(rows: Iterable[Comparison], measure: Callable[[str], int]) -> Iterator[Comparison]:
    """Gives comparisons that name no length the bucket of their prompt, whatever a model makes of it."""
    for comparison in rows:
        length = place_of(comparison.metadata).length or bucket(measure(text_of(comparison.prompt)))
        yield replace(comparison, metadata={**comparison.metadata, "length": length})


BENCHMARKS: dict[str, Callable[[_Asked], Benchmark]] = {
    "probe": _probe,
    "file": _file,
    "long-rewardbench": _long_rewardbench,
    "rewardbench": _rewardbench,
    "rewardbench-2": _rewardbench_2,
    "judgebench": _judgebench,
    "leval": _leval,
}
"""The benchmarks by name."""
