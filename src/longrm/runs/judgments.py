"""The judgments of an evaluation's run folder, and the gold that lies apart from them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from longrm.runs.logs import Log
from longrm.runs.records import GoldRecord, JudgmentRecord
from longrm.types import Message, Response

JUDGMENTS, GOLD, EXAMPLES = "judgments.jsonl", "gold.jsonl", "examples.jsonl"


def read_judgments(folder: Path) -> list[JudgmentRecord]:
    """The last judgment of every comparison, with its gold ranks, in the order in which they were first judged.

    Raises:
        RunError: A line of a log is damaged.
    """
    ranks = {gold.id: gold.ranks for gold in Log(folder / GOLD, GoldRecord)}
    # A comparison that was judged again, after an error, has its last record.
    records = {record.id: record for record in Log(folder / JUDGMENTS, JudgmentRecord)}
    return [replace(record, ranks=ranks.get(name)) for name, record in records.items()]


def text_digest(prompt: Sequence[Message], responses: Sequence[Response]) -> str:
    """A short hash of a prompt and its responses in the comparison's own order."""
    texts = json.dumps([prompt, responses], sort_keys=True, default=dict)
    return hashlib.sha256(texts.encode()).hexdigest()[:16]
