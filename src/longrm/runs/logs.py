"""Append-only typed logs, one JSON line per record, and the judgments and gold of an evaluation."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Generic, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from longrm.errors import RunError
from longrm.jsonl import append_lines, compact_line, cut_unfinished_line, whole_lines, writable
from longrm.reading import reading, validation_problem
from longrm.runs.records import JUDGMENT_FIELDS, TRIAL_FIELDS, GoldRecord, JudgmentRecord
from longrm.types import Comparison, Message, Response, Tool, Trial

LoggedRecord = TypeVar("LoggedRecord")
JUDGMENTS, GOLD, EXAMPLES = "judgments.jsonl", "gold.jsonl", "examples.jsonl"
ROLLOUTS = "rollouts.jsonl"
TRAJECTORIES = "trajectories.jsonl"
STEPS, TIMING, CONTEXTS = "steps.jsonl", "timing.jsonl", "contexts.jsonl"
PART = ".part-"


class Log(Generic[LoggedRecord]):
    """A JSON-lines file of records of one dataclass. Iterate to read it; use it as a context manager to append.

    A line without its end was left by a killed process: reading ignores it, opening the log for writing cuts it.
    """

    def __init__(self, path: Path, record_type: type[LoggedRecord]) -> None:
        self.path = path
        self._adapter: TypeAdapter[LoggedRecord] = TypeAdapter(record_type)
        self._file: IO[bytes] | None = None

    def __iter__(self) -> Iterator[LoggedRecord]:
        return (record for _, record in self.with_offsets())

    def with_offsets(self) -> Iterator[tuple[int, LoggedRecord]]:
        """Reads the complete records, each with its byte offset for `at`."""
        for number, (offset, line) in enumerate(whole_lines(self.path), start=1):
            try:
                yield offset, self._adapter.validate_json(line, strict=True)
            except ValidationError as error:
                raise RunError(
                    f"{self.path}, line {number}{validation_problem(error)}; remove that line and the "
                    "following ones to redo them"
                ) from None

    def at(self, offsets: Iterable[int]) -> Iterator[LoggedRecord]:
        """Reads the records at some byte offsets."""
        with self.path.open("rb") as file:
            for offset in offsets:
                file.seek(offset)
                yield self._adapter.validate_json(file.readline())

    def __enter__(self) -> Self:
        with reading(self.path, RunError):
            cut_unfinished_line(self.path)
            self._file = self.path.open("ab")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        file, self._file = self._file, None
        assert file is not None, "the log is open"
        try:
            file.close()
        except OSError:  # a full disk, which append has already reported
            if error is None:
                raise

    def append(self, *records: LoggedRecord) -> None:
        """Writes records and flushes them to the operating system; earlier lines survive a full disk."""
        assert self._file is not None, "open the log before appending"
        with writable(self.path):
            append_lines(self._file, [to_line(record) for record in records])


def to_line(record: Any) -> bytes:
    """One record as a JSON line. Numbers keep every digit; fields at their defaults are left out."""
    fields = {field.name: field for field in dataclasses.fields(record)}
    is_judgment = isinstance(record, JudgmentRecord)
    plain = {}
    for name in JUDGMENT_FIELDS if is_judgment else fields:
        value, field = getattr(record, name), fields[name]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if is_judgment and name == "trials" and len(value) < 2:
            continue  # the only trial is the record itself
        if value != default:
            plain["tokens" if is_judgment and name == "prompt_tokens" else name] = _plain(value)
    return compact_line(plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Trial):
        return {name: getattr(value, name) for name in TRIAL_FIELDS}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def parts_of(path: Path) -> list[Path]:
    """The parts of a log, of processes that are running or were killed."""
    return sorted(path.parent.glob(f"{path.stem}{PART}*{path.suffix}"))


def read_all(path: Path, record_type: type[LoggedRecord]) -> Iterator[LoggedRecord]:
    """The records of a log and of its parts."""
    for part in (path, *parts_of(path)):
        yield from Log(part, record_type)


def gold_record(comparison: Comparison, answers: Sequence[str] = ()) -> GoldRecord:
    """The line of `gold.jsonl` for a comparison, with its gold answers if a judge's own answer is checked by them."""
    criteria = [(one.text, one.weight) for one in comparison.rubrics]
    return GoldRecord(
        comparison.id,
        comparison.ranks,
        text_digest(comparison.prompt, comparison.responses, comparison.tools),
        _digest(criteria) if criteria else "",
        _digest(answers) if answers else "",
    )


def text_digest(prompt: Sequence[Message], responses: Sequence[Response], tools: Sequence[Tool]) -> str:
    """A short hash of a prompt, its tools if any, and its responses in the comparison's own order."""
    return _digest([prompt, responses, *([tools] if tools else [])])


def _digest(parts: Sequence[object]) -> str:
    texts = json.dumps(parts, sort_keys=True, default=dict)
    return hashlib.sha256(texts.encode()).hexdigest()[:16]
