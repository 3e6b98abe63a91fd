"""Judgments made for tests, as functions behind fixtures."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from longrm.reward_models.trials import aggregate_trials
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome, Trial


def _judgment(
    name: str = "a",
    group: str | None = None,
    *,
    ranks: Sequence[int] | None = (1, 2),
    scores: Sequence[float] = (),
    ranking: Sequence[int] = (),
    outcome: Outcome = Outcome.ANSWERED,
    length: int | None = None,
    depth: float | None = None,
    **fields: Any,
) -> JudgmentRecord:
    n = len(ranks) if ranks else 2
    return JudgmentRecord(
        id=name,
        group=name if group is None else group,
        outcome=outcome,
        ranks=None if ranks is None else tuple(ranks),
        order=tuple(range(n)),
        scores=tuple(scores),
        ranking=tuple(ranking),
        length=length,
        depth=depth,
        **fields,
    )


def _asked(name: str, *answers: tuple[Sequence[int], Sequence[float]], **fields: Any) -> JudgmentRecord:
    """A comparison with several trials, each (order, scores in the comparison's own order); no scores: no verdict."""
    trials = tuple(
        Trial(
            order=tuple(order), outcome=Outcome.ANSWERED if scores else Outcome.UNPARSED, scores=tuple(scores)
        )
        for order, scores in answers
    )
    whole = aggregate_trials(trials)
    return _judgment(name, outcome=whole.outcome, scores=whole.scores, trials=trials, **fields)


def _clustered(
    rng: np.random.Generator,
    groups: int,
    per_group: int,
    accuracy: float,
    dependence: float,
    length: int | None = None,
) -> list[JudgmentRecord]:
    """Pairs whose probability of being right is drawn per group: Beta with that intra-group correlation."""
    scale = (1 - dependence) / dependence
    shares = rng.beta(accuracy * scale, (1 - accuracy) * scale, size=groups)
    right = rng.random((groups, per_group)) < shares[:, None]
    return [
        _judgment(
            f"{length}-{g}-{k}",
            f"{length}-{g}",
            scores=(1.0, 0.0) if right[g, k] else (0.0, 1.0),
            length=length,
        )
        for g in range(groups)
        for k in range(per_group)
    ]


def _decaying(
    rng: np.random.Generator,
    lengths: Sequence[int],
    midpoint: float,
    slope: float,
    groups: int,
    per_group: int = 2,
) -> list[JudgmentRecord]:
    """Pairs whose accuracy is 0.5 + 0.5 / (1 + (length / midpoint)^slope): 0.75 at the midpoint."""
    return [
        record
        for length in lengths
        for record in _clustered(
            rng, groups, per_group, 0.5 + 0.5 / (1 + (length / midpoint) ** slope), 0.05, length
        )
    ]


@pytest.fixture
def judgment() -> Callable[..., JudgmentRecord]:
    return _judgment


@pytest.fixture
def asked() -> Callable[..., JudgmentRecord]:
    return _asked


@pytest.fixture
def clustered() -> Callable[..., list[JudgmentRecord]]:
    return _clustered


@pytest.fixture
def decaying() -> Callable[..., list[JudgmentRecord]]:
    return _decaying
