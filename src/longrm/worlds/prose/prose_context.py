"""Contexts in prose with an exact number of tokens, and facts at their places."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ContextLengthError
from longrm.rng import Rng
from longrm.worlds.prose.generated_text import TextEntry
from longrm.worlds.prose.tasks import ProseFact, reference
from longrm.worlds.prose.texts import TextKind

_Piece = tuple[str, int | None]
"""A sentence, and the number of the fact that it states, if any."""
_Paragraph = tuple[str, list[_Piece]]
"""A head, and its sentences."""


@dataclass(frozen=True, slots=True)
class PlacedFact:
    """A fact, and the share of the text before it: 0 at the start, 1 at the end."""

    fact: ProseFact
    place: float


@dataclass(frozen=True, slots=True)
class ProseContext:
    """A context: its text, and the (start, end) characters of its facts, in the order given."""

    text: str
    facts: tuple[tuple[int, int], ...]


class ProseDraft:
    """The passages and facts of one context before its length is known.

    The text around the facts is a stream that does not depend on the length: a longer context repeats it and adds more.
    """

    def __init__(self, kind: TextKind, facts: Sequence[PlacedFact], rng: Rng, tokenizer: Tokenizer) -> None:
        self._kind, self._facts, self._draws, self._tokenizer = kind, facts, rng, tokenizer
        self._lines = [kind.line(placed.fact.text, rng) for placed in facts]
        self._taken = {placed.fact.reference for placed in facts} - {""}
        self._stream = self._sentences(kind.passages(rng))
        self._units: list[tuple[str | None, str]] = []
        self._totals = [0]

    def fit(self, length: int, ending: str) -> ProseContext:
        """Returns the longest context that has at most `length` tokens with its ending.

        As many sentences as fit, then short closings while one fits; for a haystack, as many words of the next sentence
        as fit. Tokens of parts need not add up, so whole texts are counted until one is not too long and no further
        sentence fits.

        Raises:
            ConfigError: The length is too short for the facts, or the haystack too small for the length.
        """
        fixed = sum(self._tokenizer.count(f"\n\n{line}") for line in (ending, *self._lines))
        held, too_many = self._most(length - fixed), length
        while True:
            context = self._context(held)
            spare = length - self._tokenizer.count(context.text + ending)
            most = min(self._most(self._totals[held] + spare), too_many - 1)
            if spare < 0 and held == 1:
                raise ContextLengthError(
                    f"length {length} is too short: the facts of one context need {length - spare} tokens with this "
                    "tokenizer, and those of others may need more; raise the length, or reduce responses or per_group"
                )
            if spare < 0:
                too_many = held
                held = max(1, min(most, held - 1))
            elif most > held:
                held = most
            elif self._kind.closings:
                return self._with_closings(held, length, ending)
            else:
                return self._with_words(held, length, ending)

    def _with_closings(self, held: int, length: int, ending: str) -> ProseContext:
        """Ends random passages with short sentences, no two alike, the longest that fit first."""
        count = self._tokenizer.count
        lines = [self._kind.line(text, self._draws) for text in self._kind.closings]
        self._draws.shuffle(lines)
        lines.sort(key=lambda line: -count(f" {line}"))
        context, added = self._context(held), list[tuple[int, str]]()
        spare = length - count(context.text + ending)
        for line in lines:
            if count(f" {line}") <= spare:
                more = [*added, (self._draws.below(1 << 30), line)]
                longer = self._context(held, more)
                if (left := length - count(longer.text + ending)) >= 0:
                    context, added, spare = longer, more, left
        return context

    def _with_words(self, held: int, length: int, ending: str) -> ProseContext:
        words = self._units[held][1].split(" ")
        held_words = bisect_right(
            range(1, len(words)),
            length,
            key=lambda part: self._tokenizer.count(
                self._context(held, part=" ".join(words[:part])).text + ending
            ),
        )
        return self._context(held, part=" ".join(words[:held_words]))

    def _sentences(self, passages: Iterator[TextEntry]) -> Iterator[tuple[str | None, str]]:
        """Yields sentences, the first of a passage with its head, the others with None."""
        for passage in passages:
            head: str | None = self._label(self._free_reference()) + passage.head
            for sentence in passage.sentences:
                yield head, sentence
                head = None

    def _free_reference(self) -> str:
        """A reference that nothing else has; empty if the facts have none."""
        if not self._taken:
            return ""
        number = reference(self._draws)
        while number in self._taken:
            number = reference(self._draws)
        self._taken.add(number)
        return number

    def _label(self, number: str) -> str:
        return self._kind.label.format(number) if number else ""

    def _most(self, tokens: int) -> int:
        """How many sentences, at least one, have at most so many tokens, assuming that tokens of parts add up."""
        while self._totals[-1] <= tokens or len(self._units) < 2:
            head, sentence = next(self._stream)
            text = f" {sentence}" if head is None else f"\n\n{head}{sentence}"
            self._units.append((head, sentence))
            self._totals.append(self._totals[-1] + self._tokenizer.count(text))
        return max(1, bisect_right(self._totals, tokens) - 1)

    def _context(self, held: int, closings: Sequence[tuple[int, str]] = (), part: str = "") -> ProseContext:
        """Joins `held` sentences, a part of the next one, closings at the ends of passages, and the facts."""
        entries: list[tuple[str, list[str]]] = []
        units = [*self._units[:held], *([(self._units[held][0], part)] if part else [])]
        for head, sentence in units:
            if head is not None:
                entries.append((head, []))
            entries[-1][1].append(sentence)
        for at, line in closings:
            entries[at % len(entries)][1].append(line)
        return self._joined(self._with_facts(entries))

    def _with_facts(self, entries: Sequence[tuple[str, Sequence[str]]]) -> list[_Paragraph]:
        """Puts every fact behind the sentence (or passage, if facts are apart) that ends nearest to its place.

        A place is a share of the whole text, including the facts; those before a fact push it back.
        """
        apart = self._kind.apart or bool(self._taken)
        gaps, ends = [(0, 0)], [0]
        size = 0
        for number, (head, sentences) in enumerate(entries):
            size += len(head) + 1
            for before, sentence in enumerate(sentences, 1):
                size += len(sentence) + 1
                if not apart or before == len(sentences):
                    gaps.append((number, before))
                    ends.append(size)
        at: dict[tuple[int, int], list[int]] = defaultdict(list)
        total, pushed, gap = size + sum(len(line) + 1 for line in self._lines), 0, 0
        for index in sorted(range(len(self._facts)), key=lambda index: self._facts[index].place):
            own = len(self._lines[index]) + 1
            # Never before the fact before it: their order may be what is asked about.
            gap = max(gap, _nearest(ends, self._facts[index].place * (total - own) - pushed))
            at[gaps[gap]].append(index)
            pushed += own
        paragraphs: list[_Paragraph] = []
        for number, (head, sentences) in enumerate(entries):
            pieces: list[_Piece] = []
            for before, sentence in enumerate(("", *sentences)):
                pieces += [(sentence, None)] if before else []
                pieces += [(self._lines[index], index) for index in at[number, before]]
            if apart:
                first = len(at[number, 0])
                last = first + len(sentences)
                paragraphs += map(self._alone, pieces[:first])
                paragraphs += [(head, pieces[first:last]), *map(self._alone, pieces[last:])]
            else:
                paragraphs.append((head, pieces))
        return paragraphs

    def _alone(self, piece: _Piece) -> _Paragraph:
        assert piece[1] is not None, "only facts are apart"
        return self._label(self._facts[piece[1]].fact.reference), [piece]

    def _joined(self, paragraphs: Sequence[_Paragraph]) -> ProseContext:
        parts: list[str] = []
        spans = [(0, 0)] * len(self._facts)
        at = 0
        for number, (head, pieces) in enumerate(paragraphs):
            for place, (text, index) in enumerate(pieces):
                between = self._kind.joint if place else ("\n\n" if number else "") + head
                at += len(between)
                if index is not None:
                    fact = self._facts[index].fact.text
                    start = at + text.index(fact)
                    spans[index] = (start, start + len(fact))
                parts += [between, text]
                at += len(text)
        return ProseContext("".join(parts), tuple(spans))


def _nearest(ends: Sequence[int], wanted: float) -> int:
    """The index of the number nearest to the wanted one, among rising numbers."""
    above = min(bisect_left(ends, wanted), len(ends) - 1)
    return above - (above > 0 and wanted - ends[above - 1] <= ends[above] - wanted)
