"""One prompt at a target length, around the evidence of the short context."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from longrm.data.tokenizing import Tokenizer
from longrm.rng import Draws
from longrm.synthesis.chunks import Answering, Chunk
from longrm.synthesis.domains import Domain
from longrm.synthesis.padding import BETWEEN, Laid, Piece, Pool, fill, lay, piece_of, supply
from longrm.synthesis.tags import wrapped
from longrm.types import Message

Unfit = Literal["too_long", "padding_ran_out"]
"""The evidence alone is longer than the target; the chunks there are do not fill it up."""

_TRIES = 6  # token counts of parts do not quite add up: whole prompts are counted until one fits


@dataclass(frozen=True, slots=True)
class Evidence:
    """What of a document goes into its prompts.

    Attributes:
        document: The document's id.
        group: Of its text.
        question: What is asked.
        critical: The critical chunks in reading order, those that follow each other as one.
        discarded: The others.
        answering: What tells chunks that may answer the question; None where the padding is not checked.
        foreign_answering: Which of the pool's pieces do.
    """

    document: str
    group: str
    question: str
    critical: tuple[Chunk, ...]
    discarded: tuple[Chunk, ...]
    answering: Answering | None
    foreign_answering: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Long:
    """A prompt of the target length.

    Attributes:
        messages: The prompt.
        tokens: How long it is, its chat template included.
        start: Where its context begins, in characters of the last message.
        evidence: Where the critical chunks stand, as (start, end) characters of the last message.
        laid: Its context.
        padding: The chunks around the evidence, the document's own first.
        own: How many of these are the document's own.
        refused: Own chunks that may answer the question and were therefore left out.
    """

    messages: tuple[Message, ...]
    tokens: int
    start: int
    evidence: tuple[tuple[int, int], ...]
    laid: Laid
    padding: tuple[Piece, ...]
    own: int
    refused: int

    @classmethod
    def short(cls, messages: tuple[Message, ...], tokens: int) -> Self:
        """A prompt without a context, which nothing pads."""
        return cls(messages, tokens, 0, (), Laid("", (), ()), (), 0, 0)

    @property
    def context(self) -> tuple[int, int] | None:
        """Where its context stands, as characters of the last message; None where there is none."""
        return (self.start, self.start + len(self.laid.text)) if self.laid.text else None


class Lengthener:
    """Makes long prompts.

    Args:
        domain: Lays the context out.
        tokenizer: The target tokenizer.
        pool: Chunks of other documents.
        own_share: The share of the padding that discarded chunks of the document itself may be.
        tolerance: Tokens that a prompt may be shorter than its target length; it is never longer.
    """

    def __init__(
        self,
        domain: Domain,
        tokenizer: Tokenizer,
        pool: Pool,
        *,
        own_share: float,
        tolerance: int,
    ) -> None:
        self._domain, self._tokenizer, self._pool = domain, tokenizer, pool
        self._own_share, self._tolerance = own_share, tolerance

    def short_context(self, evidence: Evidence, tag: str) -> str:
        """The critical chunks alone, as the labelling judge reads them."""
        return wrapped(tag, BETWEEN.join(chunk.text for chunk in evidence.critical))

    def lengthen(
        self,
        evidence: Evidence,
        render: Callable[[str], tuple[Message, ...]],
        tag: str,
        length: int,
        key: tuple[object, ...],
        banned: Sequence[str] = (),
    ) -> Long | Unfit:
        """Pads the prompt to `length` tokens, or tells why whole chunks cannot come within the tolerance.

        Args:
            evidence: What of the document goes in.
            render: The prompt over a context that is laid out.
            tag: The tag pair; empty for none.
            length: Tokens of the whole prompt, the chat template included.
            key: Of all draws.
            banned: Texts of chunks that a judge found to answer the question.
        """
        base = self.tokens(render(self.short_context(evidence, tag)))
        room = length - base
        if room < 0:
            return "too_long"
        source = _Padding(self, evidence, banned, key)
        for _ in range(_TRIES):
            own, foreign = source.choose(room)
            laid = lay(
                self._domain.layout,
                [chunk.text for chunk in evidence.critical],
                own,
                foreign,
                tag,
                Draws(*key, "place"),
            )
            messages = render(laid.text)
            total = self.tokens(messages)
            if length - self._tolerance <= total <= length:
                shift = str(messages[-1]["content"]).index(laid.text)
                spans = tuple((start + shift, end + shift) for start, end in laid.evidence)
                padding = (*own, *foreign)
                return Long(messages, total, shift, spans, laid, padding, len(own), source.refused)
            expected = base + sum(piece.tokens for piece in (*own, *foreign))
            room = max(0, length - base - (total - expected))
        return "padding_ran_out"

    def tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of a prompt as the model in training reads it."""
        return len(self._tokenizer.prompt_ids(messages))

    def own_pieces(
        self, evidence: Evidence, banned: Sequence[str], key: tuple[object, ...], room: int
    ) -> tuple[list[Piece], int]:
        """Discarded chunks in a drawn order, to about `room` tokens, and how many were left out as answering."""
        found: list[Piece] = []
        refused, held = 0, 0
        for chunk in Draws(*key, "own").order(evidence.discarded):
            if held > room:
                break
            if chunk.text in banned or (evidence.answering and evidence.answering.found_in(chunk.text)):
                refused += 1
                continue
            piece = piece_of(evidence.group, evidence.document, chunk.text, chunk.start, self._tokenizer)
            held += piece.tokens
            found.append(piece)
        return found, refused

    @property
    def own_share(self) -> float:
        """The share of the padding that a document's own chunks may be."""
        return self._own_share

    @property
    def pool(self) -> Pool:
        """Chunks of other documents."""
        return self._pool


@dataclass
class _Padding:
    """The padding of one prompt: the same draws for every room, so only its end changes with the room."""

    maker: Lengthener
    evidence: Evidence
    banned: Sequence[str]
    key: tuple[object, ...]
    refused: int = 0
    _own: list[Piece] | None = field(default=None)

    def choose(self, room: int) -> tuple[list[Piece], list[Piece]]:
        """Own and foreign pieces that fill so many tokens."""
        share = int(room * self.maker.own_share)
        if self._own is None:
            self._own, self.refused = self.maker.own_pieces(self.evidence, self.banned, self.key, share)
        own = fill(share, iter(self._own), ())
        order, spares = supply(
            self.maker.pool,
            self.evidence.group,
            self.evidence.foreign_answering,
            self.banned,
            Draws(*self.key, "foreign"),
        )
        return own, fill(room - sum(piece.tokens for piece in own), order, spares)
