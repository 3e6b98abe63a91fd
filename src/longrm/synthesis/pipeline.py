"""A run folder of shards: inputs are worked on in order, and a killed run continues where it was.

`rows/` holds the shards and nothing else, so that it is read as data; `ledger.jsonl` tells of every input, in
order, what became of it and where its rows end. Rows are written before the ledger says so: on resume, what the
ledger does not know of is cut off, so no row is lost or doubled, and the bytes are those of a run never killed.
"""

import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

from pydantic import Field

from longrm.clients import Completion, Request
from longrm.config import Config
from longrm.data import write_rows
from longrm.data.files import raw_rows
from longrm.errors import DataError, RunError
from longrm.runs.folder import MANIFEST, RunFolder, read_manifest, write_json
from longrm.runs.logs import Log
from longrm.runs.progress import Progress, silent

LEDGER, ROWS = "ledger.jsonl", "rows"
Item = TypeVar("Item")


class Asked(Protocol):
    """What judges and writers are to a pipeline.

    Attributes:
        name: How rows and manifests call it.
    """

    name: str

    async def ask(self, prompts: Sequence[Request]) -> list[Completion]:
        """Answers every request alone, in the same order."""
        ...


class Output(Config):
    """How rows are written.

    Attributes:
        format: What the finished shards are.
        shard_rows: A shard ends with the input whose rows bring it to as many.
        batch: Inputs that are worked on together, and requests of which are under way together. It changes no
            row; a killed run repeats at most as many inputs.
    """

    format: Literal["jsonl", "parquet"] = "jsonl"
    shard_rows: int = Field(1000, ge=1)
    batch: int = Field(64, ge=1)


Steps = dict[str, dict[str, int]]
"""By step and by fate, how many units it met there: "kept", or the reason for which it was dropped."""

KEPT = "kept"


class Fates:
    """Counts what becomes of one input's units, step by step.

    Attributes:
        steps: The counts so far, steps in the order in which they were first met.
    """

    def __init__(self) -> None:
        self.steps: Steps = {}

    def keep(self, step: str, units: int = 1) -> None:
        """Counts units that go on to the next step."""
        self._count(step, KEPT, units)

    def drop(self, step: str, reason: str, units: int = 1) -> None:
        """Counts units that end here."""
        assert reason != KEPT
        self._count(step, reason, units)

    def _count(self, step: str, fate: str, units: int) -> None:
        fates = self.steps.setdefault(step, {})
        fates[fate] = fates.get(fate, 0) + units


@dataclass(frozen=True)
class Made:
    """What became of one input.

    Attributes:
        id: The input's id, unique in its run.
        rows: What is to be written, in order.
        steps: Counts of each step that the input came to, in the order of the steps.
    """

    id: str
    rows: tuple[Mapping[str, Any], ...] = ()
    steps: Steps = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the ledger.

    Attributes:
        id: The input's id.
        rows: Rows that were made of it.
        shard: The shard that holds them.
        shard_rows: Rows of that shard so far.
        end: Bytes of that shard so far, as JSONL.
        steps: As in `Made`.
    """

    id: str
    rows: int
    shard: int
    shard_rows: int
    end: int
    steps: Steps = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Provenance:
    """What the manifest says of a run before its first row.

    Attributes:
        sources: Name and license of each source, and what else tells which version of it was read.
        seed: Of all draws.
        prompts: SHA-256 of every text that models are asked with, by name: `prompt_hash`.
        models: Names of the models by what they do.
    """

    sources: Sequence[Mapping[str, str]]
    seed: int
    prompts: Mapping[str, str]
    models: Mapping[str, str]


@dataclass
class Tally:
    """Counts over all inputs; `steps` keeps the order in which steps were first met."""

    inputs: int = 0
    rows: int = 0
    steps: Steps = field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        """Counts one more input."""
        self.inputs += 1
        self.rows += entry.rows
        for step, fates in entry.steps.items():
            total = self.steps.setdefault(step, {})
            for fate, units in fates.items():
                total[fate] = total.get(fate, 0) + units

    def to_dict(self) -> dict[str, Any]:
        """As the manifest has it: what every step took in and kept, and why it dropped the others."""
        steps = {
            step: {
                "in": sum(fates.values()),
                "kept": fates.get(KEPT, 0),
                "dropped": {fate: fates[fate] for fate in sorted(fates) if fate != KEPT},
            }
            for step, fates in self.steps.items()
        }
        return {"inputs": self.inputs, "rows": self.rows, "steps": steps}


def prompt_hash(*texts: str) -> str:
    """SHA-256 of the texts that make a prompt."""
    return hashlib.sha256("\x00".join(texts).encode()).hexdigest()


class Pipeline(Generic[Item]):
    """Works on inputs in order and writes what they become.

    Args:
        identity: The id of an input; every one must differ.
        work: Turns a batch into what became of each input, in the same order. It must depend on nothing but the
            inputs, the configuration and the models: batches differ once a run was killed.
    """

    def __init__(
        self,
        identity: Callable[[Item], str],
        work: Callable[[Sequence[Item]], Awaitable[Sequence[Made]]],
    ) -> None:
        self._identity, self._work = identity, work

    async def run(
        self,
        folder: RunFolder,
        items: Iterable[Item],
        provenance: Provenance,
        output: Output,
        *,
        total: int = 0,
        progress: Progress = silent,
        note: Callable[[], str] = str,
    ) -> Tally:
        """Works on what the run folder, which must be open, does not hold yet.

        Args:
            folder: The run's folder.
            items: All inputs, in the same order as before.
            provenance: For the manifest.
            output: How rows are written.
            total: How many inputs there are, for the progress; 0 if unknown.
            progress: Told how many inputs are done.
            note: What else to tell it then, such as what was spent.

        Raises:
            RunError: Sources or prompts are not those that the run began with, or the folder cannot be written.
            DataError: Two inputs have one id.
        """
        check_same(folder, provenance)
        tell_manifest(folder.path, provenance, None)
        stream = self._distinct(items)
        ledger = Log(folder.path / LEDGER, Entry)
        with ledger:
            tally, last = self._replay(ledger, stream)
            shards = Shards(folder.path / ROWS, output, last)
            progress("inputs", tally.inputs, total, note())
            while batch := list(islice(stream, output.batch)):
                made = await self._work(batch)
                assert [one.id for one in made] == [self._identity(item) for item in batch]
                entries = shards.write(made)
                ledger.append(*entries)
                shards.seal()
                for entry in entries:
                    tally.add(entry)
                progress("inputs", tally.inputs, total, note())
            shards.finish()
        tell_manifest(folder.path, provenance, tally)
        return tally

    def _distinct(self, items: Iterable[Item]) -> Iterator[Item]:
        """Passes the inputs on; of every id 8 bytes of a hash are held, which millions do not confuse."""
        seen: set[bytes] = set()
        for item in items:
            identity = self._identity(item)
            digest = hashlib.blake2b(identity.encode(), digest_size=8).digest()
            if digest in seen:
                raise DataError(f"two inputs have the id '{identity}'; make ids unique")
            seen.add(digest)
            yield item

    def _replay(self, ledger: Log[Entry], stream: Iterator[Item]) -> tuple[Tally, Entry | None]:
        """Skips the inputs that the ledger knows, each of which must come again in its place."""
        tally, last = Tally(), None
        for entry in ledger:
            item = next(stream, None)
            found = "no more input" if item is None else f"'{self._identity(item)}'"
            if item is None or self._identity(item) != entry.id:
                raise RunError(
                    f"{ledger.path}: input {tally.inputs + 1} was '{entry.id}' and is now {found}; the sources "
                    "have changed: bring back what they were, or take another --out"
                )
            tally.add(entry)
            last = entry
        return tally, last


class Shards:
    """The shards of a run: JSONL while they grow.

    Args:
        folder: Holds the shards alone.
        output: How they are written.
        last: The ledger's last line; what lies behind it is cut off.
    """

    def __init__(self, folder: Path, output: Output, last: Entry | None) -> None:
        self._folder, self._output = folder, output
        self._shard = 0 if last is None else last.shard
        self._rows = 0 if last is None else last.shard_rows
        self._end = 0 if last is None else last.end
        self._full = False
        self._waiting: list[bytes] = []
        self._to_seal: list[int] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._cut_back()
        except OSError as error:
            raise RunError(f"cannot use {folder} for rows: {error.strerror}") from None

    def write(self, made: Sequence[Made]) -> list[Entry]:
        """Appends the rows of some inputs, safely on the disk, and returns their lines of the ledger."""
        entries = []
        for one in made:
            if self._full or self._rows >= self._output.shard_rows:
                self._next()
            lines = [to_json_line(row) for row in one.rows]
            self._waiting += lines
            self._rows += len(lines)
            self._end += sum(map(len, lines))
            entries.append(Entry(one.id, len(lines), self._shard, self._rows, self._end, one.steps))
        self._flush()
        return entries

    def seal(self) -> None:
        """Gives the shards that were ended their final form: not before the ledger knows all of their rows."""
        for shard in self._to_seal:
            self._seal(shard)
        self._to_seal.clear()

    def finish(self) -> None:
        """Gives the last shard its final form."""
        self._seal(self._shard)

    def _flush(self) -> None:
        if not self._waiting:
            return
        path = self._path(self._shard)
        try:
            with path.open("ab") as file:
                file.write(b"".join(self._waiting))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(
                f"cannot write {path}: {error.strerror}; make room and run the same command again"
            ) from None
        self._waiting.clear()

    def _next(self) -> None:
        self._flush()
        self._to_seal.append(self._shard)
        self._shard, self._rows, self._end, self._full = self._shard + 1, 0, 0, False

    def _seal(self, shard: int) -> None:
        path = self._path(shard)
        if self._output.format == "parquet" and path.exists():
            write_rows(path.with_suffix(".parquet"), _rows_of(path))
            path.unlink()

    def _path(self, shard: int) -> Path:
        return self._folder / f"rows-{shard:05d}.jsonl"

    def _cut_back(self) -> None:
        """Makes the shards what the ledger says: later ones go, its own is cut to its end."""
        for path in sorted(self._folder.iterdir()):
            number = path.stem.removeprefix("rows-")
            if path.name.startswith(".") or (number.isdigit() and int(number) > self._shard):
                path.unlink()  # what a killed process had begun and told nobody of
            elif number.isdigit() and int(number) < self._shard:
                self._seal(int(number))
        path = self._path(self._shard)
        sealed = path.with_suffix(".parquet")
        if sealed.exists() and not path.exists():
            self._full = True  # its run had ended, or was about to begin the next shard
            return
        size = path.stat().st_size if path.exists() else 0
        if size < self._end:
            raise RunError(
                f"{path} has {size} bytes, and the ledger knows of {self._end}; bring the file back, "
                "or take another --out"
            )
        if path.exists():
            os.truncate(path, self._end)
            sealed.unlink(missing_ok=True)


def to_json_line(row: Mapping[str, Any]) -> bytes:
    """One row as a JSON line."""
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair has no bytes, but an escape
        return json.dumps(row, allow_nan=False).encode() + b"\n"


def _rows_of(path: Path) -> Iterator[dict[str, Any]]:
    for raw in raw_rows([path]):
        assert raw.value is not None, f"{raw.place}: {raw.fault}"
        yield raw.value


def check_same(folder: RunFolder, provenance: Provenance) -> None:
    """Refuses to continue a run whose sources or prompts have changed: its rows would be of two kinds.

    Raises:
        RunError: They have; it names which.
    """
    held = read_manifest(folder.path) if folder.continued else {}
    now = {"sources": [dict(source) for source in provenance.sources], "prompts": dict(provenance.prompts)}
    for name, found in now.items():
        if name in held and held[name] != found:
            raise RunError(
                f"{folder.path}: the {name} have changed since this run began; bring back what they were, or take "
                "another --out (a shared remote.cache keeps what was paid for)"
            )


def tell_manifest(folder: Path, provenance: Provenance, tally: Tally | None) -> None:
    """Writes what a run is made of into its manifest, and at its end the counts of every step."""
    manifest = read_manifest(folder)
    manifest |= {
        "sources": [dict(source) for source in provenance.sources],
        "seed": provenance.seed,
        "prompts": dict(provenance.prompts),
        "models": dict(provenance.models),
        "counts": None if tally is None else tally.to_dict(),
    }
    write_json(folder / MANIFEST, manifest)
