"""A run folder of shards: inputs are worked on in order, and a killed run continues where it was.

`rows/` holds the shards and nothing else, so that it is read as data; `ledger.jsonl` tells of every input, in
order, what became of it and where its rows end. Rows are written before the ledger says so: on resume, what the
ledger does not know of is cut off, so no row is lost or doubled, and the bytes are those of a run never killed.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from longrm.clients import Completion, Request
from longrm.errors import DataError, RunError
from longrm.runs.folder import MANIFEST, RunFolder, read_manifest, write_json
from longrm.runs.logs import Log
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.fates import Entry, Made, Tally
from longrm.synthesis.shards import Output, Shards

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
        progress: Progress = no_progress,
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
