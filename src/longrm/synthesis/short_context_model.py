"""A reward model that reads a short part of every prompt: the baseline that a long-context one must beat."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from longrm.data.tokenizing import Tokenizer
from longrm.judging import fit
from longrm.reward_models.protocol import RewardModel
from longrm.types import Judgment, Outcome, Query, Span, message_text, text_of

KeptPart = Literal["first", "last", "ends"]
_CUTS: dict[KeptPart, Literal["right", "left", "middle"]] = {
    "first": "right",
    "last": "left",
    "ends": "middle",
}


class ShortContextModel(RewardModel):
    """Asks another reward model about a prompt of which it reads so many tokens only: the short-context baseline.

    The question and the responses stay whole. Where the context is not known, all of the prompt but the question
    counts as context. What was cut stands in the judgment; what cannot be cut so short is `TOO_LONG`.

    Args:
        inner: What judges.
        tokenizer: Counts the prompt's tokens.
        tokens: How many tokens of the prompt are read, the question included.
        part: The "first" ones, the "last" ones, or those at both "ends".
    """

    def __init__(
        self, inner: RewardModel, tokenizer: Tokenizer, tokens: int, part: KeptPart = "last"
    ) -> None:
        assert tokens >= 1, "a model that reads nothing judges nothing"
        self.name = f"{part}-{tokens}:{inner.name}"
        self.sees_order, self.samples, self.scale = inner.sees_order, inner.samples, inner.scale
        self._inner, self._tokenizer, self._tokens, self._part = inner, tokenizer, tokens, part

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Cuts every query and passes on what the other model judges."""
        short = [self._short(query) for query in queries]
        judged = iter(self._inner.judge([found[0] for found in short if found is not None]))
        return [
            Judgment(Outcome.TOO_LONG, detail=f"what must stay is longer than {self._tokens} tokens")
            if found is None
            else replace(judgment := next(judged), cut=found[1] or judgment.cut)
            for found in short
        ]

    def orders(self, comparison: str) -> tuple[tuple[int, ...], ...]:
        """The presented orders that the other model must be asked in."""
        return self._inner.orders(comparison)

    def _short(self, query: Query) -> Any:
        whole = tuple(
            Span(number, 0, len(text)) for number, text in enumerate(map(message_text, query.prompt)) if text
        )
        known = query if query.context else replace(query, context=whole)
        return fit(known, self._size, self._tokens, self._tokenizer, _CUTS[self._part])

    def _size(self, query: Query) -> int:
        return self._tokenizer.count(text_of(query.prompt))
