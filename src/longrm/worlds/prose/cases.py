"""What prose worlds ask about: cases of points, each with its facts, its question and its right and wrong values."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError
from longrm.rng import Draws
from longrm.worlds.prose.word_lists import FIRST_NAMES, SURNAMES


@dataclass(frozen=True, slots=True)
class ProseFact:
    """A sentence that a context states.

    Attributes:
        text: The sentence.
        reference: What the heading of its entry is numbered with, where the place itself is asked for.
    """

    text: str
    reference: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """What one question can be about.

    Attributes:
        facts: What must be read to know the answer, in the order in which the context states it.
        question: What a pair is asked.
        answer: What responses say, with one `{}` for the value.
        value: The right value.
        wrong: A wrong value; empty where it is the right one of another point of the case. Either is drawn so that
            it might as well have been the other one: with no look at the context nobody can tell them apart.
    """

    facts: tuple[ProseFact, ...]
    question: str
    answer: str
    value: str
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """Points of one form, which differ in names and values alone: each is a near distractor of the others.

    Attributes:
        points: The points.
        question_many: What more than two responses are asked, with a `{number}` of points each.
    """

    points: tuple[Point, ...]
    question_many: str


class Names:
    """Draws the names and values of one context: nobody's name twice, and none that the text has already.

    Attributes:
        draws: Where they are drawn from.
        left: How many family names there still are.

    Args:
        draws: Where they are drawn from.
        tokenizer: Values of a case have equally many of its tokens.
        occurs: Whether a word stands in the text that surrounds the facts.
    """

    def __init__(self, draws: Draws, tokenizer: Tokenizer, occurs: Callable[[str], bool]) -> None:
        self.draws = draws
        self._tokenizer, self._occurs = tokenizer, occurs
        alike = equally_long(SURNAMES, tokenizer)
        usual, others = (
            draws.order([name for name in SURNAMES if (name in alike) is first and not occurs(name)])
            for first in (True, False)
        )
        self._surnames = chain(usual, others)
        self.left = sum(not occurs(name) for name in SURNAMES)
        self._first_names = equally_long(FIRST_NAMES, tokenizer)

    def surname(self) -> str:
        """A family name that no other fact of the context has.

        Raises:
            ConfigError: There is none left.
        """
        name = next(self._surnames, None)
        if name is None:
            raise ConfigError(
                f"the questions need more than the {len(SURNAMES)} names that worlds have, less those that stand in "
                "the haystack: lessen per_group or responses"
            )
        self.left -= 1
        return name

    def person(self) -> str:
        """A first name and a family name that no other fact of the context has."""
        return f"{self.draws.one(self._first_names)} {self.surname()}"

    def values(self, pool: Sequence[str], count: int) -> list[str]:
        """Different values, with equally many tokens where the pool has enough of them.

        Raises:
            ConfigError: The text has too many of them already.
        """
        left = [value for value in pool if not self._occurs(value)]
        alike = equally_long(tuple(left), self._tokenizer)
        free = alike if len(alike) >= count else left
        if len(free) < count:
            raise ConfigError(
                f"the haystack holds all but {len(free)} of the {len(pool)} words that answers are drawn from, such as "
                f"'{pool[0]}', and {count} are needed: lessen the responses, or take another haystack or world"
            )
        order = self.draws.order(free)
        return [next(order) for _ in range(count)]


@lru_cache(maxsize=256)
def equally_long(pool: tuple[str, ...], tokenizer: Tokenizer) -> tuple[str, ...]:
    """Those values of a pool that have as many tokens as most of them."""
    counts = {value: tokenizer.count(f" {value}") for value in pool}
    most = Counter(counts.values()).most_common(1)
    return tuple(value for value in pool if counts[value] == most[0][0])


def reference(draws: Draws) -> str:
    """The number of an entry, such as K417, which tells nothing of the entry's place."""
    return f"{draws.one('ABCDEFGHJKLMNPQRSTUVWXYZ')}{100 + draws.below(900)}"
