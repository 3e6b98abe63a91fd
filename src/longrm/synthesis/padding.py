"""Padding a short context to a length: whole chunks, none of which answers the question, around the evidence."""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from longrm.data.tokenizing import Tokenizer
from longrm.rng import Draws
from longrm.synthesis.chunks import Answering, Sought, cut, searched
from longrm.synthesis.domains import Layout
from longrm.synthesis.tags import wrapped

BETWEEN = "\n\n"
"""Stands between chunks."""

# What a context is filled up with when chunks of full size no longer fit: about a sentence each.
_SMALL = 12
_SPARES = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk that may pad a context.

    Attributes:
        group: Of the document that it comes from.
        document: Id of that document, or of the first one with the same text.
        text: The chunk.
        tokens: Its tokens with `BETWEEN`, where it stands alone; in a text they may be a few more or less.
        place: Where it begins in its document, in characters.
    """

    group: str
    document: str
    text: str
    tokens: int
    place: int = 0


class Pool:
    """Chunks of other documents, held in bounded memory, and which words stand in them.

    Make one with `gather`. Large pieces come first, small ones (about a sentence) after them.

    Attributes:
        pieces: All of them.
        large: How many are of full size.
    """

    def __init__(self, large: Sequence[Piece], small: Sequence[Piece]) -> None:
        self.pieces = (*large, *small)
        self.large = len(large)
        self._texts: list[str] = []
        postings: dict[str, list[int]] = {}
        for number, piece in enumerate(self.pieces):
            found = searched(piece.text)
            self._texts.append(f" {' '.join(found)} ")
            for word in dict.fromkeys(found):
                postings.setdefault(word, []).append(number)
        self._postings = {word: np.array(found, np.int32) for word, found in postings.items()}

    @classmethod
    def gather(
        cls,
        documents: Iterable[tuple[str, str, str]],
        tokenizer: Tokenizer,
        *,
        chunk: int,
        most_documents: int,
        per_document: int,
        seed: int,
    ) -> "Pool":
        """Draws documents and chunks of them, whatever order they come in.

        Args:
            documents: Group, id and text of each; texts that come again count once.
            tokenizer: What counts tokens.
            chunk: Words and punctuation marks of a large piece at most.
            most_documents: How many documents are drawn.
            per_document: How many large pieces of each, and as many small ones.
            seed: Of the draws.
        """
        kept: dict[str, tuple[list[Piece], list[Piece]]] = {}
        drawn: list[tuple[float, str]] = []  # a heap whose first entry is the next to go
        for group, identity, text in documents:
            entry = (-Draws(seed, "pool", group).fraction(), group)
            if group in kept or (len(drawn) == most_documents and entry <= drawn[0]):
                continue
            if len(drawn) < most_documents:
                heapq.heappush(drawn, entry)
            else:
                del kept[heapq.heappushpop(drawn, entry)[1]]
            sizes = {"large": chunk, "small": _SMALL}
            large, small = (
                _drawn(group, identity, text, size, per_document, Draws(seed, name, group), tokenizer)
                for name, size in sizes.items()
            )
            kept[group] = large, small
        groups = [kept[group] for _, group in sorted(drawn, reverse=True)]
        return cls([p for large, _ in groups for p in large], [p for _, small in groups for p in small])

    def rarity(self, word: str) -> float:
        """How much a word tells: Lucene's inverse document frequency over the pieces; most where none has it."""
        count, holding = len(self.pieces), len(self._postings.get(word, ()))
        return float(np.log(1 + (count - holding + 0.5) / (holding + 0.5)))

    def answering(self, answering: Answering) -> NDArray[np.bool_]:
        """Which pieces may answer a question: what `answering.found_in` says of their texts."""
        gold = self.held(answering.gold) >= answering.enough
        if not np.isfinite(answering.limit):
            return gold
        return gold | (self.held(answering.asked) >= answering.limit)

    def held(self, sought: Sought) -> NDArray[np.float64]:
        """For every piece, the share of sought words that it holds: what `sought.held` says of its text."""
        total = np.zeros(len(self.pieces))
        for word in sorted(sought.weights):  # in the order in which `Sought.held` adds up
            total[self._postings.get(word, [])] += sought.weights[word]
        shares = total / sought.most
        if sought.phrase:
            for number in np.flatnonzero(shares):
                shares[number] = float(sought.phrase in self._texts[number])
        return shares


def closest(answering: Answering, texts: Sequence[str], most: int) -> list[int]:
    """Which texts come closest to answering a question: at most so many numbers, the closest first."""
    scores = [answering.gold.held(text) + answering.asked.held(text) for text in texts]
    return sorted(range(len(texts)), key=lambda at: -scores[at])[:most]


def fill(room: int, order: Iterator[Piece], spares: Sequence[Piece]) -> list[Piece]:
    """Takes whole pieces that come to at most `room` tokens, and as close to it as the spares allow.

    Args:
        room: Tokens.
        order: Pieces in the order in which they are taken, until one does not fit.
        spares: Fill up what is left, the largest that fits first.
    """
    taken = []
    for piece in order:
        if piece.tokens > room:
            break
        taken.append(piece)
        room -= piece.tokens
    by_size = sorted(spares, key=lambda piece: piece.tokens)
    sizes = [piece.tokens for piece in by_size]
    while at := bisect_right(sizes, room):
        sizes.pop(at - 1)
        piece = by_size.pop(at - 1)
        if any(piece.text in other.text for other in taken):
            continue  # a sentence of a chunk that stands there already
        taken.append(piece)
        room -= piece.tokens
    return taken


def supply(
    pool: Pool, group: str, answers: NDArray[np.bool_], banned: Iterable[str], draws: Draws
) -> tuple[Iterator[Piece], list[Piece]]:
    """Foreign pieces for one context: large ones in a drawn order, and some small ones.

    Args:
        pool: What there is.
        group: Of the document, whose own text is not foreign.
        answers: Which of the pool's pieces hold the answer.
        banned: Texts that a judge found to answer the question.
        draws: Of the order.
    """
    out = {*banned}

    def fit(number: int) -> bool:
        piece = pool.pieces[number]
        return not answers[number] and piece.group != group and piece.text not in out

    small = list(range(pool.large, len(pool.pieces)))
    spares = []
    for number in Draws(draws.fraction(), "small").order(small):
        if fit(number):
            spares.append(pool.pieces[number])
        if len(spares) == _SPARES:
            break
    large = Draws(draws.fraction(), "large").order(range(pool.large))
    return (pool.pieces[number] for number in large if fit(number)), spares


@dataclass(frozen=True, slots=True)
class Laid:
    """A context.

    Attributes:
        text: All of it.
        evidence: Where the critical chunks stand, as (start, end) characters.
        depths: Share of the padding's tokens before each of them.
        before: Chunks of the padding before the first of them.
    """

    text: str
    evidence: tuple[tuple[int, int], ...]
    depths: tuple[float, ...]
    before: int = 0


def lay(
    layout: Layout,
    critical: Sequence[str],
    own: Sequence[Piece],
    foreign: Sequence[Piece],
    tag: str,
    key: Draws,
) -> Laid:
    """Puts the critical chunks at drawn depths of the padding.

    Critical chunks keep the order that they have in their document; so do own chunks that stand in a tag pair with
    them, but the evidence stands among these where the depth asks for it.

    Args:
        layout: See `domains.Layout`.
        critical: In the order of the document.
        own: Discarded chunks of the document.
        foreign: Chunks of other documents.
        tag: Name of the tag pair; empty for none.
        key: Draws the depths and the order of the padding.
    """
    inner, around = list[Piece](), [*foreign, *own]
    match layout:
        case "scattered":
            key.shuffle(around)
            return _scattered(critical, around, sorted(key.fraction() for _ in critical))
        case "document":
            inner, around = sorted(own, key=lambda piece: piece.place), [*foreign]
        case "segment" | "short":
            pass
        case unknown:
            assert_never(unknown)
    key.shuffle(around)
    return _together(critical, inner, around, tag, key.fraction())


def _scattered(critical: Sequence[str], padding: Sequence[Piece], depths: Sequence[float]) -> Laid:
    before = [0, *accumulate(piece.tokens for piece in padding)]
    slots = [_nearest(before, depth * before[-1]) for depth in depths]
    parts: list[tuple[str, bool]] = []
    chunks = iter(zip(slots, critical, strict=True))
    slot, chunk = next(chunks, (-1, ""))
    for at in range(len(padding) + 1):
        while slot == at:
            parts.append((chunk, True))
            slot, chunk = next(chunks, (-1, ""))
        if at < len(padding):
            parts.append((padding[at].text, False))
    reached = tuple(_share(before[slot], before[-1]) for slot in slots)
    return _joined(parts, reached, slots[0] if slots else 0)


def _together(
    critical: Sequence[str], inner: Sequence[Piece], around: Sequence[Piece], tag: str, depth: float
) -> Laid:
    """The critical chunks as one run, with the inner pieces next to it and all of that in the tags."""
    whole = sum(piece.tokens for piece in (*inner, *around))
    wanted = depth * whole
    # The evidence stands as deep among the inner pieces as in the whole, so both sides are as long as they must be.
    sums = [0, *accumulate(piece.tokens for piece in inner)]
    inside = _nearest(sums, depth * sums[-1])
    outer = [0, *accumulate(piece.tokens for piece in around)]
    outside = _nearest(outer, wanted - sums[inside])
    head = [piece.text for piece in inner[:inside]]
    tail = [piece.text for piece in inner[inside:]]
    lead = BETWEEN.join(piece.text for piece in around[:outside])
    marked = [(head, False), (critical, True), (tail, False)]
    run = _joined([(text, evidence) for texts, evidence in marked for text in texts], ())
    parts = [lead, wrapped(tag, run.text), BETWEEN.join(piece.text for piece in around[outside:])]
    shift = (len(lead) + len(BETWEEN) if lead else 0) + (len(tag) + 3 if tag else 0)
    reached = _share(sums[inside] + outer[outside], whole)
    return Laid(
        BETWEEN.join(filter(None, parts)),
        tuple((start + shift, end + shift) for start, end in run.evidence),
        (reached,) * len(critical),
        inside + outside,
    )


def _joined(parts: Sequence[tuple[str, bool]], depths: tuple[float, ...], before: int = 0) -> Laid:
    evidence, at = [], 0
    for text, critical in parts:
        if critical:
            evidence.append((at, at + len(text)))
        at += len(text) + len(BETWEEN)
    return Laid(BETWEEN.join(text for text, _ in parts), tuple(evidence), depths, before)


def _nearest(sums: Sequence[int], wanted: float) -> int:
    """Which of the rising sums is nearest to a number."""
    return min(range(len(sums)), key=lambda at: abs(sums[at] - wanted))


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.5


def _drawn(
    group: str, document: str, text: str, size: int, most: int, draws: Draws, tokenizer: Tokenizer
) -> list[Piece]:
    parts = list(cut(text, size))
    draws.shuffle(parts)
    return [piece_of(group, document, part.text, part.start, tokenizer) for part in parts[:most]]


def piece_of(group: str, document: str, text: str, place: int, tokenizer: Tokenizer) -> Piece:
    """A piece with its tokens counted."""
    return Piece(group, document, text, tokenizer.count(text + BETWEEN), place)
