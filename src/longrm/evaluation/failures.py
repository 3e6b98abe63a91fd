"""The failure patterns of judges that write (LongRM, section 3), counted."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from longrm.evaluation.metrics import ratio
from longrm.evaluation.table import codes_of
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome

_WITH_TEXT = (Outcome.ANSWERED, Outcome.UNPARSED, Outcome.TRUNCATED)


def failures(records: Sequence[JudgmentRecord], *, seed: int, resamples: int) -> dict[str, Any]:
    """How often the format was missed, the context ignored, and the verdict contradicted.

    Returns:
        `format_missed`: of the askings that ended in a text, those cut short included, the share whose text
        held no verdict; None where the model writes nothing. `context_ignored`: of the comparisons
        asked again without their context and answered, the share whose verdict stayed; None where none was.
        `contradicted`: of the askings whose explanation can be told, the share that argues for another
        verdict; None where none can.
    """
    group = codes_of(record.group for record in records)
    askings = [record.askings() for record in records]

    def metric(counts: Sequence[tuple[int, int]]) -> dict[str, Any] | None:
        above, below = np.array(counts, np.float64).reshape(-1, 2).T
        found = ratio(above, below, group, seed=seed, resamples=resamples)
        return asdict(found) if found.n else None

    writes = any(trial.explanation for asked in askings for trial in asked)
    ended = [[t.outcome for t in asked if t.outcome in _WITH_TEXT and writes] for asked in askings]
    missed = metric([(len(found) - found.count(Outcome.ANSWERED), len(found)) for found in ended])
    checked = [(r.context_check == "same", r.context_check in ("same", "changed")) for r in records]
    told = [[t.contradicted for t in asked if t.contradicted is not None] for asked in askings]
    return {
        "format_missed": missed,
        "context_ignored": metric(checked),
        "contradicted": metric([(sum(found), len(found)) for found in told]),
    }
