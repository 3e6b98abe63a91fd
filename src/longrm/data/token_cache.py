"""The cache of tokenized training data.

An entry is a folder named by a digest of everything that its tokens depend on:

- `tokens.bin`: the ids of all rows as little-endian uint32, memory-mapped; a row's prompt comes before its responses.
- `rows.jsonl`: for every row, where its tokens are and what else is known of it (`TrainingRow`).
- `skipped.json`: which rows were left out.

If a chat template writes the date, an entry keeps that of the day on which it was made.
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
from contextlib import contextmanager
from dataclasses import asdict
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import tokenizers

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
from longrm.reading import file_digest, read_json
from longrm.runs.progress import Progress, no_progress

_LAYOUT = 7  # count up when the files of an entry, or the meaning of a row, change
_TOKENS, _ROWS, _SKIPPED = "tokens.bin", "rows.jsonl", "skipped.json"
_IDS = np.dtype("<u4")
_logger = logging.getLogger(__name__)


class TokenizedRows:
    """The rows of an entry; their tokens stay on disk until a row is read.

    Attributes:
        rows: What is known of every row, in file order.
        longest: Tokens of the prompt and the longest response of every row.
        skipped: Rows that were left out because they cannot be read or trained on.
        digest: A digest of the files and of everything else that the tokens depend on.
    """

    def __init__(self, entry: Path) -> None:
        skipped = read_json(entry / _SKIPPED, DataError)
        self.skipped = Skipped(skipped["count"], tuple(skipped["messages"]))
        self.digest = entry.name
        with (entry / _ROWS).open(encoding="utf-8") as lines:
            self._held = [json.loads(line) for line in lines]
        self.rows = [
            TrainingRow(**held["row"] | {"ranks": tuple(held["row"]["ranks"])}) for held in self._held
        ]
        self.longest: list[int] = [
            held["lengths"][0] + max(held["lengths"][1:], default=0) for held in self._held
        ]
        self._tokens = np.memmap(entry / _TOKENS, _IDS, mode="r")

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[TokenizedRow]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> TokenizedRow:
        held = self._held[index]
        bounds = accumulate(held["lengths"], initial=held["start"])
        prompt, *responses = (self._tokens[start:end].tolist() for start, end in pairwise(bounds))
        tokens = Encoded(prompt, responses, held.get("seams", []), assistant_spans=held.get("own", []))
        return TokenizedRow(self.rows[index], tokens)


def open_tokenized(
    path: str | Path,
    tokenizer: Tokenizer,
    *,
    kind: RowKind,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    on_bad_row: OnBadRow = "stop",
    progress: Progress = no_progress,
) -> TokenizedRows:
    """Opens the rows of a file or folder as tokens, which are made now unless the cache has them.

    Several processes may open the same rows at once: one tokenizes them, the others wait.

    Path, format, columns and `on_bad_row` are as for `longrm.data.read`; a row that cannot be trained on is a bad row,
    too. Progress is called with the number of rows tokenized.

    Raises:
        DataError: Nothing to read, a bad row, or a cache that cannot be written.
    """
    rows: ComparisonReader | DemonstrationReader
    if kind == "comparison":
        rows = read(path, format=format, on_bad_row=on_bad_row, columns=columns)
    else:
        form: Literal["demonstrations", "judge_prompts"] = (
            "judge_prompts" if kind == "judge_prompt" else "demonstrations"
        )
        rows = read_demonstrations(path, format=form, on_bad_row=on_bad_row, columns=columns)
    entry = cache_folder() / _digest(rows, tokenizer)
    try:
        if not entry.exists():
            entry.parent.mkdir(parents=True, exist_ok=True)
            with locked(entry.with_suffix(".lock"), "tokenizes the same data"):
                if not entry.exists():  # another process may have made it while this one waited
                    _make(entry, rows, tokenizer, progress)
        return TokenizedRows(entry)
    except OSError as error:
        raise DataError(
            f"{entry.parent}: cannot hold the cache of tokenized data ({error.strerror or error}); set the environment "
            "variable LONGRM_CACHE to another folder"
        ) from error


def cache_folder() -> Path:
    """The folder of all entries."""
    return user_cache() / "tokens"


def user_cache() -> Path:
    """The cache that all runs of a user share: `$LONGRM_CACHE`, else `longrm` in `$XDG_CACHE_HOME` or `~/.cache`."""
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("LONGRM_CACHE") or f"{shared}/longrm").expanduser()


def _digest(rows: ComparisonReader | DemonstrationReader, tokenizer: Tokenizer) -> str:
    # Messages about skipped rows, which the entry keeps, name their file in full.
    skips = rows.on_bad_row == "skip"
    files = [(str(file) if skips else file.name, file_digest(file, DataError)) for file in rows.files]
    parts = [
        *(_LAYOUT, tokenizers.__version__, files, rows.format, rows.on_bad_row, sorted(rows.columns.items())),
        *(tokenizer.backend.to_str(), tokenizer.chat_template, sorted(tokenizer.special_tokens.items())),
        tokenizer.config.get("add_bos_token"),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


@contextmanager
def locked(path: Path, work: str) -> Iterator[None]:
    """Holds a lock file until the block or the process ends; logs the other process's work if it has to wait."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _logger.info("waiting for another process, which %s", work)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(
    entry: Path, rows: ComparisonReader | DemonstrationReader, tokenizer: Tokenizer, progress: Progress
) -> None:
    scratch = entry.with_suffix(".partial")
    shutil.rmtree(scratch, ignore_errors=True)  # left by a killed process
    scratch.mkdir()
    try:
        _write(scratch, rows, tokenizer, progress)
    except BaseException:
        shutil.rmtree(scratch)
        raise
    scratch.rename(entry)  # an entry is complete once it has its name
    _logger.info("tokenized %s into %s", rows.path, entry)


def _write(
    folder: Path, rows: ComparisonReader | DemonstrationReader, tokenizer: Tokenizer, progress: Progress
) -> None:
    start = 0
    with (folder / _TOKENS).open("wb") as tokens, (folder / _ROWS).open("w", encoding="utf-8") as lines:
        for number, result in enumerate(_in_parallel(rows, tokenizer), start=1):
            try:
                row = result.result()
            except DataError as error:
                rows.skip(error)  # raises it unless bad rows are skipped
                continue
            parts = [row.tokens.prompt, *row.tokens.responses]
            for part in parts:
                tokens.write(np.array(part, _IDS).tobytes())
            held = {"row": asdict(row.row), "start": start, "lengths": [len(part) for part in parts]}
            if any(row.tokens.prompt_overlap):
                held["seams"] = list(row.tokens.prompt_overlap)
            if row.tokens.assistant_spans:
                held["own"] = row.tokens.assistant_spans
            lines.write(json.dumps(held) + "\n")
            start += sum(map(len, parts))
            progress("tokenizing", number, 0)
    if not start:
        raise DataError(f"{rows.path}: no row to train on{rows.skipped.first()}")
    (folder / _SKIPPED).write_text(json.dumps(asdict(rows.skipped)), encoding="utf-8")


def _in_parallel(
    rows: ComparisonReader | DemonstrationReader, tokenizer: Tokenizer
) -> Iterator[Future[TokenizedRow]]:
    """Tokenizes rows in order, on all processors: the `tokenizers` library works outside Python's lock."""
    workers = os.cpu_count() or 1
    waiting: deque[Future[TokenizedRow]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for row in rows:
            waiting.append(pool.submit(tokenize, row, tokenizer))
            if len(waiting) == 2 * workers:  # a row is large: no more of them are held at once
                yield waiting.popleft()
        yield from waiting
