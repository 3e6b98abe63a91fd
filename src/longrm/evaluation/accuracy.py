"""Accuracy under three readings of a missing answer, and how often each outcome occurred."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from longrm.evaluation.metrics import ratio
from longrm.evaluation.table import ScoreTable, codes_of
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome


def accuracy(
    scored: Sequence[JudgmentRecord], table: ScoreTable, *, seed: int, resamples: int
) -> dict[str, Any]:
    """Accuracy with what is not answered counted wrong, credited with chance, or left out.

    Args:
        scored: The records of the table's rows.
        table: Their scores.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
    """
    answered = np.array([record.outcome is Outcome.ANSWERED for record in scored], np.float64)
    right, every = table.order["top1"], np.ones_like(answered)
    readings = {
        "strict": (right, every),
        "chance_credit": (right + (1 - answered) * table.chance["top1"], every),
        "answered": (right, answered),
    }
    return {
        name: asdict(ratio(total, weight, table.group, seed=seed, resamples=resamples))
        for name, (total, weight) in readings.items()
    }


def outcome_rates(records: Sequence[JudgmentRecord], *, seed: int, resamples: int) -> dict[str, Any]:
    """The share of all comparisons with each outcome."""
    group, every = codes_of(record.group for record in records), np.ones(len(records))
    return {
        outcome.value: asdict(
            ratio(
                np.array([record.outcome is outcome for record in records], np.float64),
                every,
                group,
                seed=seed,
                resamples=resamples,
            )
        )
        for outcome in Outcome
    }
