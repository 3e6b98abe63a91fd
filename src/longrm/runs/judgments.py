"""The judgments of an evaluation's run folder, and the gold, which is kept apart from them."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from longrm.errors import RunError
from longrm.reading import reading
from longrm.runs.logs import Log, LoggedRecord, parts_of
from longrm.runs.records import GoldRecord, JudgmentRecord
from longrm.types import Comparison, Message, Response, Tool

JUDGMENTS, GOLD, EXAMPLES = "judgments.jsonl", "gold.jsonl", "examples.jsonl"


def read_judgments(folder: Path) -> list[JudgmentRecord]:
    """The last judgment of every comparison, with its gold ranks, in the order in which they were first judged.

    Raises:
        RunError: A line of a log is damaged, or a judgment is not of as many responses as its gold.
    """
    ranks = {gold.id: gold.ranks for gold in read_gold(folder)}
    # A comparison that was judged again, after an error, has its last record.
    records = {record.id: record for record in _all(folder / JUDGMENTS, JudgmentRecord)}
    for name, record in records.items():
        with reading(folder / JUDGMENTS, RunError):
            records[name] = replace(record, ranks=ranks.get(name))
    return list(records.values())


def read_gold(folder: Path) -> Iterator[GoldRecord]:
    """The gold of every comparison, in the order of the log.

    Raises:
        RunError: A line of the log is damaged.
    """
    return _all(folder / GOLD, GoldRecord)


def _all(path: Path, record_type: type[LoggedRecord]) -> Iterator[LoggedRecord]:
    """The records of a log, and of the parts that processes at work, or killed, have beside it."""
    for part in (path, *parts_of(path)):
        yield from Log(part, record_type)


def text_digest(prompt: Sequence[Message], responses: Sequence[Response], tools: Sequence[Tool]) -> str:
    """A short hash of a prompt, its tools if any, and its responses in the comparison's own order."""
    return _digest([prompt, responses, *([tools] if tools else [])])


def gold_record(comparison: Comparison) -> GoldRecord:
    """The line of `gold.jsonl` of a comparison."""
    criteria = [(one.text, one.weight) for one in comparison.rubrics]
    return GoldRecord(
        comparison.id,
        comparison.ranks,
        text_digest(comparison.prompt, comparison.responses, comparison.tools),
        _digest(criteria) if criteria else "",
    )


def _digest(parts: Sequence[object]) -> str:
    texts = json.dumps(parts, sort_keys=True, default=dict)
    return hashlib.sha256(texts.encode()).hexdigest()[:16]
