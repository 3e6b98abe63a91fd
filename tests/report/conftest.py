"""Synthetic run folders, written through the real classes: four stages, six lengths, plausible curves."""

import random
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from longrm.config import Config
from longrm.evaluation.metrics import paired_difference
from longrm.evaluation.summary import summarize
from longrm.runs.folder import RunFolder
from longrm.runs.logs import Log
from longrm.runs.records import ExampleRecord, JudgmentRecord, StepRecord, TimingRecord
from longrm.types import Outcome, Span

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
CURVES = {
    "untrained": (0.50, 0.51, 0.49, 0.50, 0.50, 0.50),
    "short": (0.99, 0.86, 0.66, 0.57, 0.53, 0.50),
    "control_short": (0.995, 0.95, 0.80, 0.66, 0.56, 0.52),
    "long": (0.995, 0.995, 0.99, 0.99, 0.98, 0.96),
}
PEOPLE = ("Marlow", "Ibsen", "Quill", "Tamsin", "Okoro", "Fenwick", "Ludo", "Anselm")
HOSTILE = "</script><script>alert(1)</script><img src=https://evil.example/x onerror=alert(2)>\u2028'\"&"


class Settings(Config):
    """Stands for the settings of any run."""

    seed: int = 0
    model: str = "tiny"


def example(name: str, length: int, responses: int, rng: random.Random) -> ExampleRecord:
    """A comparison of about `length` words whose evidence stands somewhere in the middle."""
    lines = [
        f"In the old ledger {rng.choice(PEOPLE)} holds item {rng.randrange(64)}." for _ in range(length // 8)
    ]
    fact = "The access code of Edmund is granite."
    place = rng.randrange(len(lines))
    before, after = " ".join(lines[:place]), " ".join(lines[place:])
    question = "Question: What is the access code of Edmund?"
    text = f"{before} {fact} {after}\n\n{question}"
    start = len(before) + 1
    return ExampleRecord(
        id=name,
        prompt=({"role": "user", "content": text},),
        responses=tuple(
            ({"role": "assistant", "content": f"The access code of Edmund is {word}."},)
            for word in ("granite", "lantern", "velvet", "copper")[:responses]
        ),
        context=(Span(0, 0, len(text) - len(question) - 2),),
        question=Span(0, len(text) - len(question), len(text)),
        evidence=(Span(0, start, start + len(fact)),),
    )


def judgments(
    accuracies: tuple[float, ...], seed: int, *, responses: int = 2, groups: int = 40
) -> list[JudgmentRecord]:
    """Scores of a model that tells the best response from the others at the given rates."""
    rng = random.Random(seed)
    records = []
    for length, accuracy in zip(LENGTHS, accuracies, strict=True):
        for number in range(groups * 2):
            knows = rng.random() < 2 * accuracy - 1 if accuracy > 0.5 else False
            scores = [rng.gauss(0, 1) for _ in range(responses)]
            if knows:
                scores = [score - 4 * index for index, score in enumerate(sorted(scores, reverse=True))]
            records.append(
                JudgmentRecord(
                    id=f"records-{length}-{responses}-{number:04}",
                    group=f"{length}-{number // 2}",
                    outcome=Outcome.ANSWERED,
                    ranks=tuple(range(1, responses + 1)),
                    order=tuple(rng.sample(range(responses), responses)),
                    scores=tuple(scores),
                    length=length,
                    depth=(number % 10) / 9,
                    task="records",
                )
            )
    return records


def write_evaluation(
    folder: Path, records: list[JudgmentRecord], *, model: str = "tiny", finished: bool = True, kept: int = 3
) -> dict[str, Any]:
    """An evaluation's run folder; its examples are the same whatever the judgments."""
    rng = random.Random(7)
    with RunFolder(folder, "evaluation", Settings(model=model)) as run:
        with Log(folder / "judgments.jsonl", JudgmentRecord) as log:
            log.append(*records)
        with Log(folder / "examples.jsonl", ExampleRecord) as log:
            for record in records:
                if kept and record.length and int(record.id[-4:]) < kept:
                    log.append(example(record.id, record.length, len(record.order), rng))
        summary = summarize(records, model=model, bench="probe", resamples=200)
        if finished:
            run.write_summary(summary)
    return summary


def write_training(
    folder: Path, *, steps: int = 200, start: int = 24, end: int = 128, timed: bool = True
) -> None:
    """A training run whose loss falls while its contexts grow."""
    rng = random.Random(3)
    with RunFolder(folder, "training", Settings()) as run:
        with Log(folder / "steps.jsonl", StepRecord) as log:
            for step in range(1, steps + 1):
                share = step / steps
                length = round(start * (end / start) ** share)
                loss = max(0.02, 0.693 * (1 - share) ** 2 + rng.gauss(0, 0.03))
                log.append(StepRecord(step, loss, 1 - loss / 1.386, 1.0, 3e-3, length, 16 * length))
        if timed:
            with Log(folder / "timing.jsonl", TimingRecord) as log:
                for step in range(1, steps + 1):
                    log.append(TimingRecord(step, 4000, 0.05 + 0.02 * rng.random()))
        run.write_summary({"schema_version": 1, "kind": "training", "steps": steps})


def write_demo(folder: Path, curves: dict[str, tuple[float, ...]] = CURVES) -> dict[str, Any]:
    """A demo with four stages, best of 4, three training runs, the contrast and the control."""
    with RunFolder(folder, "demo", Settings()) as run:
        summary = _demo_summary(folder, curves)
        run.write_summary(summary)
    return summary


def _demo_summary(folder: Path, curves: dict[str, tuple[float, ...]]) -> dict[str, Any]:
    stages, kept = {}, {}
    for number, (name, accuracies) in enumerate(curves.items()):
        kept[name] = judgments(accuracies, number)
        stages[name] = write_evaluation(folder / "stages" / name / "pairs", kept[name], model=name)
        listed = judgments(accuracies, 10 + number, responses=4, groups=20)
        stages[name]["best_of_4"] = write_evaluation(
            folder / "stages" / name / "best_of_4", listed, model=name, kept=1
        )
    for name, end in (("short", 128), ("control_short", 128), ("long", 4096)):
        write_training(folder / "training" / name, end=end)
    by_length = {
        str(length): asdict(
            paired_difference(
                *([r for r in kept[name] if r.length == length] for name in ("long", "control_short"))
            )
        )
        for length in LENGTHS
    }
    return {
        "schema_version": 1,
        "kind": "demo",
        "seed": 0,
        "complete": True,
        "stages": stages,
        "contrasts": {"long_vs_control_short": {"by_length": by_length}},
        "controls": {
            "unrelated_context": {"value": 0.506, "low": 0.471, "high": 0.54, "n": 1024, "groups": 128}
        },
        "notes": {"start": "The tiny model starts with attention heads that are set to look back."},
        "seconds": {"generate": 4.1, "train_short": 15.2, "train_long": 51.3, "total": 205.0},
    }


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo's folder; read only."""
    folder = tmp_path_factory.mktemp("runs") / "demo"
    write_demo(folder)
    return folder


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The functions above."""
    return sys.modules[__name__]
