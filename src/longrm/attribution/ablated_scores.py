"""Scores of one prompt without some of its sentences."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from math import log

import numpy as np
from numpy.typing import NDArray

from longrm.attribution.ablation import Ablation
from longrm.attribution.attribution_records import Target
from longrm.errors import DataError
from longrm.reward_models import RewardModel
from longrm.reward_models.trials import points
from longrm.types import Judgment, Outcome, Query, Scale, Trial

PRIOR = 0.5
"""Votes that each of two responses has before any is counted, so that log-odds of unanimous votes are finite."""


class AblatedScores:
    """Has a model score a prompt without some sentences; equal prompts are asked once.

    All responses of the target are scored over one ablated prompt. Prompts that leave out what comes late are asked
    first: they begin like the whole prompt, which a model that keeps prefixes need not read again.

    The value is the lead of the first response over the second, or its score alone. Of a judge whose scores are shares
    of votes the lead is the log-odds of its votes in all orders, to which each response gets `PRIOR`.

    Args:
        model: What is asked.
        query: The whole prompt and its responses.
        target: Whose value is told.
        ablation: What leaves sentences out.
        votes: How often a judge is asked in each order.
        told: Is called with `prompts` whenever some were answered.

    Attributes:
        ablation: What leaves sentences out.
        scale: What a difference of two values means.
        prompts: How many prompts were asked.
    """

    def __init__(
        self,
        model: RewardModel,
        query: Query,
        target: Target,
        ablation: Ablation,
        votes: int = 1,
        told: Callable[[int], None] = lambda prompts: None,
    ) -> None:
        self.ablation, self._votes, self._told = ablation, votes, told
        self._counts_votes = model.scale == "verdict" and target.against is not None
        self.scale: Scale = "logit" if self._counts_votes else model.scale
        self._cast = votes * (2 if model.sees_order else 1)
        self.prompts = 0
        self._asked = _Counted(model)
        self._query = query
        self._responses = tuple(query.responses[number] for number in target.responses())
        self._known: dict[frozenset[int], float] = {}

    def of(self, left_out: Iterable[Iterable[int]]) -> NDArray[np.float64]:
        """The target's value for the prompt without each of these sets of sentences.

        Raises:
            DataError: A prompt got no score; the message says why.
        """
        sets = [frozenset(one) for one in left_out]
        missing = sorted({*sets} - self._known.keys(), key=lambda one: (-min(one, default=-1), sorted(one)))
        if frozenset() in missing:  # all others begin like the whole prompt
            self._ask([frozenset()])
            missing.remove(frozenset())
        self._ask(missing)
        return np.array([self._known[one] for one in sets])

    @property
    def tokens(self) -> int:
        """Tokens of prompts that were read so far, without those that were kept."""
        return self._asked.tokens

    def asked(self, left_out: Collection[int]) -> bool:
        """Whether the value without these sentences is known."""
        return frozenset(left_out) in self._known

    def _ask(self, sets: Sequence[frozenset[int]]) -> None:
        queries = [replace(self.ablation.without(one), responses=self._responses) for one in sets]
        self.prompts += len(sets)
        trials = self._asked.judge_in_all_orders(queries, self._votes)
        self._told(self.prompts)
        self._known |= {one: self._value(trial) for one, trial in zip(sets, trials, strict=True)}

    def _value(self, trial: Trial) -> float:
        if trial.outcome is not Outcome.ANSWERED:
            raise DataError(f"{trial.outcome}: {trial.detail}")
        first, *others = (value + 0.0 for value in points(trial))  # of -0.0 it makes 0.0
        if not others:
            return first
        lead = first - others[0]
        if not self._counts_votes:
            return lead
        won = self._cast * (1 + lead) / 2
        return log((won + PRIOR) / (self._cast - won + PRIOR))


class _Counted(RewardModel):
    """Counts the tokens of the prompts that another model reads."""

    def __init__(self, inner: RewardModel) -> None:
        self.name, self.sees_order = inner.name, inner.sees_order
        self.tokens = 0
        self._inner = inner

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        judged = self._inner.judge(queries)
        self.tokens += sum((one.prompt_tokens or 0) - one.cached_tokens for one in judged)
        return judged
