"""Recorded judgments: run logs of our own, JudgeBench's files, results of the LongRM release."""

import json
import random
from pathlib import Path
from typing import Any

from longrm.runs.logs import to_line
from longrm.runs.records import GoldRecord, JudgmentRecord, Trial
from longrm.types import Outcome

from . import hostile, seeds

_TRIALS = (
    Trial((1, 0), Outcome.ANSWERED, scores=(0.2, 0.9), explanation="so"),
    Trial((0, 1), Outcome.TRUNCATED, detail="too long an answer"),
)
_OURS = (
    JudgmentRecord("t0", "g", Outcome.ANSWERED, order=(1, 0), scores=(0.5, 1.0), length=64, tokens=60),
    JudgmentRecord("t1", "g", Outcome.TRUNCATED, order=(1, 0), trials=_TRIALS),
    JudgmentRecord("t2", "h", Outcome.ANSWERED, order=(0, 1), ranking=(1, 0)),
)


def _wrote(text: str) -> dict[str, Any]:
    return {"judgment": {"judge_model": "j", "prompt": "", "response": text}, "decision": "A>B"}


def _scored(*scores: float) -> dict[str, Any]:
    return {
        "judgment": {"judge_model": "j", "prompt": "", "response": "", "scores": list(scores)},
        "decision": "A>B",
    }


_JUDGEBENCH = [
    {"pair_id": "t0", "judgments": [_wrote("[[A>B]]"), _wrote("[[B>A]]")]},
    {"pair_id": "t1", "judgments": [_scored(1, 2.5), None]},
    {"pair_id": "t2", "judgments": [_scored(3, 2)]},
]
_RELEASE = [
    {"output": "[[A]]", "shuffled_order": [1, 0], "subset": "file", "tasktype": "PairWise", "index": 0},
    {"output": [0.5, -1.0], "shuffled_order": [0, 1], "subset": "file", "tasktype": "PairWise"},
    {"output": "[[B>A]]", "shuffled_order": [0, 1], "subset": "file", "tasktype": "BestOfN", "index": 2},
]


def make(rng: random.Random, folder: Path) -> list[str]:
    """A record in which something is wrong, and a benchmark that it may have judged."""
    ours = [json.loads(to_line(record)) for record in _OURS]
    kind = rng.choice([ours, ours, _JUDGEBENCH, _RELEASE])
    rows = list(kind)
    at = rng.randrange(len(rows))
    match rng.randrange(6):
        case 0:
            rows.insert(at, rng.choice(rng.choice([ours, _JUDGEBENCH, _RELEASE])))
        case 1:
            rows = [hostile.changed(rng, row) for row in rows]
        case _:
            rows[at] = hostile.changed(rng, rows[at])
    lines = [hostile.written(rng, row) if rng.random() < 0.3 else json.dumps(row) for row in rows]
    content = "\n".join(lines).encode(errors="surrogatepass") + rng.choice([b"\n", b"\n", b""])
    if rng.random() < 0.15:
        content = hostile.damaged(rng, content)
    record: Path = folder / "record"
    if rng.random() < 0.5:
        record.mkdir()
        _beside(rng, record)
        hostile.put(rng, record / rng.choice(["judgments.jsonl", "judgments.jsonl", "a.jsonl"]), content)
    else:
        record = hostile.put(rng, folder / rng.choice(["judgments.jsonl", "record.jsonl"]), content)
        _beside(rng, folder)
    names = ["file/1", "file/2", "file/3"] if kind is _RELEASE else ["t0", "t1", "t2"]
    bench = folder / "bench.jsonl"
    bench.write_text("".join(json.dumps({**seeds.TRL, "id": name}) + "\n" for name in names))
    return ["evaluate", "--recorded", str(record), "--bench", f"file:{bench}", "--out", str(folder / "out"),
            "--set", "judging.resamples=100"]  # fmt: skip


def _beside(rng: random.Random, folder: Path) -> None:
    """The other files of a run folder."""
    if rng.random() < 0.4:
        summary = (
            hostile.changed(rng, {"schema_version": 1, "scale": "points"})
            if rng.random() < 0.7
            else {"scale": "points"}
        )
        hostile.put(
            rng, folder / "summary.json", hostile.written(rng, summary).encode(errors="surrogatepass")
        )
    if rng.random() < 0.4:
        gold = [json.loads(to_line(GoldRecord(f"t{number}", (1, 2)))) for number in range(3)]
        gold[1] = hostile.changed(rng, gold[1])
        content = "\n".join(hostile.written(rng, row) for row in gold).encode(errors="surrogatepass") + b"\n"
        hostile.put(rng, folder / "gold.jsonl", content)
