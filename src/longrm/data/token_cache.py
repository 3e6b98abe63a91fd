"""Tokenized training data, made once and kept: content-addressed, memory-mapped, a prompt once for its responses.

An entry is a folder named by a digest of all that its tokens depend on. It holds `tokens.bin` (the ids of all rows,
little-endian uint32, a row's prompt before its responses), `lengths.npy` (of each of these parts), `rows.jsonl`
(what else is known of a row), and `entry.json` (the digests of the others, and what was left out). Where a chat
template writes the day, an entry keeps the day on which it was made.
"""

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import assert_never

import numpy as np
import numpy.typing as npt
import tokenizers
from pydantic import TypeAdapter

from longrm.data.files import find_files
from longrm.data.joining import Encoded
from longrm.data.readers import (
    ComparisonReader,
    DemonstrationReader,
    OnBadRow,
    Skipped,
    read,
    read_demonstrations,
)
from longrm.data.tokenizing import Tokenizer
from longrm.data.training_rows import RowKind, TokenizedRow, TrainingRow, tokenize
from longrm.errors import DataError
from longrm.reading import file_digest, parse_json, read_json, typed
from longrm.runs.progress import Progress, no_progress

LAYOUT = 5
"""Counted up when an entry would be read, or a row understood, in another way than before."""

TOKENS, LENGTHS, ROWS, ENTRY = "tokens.bin", "lengths.npy", "rows.jsonl", "entry.json"
AnyReader = ComparisonReader | DemonstrationReader
_IDS = np.dtype("<u4")
_SEAMS, _GIVEN = "seams", "given"
_logger = logging.getLogger(__name__)


class TokenizedRows:
    """The rows of an entry; their tokens stay on disk until a row is read.

    Attributes:
        rows: What is known of every row, in file order.
        longest: Tokens of the prompt and the longest response of every row.
        skipped: Rows that were left out because they cannot be read or trained on.
        digest: A digest of the files and of all else that the tokens depend on.
    """

    def __init__(self, entry: Path, skipped: Skipped) -> None:
        self.skipped = skipped
        self.digest = entry.name
        with (entry / ROWS).open(encoding="utf-8") as lines:
            known = [parse_json(line) for line in lines]
        self._seams: list[list[int]] = [fields.pop(_SEAMS, []) for fields in known]
        self._given: list[list[list[list[int]]]] = [fields.pop(_GIVEN, []) for fields in known]
        self.rows = [TrainingRow(**fields | {"ranks": tuple(fields["ranks"])}) for fields in known]
        self._tokens = np.memmap(entry / TOKENS, _IDS, mode="r")
        lengths: npt.NDArray[np.int64] = np.load(entry / LENGTHS)
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._firsts = np.cumsum([0, *(1 + len(row.ranks) for row in self.rows)])
        prompts = self._firsts[:-1]
        responses = lengths.copy()
        responses[prompts] = 0
        self.longest: list[int] = (lengths[prompts] + np.maximum.reduceat(responses, prompts)).tolist()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[TokenizedRow]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> TokenizedRow:
        first, last = self._firsts[index : index + 2]
        bounds = self._starts[first : last + 1]
        prompt, *responses = (self._tokens[start:end].tolist() for start, end in pairwise(bounds))
        return TokenizedRow(
            self.rows[index], Encoded(prompt, responses, self._seams[index], given=self._given[index])
        )


def open_tokenized(
    path: str | Path,
    tokenizer: Tokenizer,
    *,
    kind: RowKind,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    on_bad_row: OnBadRow = "stop",
    cache: str | Path | None = None,
    progress: Progress = no_progress,
) -> TokenizedRows:
    """Opens the rows of a file or folder as tokens, which are made now where the cache does not hold them.

    Several processes may open the same rows at once: one tokenizes them, the others wait.

    Path, format, columns and `on_bad_row` are as for `longrm.data.read`, but a row that cannot be trained on is a bad
    one, too. The cache is the folder that `cache_folder` takes; progress is called with the number of rows tokenized.

    Raises:
        DataError: Nothing to read, a bad row, or a cache that cannot be written.
    """
    reading: AnyReader
    match kind:
        case "comparison":
            reading = read(path, format=format, on_bad_row=on_bad_row, columns=columns)
        case "demonstration":
            reading = read_demonstrations(path, on_bad_row=on_bad_row, columns=columns)
        case unknown:
            assert_never(unknown)
    key = _key(reading, tokenizer)
    root = cache_folder(cache)
    entry = root / key
    try:
        found = _opened(entry)
        if found is None:
            root.mkdir(parents=True, exist_ok=True)
            with locked(root / f"{key}.lock", "tokenizes the same data"):
                found = _opened(entry)
                if found is None:
                    _make(entry, reading, tokenizer, progress)
                    found = _opened(entry)
    except OSError as error:
        raise DataError(
            f"{root}: cannot hold the cache of tokenized data ({error.strerror or error}); name another folder with "
            "data.cache or LONGRM_CACHE"
        ) from error
    assert found is not None, "an entry is complete once it has its name"
    return found


def cache_folder(given: str | Path | None = None) -> Path:
    """Returns the folder of all entries: `tokens` in the folder given, else in the user's cache.

    See `user_cache`.
    """
    return (Path(given).expanduser() if given else user_cache()) / "tokens"


def user_cache() -> Path:
    """Returns the folder of what is made once and kept for a user: `$LONGRM_CACHE`, else `longrm` in the user's cache.

    The user's cache is `$XDG_CACHE_HOME`, else `~/.cache`.
    """
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("LONGRM_CACHE") or f"{shared}/longrm").expanduser()


def _key(reading: AnyReader, tokenizer: Tokenizer) -> str:
    """Digests all that the tokens, and the messages about rows left out, depend on."""
    # A message about a row that was left out names its file in full.
    skips = reading.on_bad_row == "skip"
    found = find_files(reading.path)
    files = [(str(file) if skips else file.name, file_digest(file, DataError)) for file in found]
    ids = [
        tokenizers.__version__,
        tokenizer.backend.to_str(),
        tokenizer.chat_template,
        sorted(tokenizer.special_tokens.items()),
        tokenizer.config.get("add_bos_token"),
    ]
    named = [dict(sorted(reading.columns.items()))] if reading.columns else []
    text = json.dumps([LAYOUT, files, reading.format, reading.on_bad_row, ids, *named])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@contextmanager
def locked(path: Path, work: str) -> Iterator[None]:
    """Holds a lock until the block ends, or the process; who waits for one is told at what work."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _logger.info("waiting for another process, which %s", work)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _opened(entry: Path) -> TokenizedRows | None:
    """The rows of an entry; None where there is none, or it is not what was written."""
    try:
        held = typed(_ENTRY_FILE, read_json(entry / ENTRY, DataError), entry, DataError)
        if {name: file_digest(entry / name, DataError) for name in (TOKENS, LENGTHS, ROWS)} != held.files:
            return None
    except (FileNotFoundError, DataError):
        return None
    return TokenizedRows(entry, held.skipped)


@dataclass(frozen=True, slots=True)
class _EntryFile:
    """The content of `entry.json`: the digests of the other files, and which rows were left out."""

    files: dict[str, str]
    skipped: Skipped


_ENTRY_FILE = TypeAdapter(_EntryFile)


def _make(entry: Path, reading: AnyReader, tokenizer: Tokenizer, progress: Progress) -> None:
    """Writes an entry beside its place, and moves it there in one rename."""
    scratch = entry.with_suffix(".partial")
    for left in entry.parent.glob("*.partial"):  # of processes that were killed: nobody holds their locks
        with suppress(OSError), left.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        skipped = _write(scratch, reading, tokenizer, progress)
    except BaseException:
        shutil.rmtree(scratch)
        raise
    if entry.exists():
        _logger.warning("%s: a damaged entry of the cache, written anew", entry)
        shutil.rmtree(entry)
    scratch.rename(entry)
    _logger.info("tokenized %s into %s, skipped %d rows", reading.path, entry, skipped.count)


def _write(folder: Path, reading: AnyReader, tokenizer: Tokenizer, progress: Progress) -> Skipped:
    lengths: list[int] = []
    bad = Skipped()
    with (folder / TOKENS).open("wb") as tokens, (folder / ROWS).open("w", encoding="utf-8") as rows:
        for number, result in enumerate(_in_parallel(reading, tokenizer), start=1):
            try:
                row = result.result()
            except DataError as error:
                if reading.on_bad_row == "stop":
                    raise
                bad = bad.with_one_more(str(error))
                continue
            for part in (row.tokens.prompt, *row.tokens.responses):
                tokens.write(np.array(part, _IDS).tobytes())
                lengths.append(len(part))
            seams = {_SEAMS: list(row.tokens.seams)} if any(row.tokens.seams) else {}
            given = {_GIVEN: row.tokens.given} if row.tokens.given else {}
            rows.write(json.dumps(asdict(row.row) | seams | given) + "\n")
            progress("tokenizing", number, 0)
    skipped = reading.skipped.joined(bad)
    if not lengths:
        first = f"; the first: {skipped.messages[0]}" if skipped.count else ""
        raise DataError(f"{reading.path}: no row to train on{first}")
    np.save(folder / LENGTHS, np.array(lengths, np.int64))
    files = {name: file_digest(folder / name, DataError) for name in (TOKENS, LENGTHS, ROWS)}
    (folder / ENTRY).write_text(json.dumps({"files": files, "skipped": asdict(skipped)}), encoding="utf-8")
    return skipped


def _in_parallel(reading: AnyReader, tokenizer: Tokenizer) -> Iterator[Future[TokenizedRow]]:
    """Tokenizes rows on all processors, in order; two rows a processor are held at once.

    Threads will do: `tokenizers` works outside Python's lock.
    """
    workers = os.cpu_count() or 1
    waiting: deque[Future[TokenizedRow]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for row in reading:
            waiting.append(pool.submit(tokenize, row, tokenizer))
            if len(waiting) == 2 * workers:
                yield waiting.popleft()
        yield from waiting
