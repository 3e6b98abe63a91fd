"""What became of the comparisons: outcomes, accuracy under three readings of a missing answer, failure patterns."""

from collections.abc import Sequence
from typing import Unpack

import numpy as np

from longrm.evaluation.estimates import ratio
from longrm.evaluation.metrics import TOP1
from longrm.evaluation.samples import Bootstrap
from longrm.evaluation.summaries import AccuracyReadings, FailureRates
from longrm.evaluation.table import ScoreTable, codes_of
from longrm.reward_models.trials import best
from longrm.runs.records import UNDEFINED, Estimate, JudgmentRecord
from longrm.types import Outcome

_WITH_TEXT = (Outcome.ANSWERED, Outcome.UNPARSED, Outcome.TRUNCATED)


def accuracy(
    scored: Sequence[JudgmentRecord], table: ScoreTable, **drawn: Unpack[Bootstrap]
) -> AccuracyReadings:
    """Accuracy of a table, made of these records, with what is not answered counted wrong, by chance, or left out.

    All are undefined where nothing was answered.
    """
    answered = np.array([record.outcome is Outcome.ANSWERED for record in scored], np.float64)
    if not answered.any():
        return AccuracyReadings(strict=UNDEFINED, chance_credit=UNDEFINED, answered=UNDEFINED)
    right, every = TOP1.earned(table), np.ones_like(answered)
    lucky = right + (1 - answered) * TOP1.earned(table, by_chance=True)
    return AccuracyReadings(
        strict=ratio(right, every, table.group, **drawn),
        chance_credit=ratio(lucky, every, table.group, **drawn),
        answered=ratio(right, answered, table.group, **drawn),
    )


def outcome_rates(records: Sequence[JudgmentRecord], **drawn: Unpack[Bootstrap]) -> dict[Outcome, Estimate]:
    """The share of all comparisons with each outcome."""
    group, every = codes_of(record.group for record in records), np.ones(len(records))
    occurred = {o: np.array([record.outcome is o for record in records], np.float64) for o in Outcome}
    return {outcome: ratio(total, every, group, **drawn) for outcome, total in occurred.items()}


def failures(records: Sequence[JudgmentRecord], **drawn: Unpack[Bootstrap]) -> FailureRates:
    """How often the format was missed, the context ignored, and the verdict contradicted (LongRM, section 3)."""
    group = codes_of(record.group for record in records)
    trials = [record.trials for record in records]

    def rate(counts: Sequence[tuple[int, int]]) -> Estimate | None:
        above, below = np.array(counts, np.float64).reshape(-1, 2).T
        estimate = ratio(above, below, group, **drawn)
        return estimate if estimate.n else None

    writes = any(trial.explanation for of_record in trials for trial in of_record)
    ended = [[t.outcome for t in of_record if t.outcome in _WITH_TEXT and writes] for of_record in trials]
    checked = [(r.context_check == "same", r.context_check in ("same", "changed")) for r in records]
    criteria = [_against(record) for record in records]
    compared = [[t.contradicted for t in of_record if t.contradicted is not None] for of_record in trials]
    return FailureRates(
        format_missed=rate([(len(found) - found.count(Outcome.ANSWERED), len(found)) for found in ended]),
        context_ignored=rate(checked),
        contradicted=rate([(sum(found), len(found)) for found in compared]),
        criteria_against=rate([(sum(found), len(found)) for found in criteria]),
    )


def _against(record: JudgmentRecord) -> list[bool]:
    """Of each criterion that tells the responses apart, whether none of those judged best is a best one by it."""
    told = [row for row in record.criteria if max(row) > min(row)]
    judged = best(record)
    return [all(row[index] < max(row) for index in judged) for row in told]
