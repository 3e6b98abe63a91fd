"""Generated prose that surrounds facts: passages written from themes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

from longrm.rng import Rng

_CHOICE = re.compile(r"\[([^\[\]]*\|[^\[\]]*)\]")
_WORD = re.compile(r"\w+")
_FIRST_DAY = date(2001, 1, 1).toordinal()
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)


@dataclass(frozen=True, slots=True)
class TextEntry:
    """An entry of a text: its head, with the white space behind it, and its sentences."""

    head: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, eq=False)  # no eq: hashed by identity
class GeneratedText:
    """A kind of text that is written from themes.

    Attributes:
        title: Its name.
        about: What it is, for `longrm world --list`.
        head: The form of an entry's head, with `{title}` of the theme, `{date}`, which moves on, and slots.
        themes: What entries are about: forms of sentences by title. Either of the first two opens a passage, and any
            few of the others follow in their order. `[a|b]` is one of a and b, `{slot}` a word that the passage keeps.
        slots: Words by the name of the slot; no two slots of a passage get the same word.
        closings: Short sentences that state nothing, with which the last tokens of a context are filled.
        sentence: The form of a sentence of a theme, with `{sentence}` and slots.
        remark: The form of any other sentence; by default that of themes.
        label: How an entry's reference precedes its head, with one `{}`.
        joint: What separates the sentences of a passage.
        most: Sentences of an entry at most, two at least.
        changing: Slots that are drawn anew for every sentence, such as its author.
        apart: Whether facts are between passages, and not within them.
    """

    title: str
    about: str
    head: str
    themes: Mapping[str, Sequence[str]]
    slots: Mapping[str, Sequence[str]]
    closings: Sequence[str]
    sentence: str = "{sentence}"
    remark: str = ""
    label: str = "[{}] "
    joint: str = " "
    most: int = 4
    changing: Sequence[str] = ()
    apart: bool = False

    @property
    def digest(self) -> str:
        """Identifies all that it can write, in random keys: its name."""
        return self.title

    def passages(self, rng: Rng) -> Iterator[TextEntry]:
        """Yields passages without end, no two alike: a few sentences of a theme. Two in a row differ in theme."""
        seen: set[tuple[str, ...]] = set()
        titles = list(self.themes)
        title, day = rng.choice(titles), rng.below(365)
        while True:
            title = rng.choice([other for other in titles if other != title])
            forms = self.themes[title]
            first = rng.below(2)
            others = list(rng.order(range(first + 1, len(forms))))
            chosen = [first, *sorted(others[: 1 + rng.below(self.most - 1)])]
            words = self._words(rng)
            sentences = tuple(self._worded(forms[index], words, rng) for index in chosen)
            if sentences not in seen:
                seen.add(sentences)
                day += rng.below(4)
                head = _say(self.head, {**words, "title": title, "date": _date(day)}, rng)
                yield TextEntry(head, sentences)

    def line(self, sentence: str, rng: Rng) -> str:
        """Words a sentence as the kind does, such as with its author; the sentence itself stays as it is."""
        return (self.remark or self.sentence).format(**self._words(rng), sentence=sentence)

    def occurs(self, word: str) -> bool:
        """Whether the text can contain a word, in upper or lower case."""
        return word.lower() in _vocabulary(self)

    def forms(self) -> Iterator[str]:
        """Yields everything that the text is written from."""
        yield from (self.title, self.head, self.sentence, self.remark, *self.closings, *_MONTHS)
        for title, forms in self.themes.items():
            yield from (title, *forms)
        for choices in self.slots.values():
            yield from choices

    def _worded(self, form: str, words: Mapping[str, str], rng: Rng) -> str:
        kept = {slot: word for slot, word in words.items() if slot not in self.changing}
        drawn = {slot: _other(self.slots[slot], kept, rng) for slot in self.changing}
        return self.sentence.format(**{**words, **drawn}, sentence=_say(form, words, rng))

    def _words(self, rng: Rng) -> dict[str, str]:
        words: dict[str, str] = {}
        for slot, choices in self.slots.items():
            words[slot] = _other(choices, words, rng)
        return words


def _other(choices: Sequence[str], words: Mapping[str, str], rng: Rng) -> str:
    """Draws one of the choices that is not among the words."""
    while (word := rng.choice(choices)) in words.values():
        pass
    return word


def _say(form: str, slots: Mapping[str, str], rng: Rng) -> str:
    """Writes a sentence of a form: one of the alternatives of each `[a|b]`, and the slots' words."""
    parts = (part[0] if len(part) == 1 else rng.choice(part) for part in _parts(form))
    text = "".join(parts).format_map(slots)
    return text[0].upper() + text[1:] if form.startswith("{") else text


@lru_cache(maxsize=8192)
def _parts(form: str) -> tuple[Sequence[str], ...]:
    """The parts of a form, each a list of alternatives."""
    pieces = _CHOICE.split(form)
    return tuple(piece.split("|") if index % 2 else [piece] for index, piece in enumerate(pieces))


@lru_cache(maxsize=64)
def _vocabulary(text: GeneratedText) -> frozenset[str]:
    return frozenset(word.lower() for form in text.forms() for word in _WORD.findall(form))


def _date(day: int) -> str:
    """A day such as "14 March 2001"; with the year, so that no date seems to precede an earlier one."""
    found = date.fromordinal(_FIRST_DAY + day)
    return f"{found.day} {_MONTHS[found.month - 1]} {found.year}"
