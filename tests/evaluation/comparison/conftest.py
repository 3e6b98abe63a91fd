"""Run folders of finished evaluations, written through the real classes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longrm.evaluation.evaluate import Evaluation
from longrm.evaluation.summarize import summarize
from longrm.runs.folder import RunFolder
from longrm.runs.logs import Log
from longrm.runs.records import GoldRecord, JudgmentRecord
from longrm.types import Outcome


def judged(
    right: np.ndarray, *, lengths: Sequence[int] = (1024, 4096), per_group: int = 4, first: int = 0
) -> list[JudgmentRecord]:
    """Pairs, one for each entry: 1 is right, 0 wrong, 0.5 a tie. Groups lie at one length and stay together."""
    records = []
    for number, credit in enumerate(right.tolist(), first):
        group = number // per_group
        records.append(
            JudgmentRecord(
                id=f"item-{number:04}",
                group=f"group-{group}",
                outcome=Outcome.ANSWERED,
                ranks=(1, 2),
                order=(0, 1),
                scores=(credit, 1 - credit),
                length=lengths[group % len(lengths)],
                depth=(number % 10) / 10,
                task=("cite", "count")[number % 2],
            )
        )
    return records


def write_run(
    folder: Path,
    records: Sequence[JudgmentRecord],
    *,
    digests: Callable[[JudgmentRecord], str] = lambda record: f"text of {record.id}",
    finished: bool = True,
    bench: str = "probe",
    model: str = "tiny",
    **settings: Any,
) -> Path:
    """An evaluation's run folder."""
    resolved = Evaluation.resolve(None, {"model": model, "bench": bench} | settings)
    with RunFolder(folder, "evaluation", resolved) as run:
        with Log(folder / "judgments.jsonl", JudgmentRecord) as log:
            log.append(*(replace(record, ranks=None) for record in records))
        with Log(folder / "gold.jsonl", GoldRecord) as log:
            log.append(*(GoldRecord(record.id, record.ranks, digests(record)) for record in records))
        if finished:
            run.write_summary(summarize(records, model=model, bench=bench, resamples=100).to_dict())
    return folder


@pytest.fixture
def pairs() -> Callable[..., list[JudgmentRecord]]:
    return judged


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Writes a run of this name below the temporary folder."""
    return lambda name, records, **options: write_run(tmp_path / "runs" / name, records, **options)


@pytest.fixture
def two_runs(written: Callable[..., Path]) -> tuple[Path, Path]:
    """240 pairs in 60 groups at two lengths: the second judge gets half of the first one's errors right at 4,096."""
    rng = np.random.default_rng(5)
    first = (rng.random(240) < 0.7).astype(float)
    long = np.arange(240) // 4 % 2 == 1
    second = np.where(long & (first == 0) & (rng.random(240) < 0.6), 1.0, first)
    return written("base", judged(first)), written("trained", judged(second))
