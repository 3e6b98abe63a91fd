"""What worlds in prose ask, one function per world: each draws facts, questions, right and wrong values.

A task is a function `(names, size) -> Case` that draws `size` points of one form, each a near distractor of the
others. The wrong value of a point is drawn so that it might as well have been right: without the context nobody can
tell them apart.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, cycle, islice

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError
from longrm.rng import Rng
from longrm.worlds.prose.word_lists import (
    ANIMALS,
    CITIES,
    CODEWORDS,
    FAMILIES,
    FIRST_NAMES,
    GOODS,
    SURNAMES,
    Family,
)


@dataclass(frozen=True, slots=True)
class ProseFact:
    """A sentence that a context states; with a `reference`, in an entry of its own that is numbered so."""

    text: str
    reference: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """What one question can be about.

    Attributes:
        facts: What must be read to know the answer, in the order of the context.
        question: The question of a pair.
        answer: What responses say, with one `{}` for the value.
        value: The right value.
        wrong: The wrong value; empty to use the right value of another point of the case.
        also: The right value written in another way, which answers the question, too.
        error: The type of error of the wrong value, if the task has several; then no text of an answer is gold.
        decoys: What the context also states so that the wrong value has the same support; mixed with the facts.
        twin: Another question about the facts and decoys, whose value is the wrong one here.
    """

    facts: tuple[ProseFact, ...]
    question: str
    answer: str
    value: str
    wrong: str = ""
    also: str = ""
    error: str = ""
    decoys: tuple[ProseFact, ...] = ()
    twin: "Point | None" = None

    @property
    def stated(self) -> tuple[ProseFact, ...]:
        """All that the context states for this point and its twin."""
        return (*self.facts, *self.decoys)

    def with_twin(self, twin: "Point") -> "Point":
        """This point with a twin, whose facts must be among those stated here."""
        assert all(fact in self.stated for fact in twin.facts)
        return replace(self, twin=twin)


@dataclass(frozen=True, slots=True)
class Case:
    """Points of one form, and the question for more than two responses, with a `{number}` of points each."""

    points: tuple[Point, ...]
    question_many: str


class Names:
    """Draws the names and values of one context: no family name twice, and none that occurs in the surrounding text.

    Attributes:
        rng: The random numbers.
        left: How many family names are left.

    Args:
        rng: The random numbers.
        tokenizer: Values of a case have equally many of its tokens, if possible.
        occurs: Whether a word occurs in the surrounding text.
    """

    def __init__(self, rng: Rng, tokenizer: Tokenizer, occurs: Callable[[str], bool]) -> None:
        self.rng = rng
        self._tokenizer, self._occurs = tokenizer, occurs
        alike = equally_long(SURNAMES, tokenizer)
        usual, others = (
            rng.order([name for name in SURNAMES if (name in alike) is first and not occurs(name)])
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
                f"the questions need more than the {len(SURNAMES)} names that worlds have, less those in the haystack: "
                "reduce per_group or responses"
            )
        self.left -= 1
        return name

    def person(self) -> str:
        """A first name and a family name that no other fact of the context has."""
        return f"{self.rng.choice(self._first_names)} {self.surname()}"

    def values(self, pool: Sequence[str], count: int) -> list[str]:
        """Different values, with equally many tokens if the pool has enough of them.

        Raises:
            ConfigError: The haystack already contains too many of them.
        """
        left = [value for value in pool if not self._occurs(value)]
        alike = equally_long(tuple(left), self._tokenizer)
        free = alike if len(alike) >= count else left
        if len(free) < count:
            raise ConfigError(
                f"the haystack contains all but {len(free)} of the {len(pool)} words that answers are drawn from, such "
                f"as '{pool[0]}', and {count} are needed: reduce responses, or choose another haystack or world"
            )
        return list(islice(self.rng.order(free), count))

    def family(self, size: int) -> Family:
        """A family with values for so many points."""
        return self.rng.choice([family for family in FAMILIES if len(family.values) >= size])

    def sayings(self, family: Family, count: int) -> list[tuple[str, str]]:
        """So many things to say, each once before any repeats."""
        order = list(self.rng.order(family.sayings))
        return [order[index % len(order)] for index in range(count)]

    def stated(self, clause: str) -> ProseFact:
        """A clause such as "the Larkin farm sells barley" as a sentence."""
        return ProseFact(capital(f"{self.rng.choice(_OPENINGS)}{clause}."))


@lru_cache(maxsize=256)
def equally_long(pool: tuple[str, ...], tokenizer: Tokenizer) -> tuple[str, ...]:
    """The values of a pool that have the most common number of tokens."""
    counts = {value: tokenizer.count(f" {value}") for value in pool}
    most = Counter(counts.values()).most_common(1)
    return tuple(value for value in pool if counts[value] == most[0][0])


def reference(rng: Rng) -> str:
    """The number of an entry, such as K417, which reveals nothing of the entry's place."""
    return f"{rng.choice('ABCDEFGHJKLMNPQRSTUVWXYZ')}{100 + rng.below(900)}"


def capital(text: str) -> str:
    """The text with a capital first letter."""
    return text[0].upper() + text[1:]


_OPENINGS = (
    "",
    "As far as we know, ",
    "For the record, ",
    "By all accounts, ",
    "According to the list, ",
    "As it happens, ",
    "Somebody pointed out that ",
    "We were reminded that ",
    "It was mentioned in passing that ",
    "By the way, ",
)
REPORT_FACTS = "Report {{number}} facts that the text states, each about another {}."


def single_fact(names: Names, size: int) -> Case:
    """One fact answers, among near distractors that give other names other values; the wrong value is one of those.

    Similar to NIAH with several keys in RULER (Hsieh et al. 2024, section 3).
    """
    family = names.family(size)
    values = names.values(family.values, size)
    points = []
    for value, (states, asks) in zip(values, names.sayings(family, size), strict=True):
        subject = f"the {names.surname()} {family.noun}"
        fact = names.stated(f"{subject} {states.format(value)}")
        points.append(Point((fact,), capital(asks.format(subject)), capital(f"{subject} {states}."), value))
    return Case(tuple(points), REPORT_FACTS.format(family.noun))


def many_facts(names: Names, size: int) -> Case:
    """One fact answers, among as many of the very same form as a third of the text holds; values repeat if they must.

    Similar to NIAH with several keys in RULER, whose distractors also grow with the length.
    """
    most = 20  # values: as many as five responses make claims about
    family = names.family(most)
    pool = names.values(family.values, most)
    ((states, asks),) = names.sayings(family, 1)
    points = []
    for value in islice(cycle(pool), size):
        subject = f"the {names.surname()} {family.noun}"
        fact = ProseFact(capital(f"{subject} {states.format(value)}."))
        points.append(Point((fact,), capital(asks.format(subject)), capital(f"{subject} {states}."), value))
    return Case(tuple(points), REPORT_FACTS.format(family.noun))


def two_hops(names: Names, size: int) -> Case:
    """Two facts must be joined: who looks after something, and what is said of that thing.

    The same is said of all things, and the wrong value belongs to what another person looks after, so neither fact
    alone reveals the right one. Similar to BABILong's second task (Kuratov et al. 2024) and to variable tracking in
    RULER.
    """
    family = names.family(size)
    states, asks = names.rng.choice(family.sayings)
    points = []
    for value in names.values(family.values, size):
        person, subject = names.person(), f"the {names.surname()} {family.noun}"
        facts = [names.stated(f"{person} looks after {subject}")]
        facts.append(names.stated(f"{subject} {states.format(value)}"))
        names.rng.shuffle(facts)
        asked = f"the {family.noun} that {person} looks after"
        points.append(Point(tuple(facts), capital(asks.format(asked)), capital(f"{asked} {states}."), value))
    many = f"Name {{number}} people, and say what is told of the {family.noun} that each looks after."
    return Case(tuple(points), many)


MOVED_THINGS = (
    "archive",
    "collection",
    "exhibition",
    "workshop",
    "office",
    "library",
    "laboratory",
    "school",
)
# Without time expressions, which could contradict the order of the text.
_MOVES = (
    "the {} {} was moved to {}.",
    "by a narrow vote, the {} {} was moved to {}.",
    "without much notice, the {} {} was moved to {}.",
    "to save on rent, the {} {} was moved to {}.",
    "for lack of space, the {} {} was moved to {}.",
)


def latest_update(names: Names, size: int) -> Case:
    """Of two or three statements about the same thing the last one holds; the wrong value is one that held before.

    Similar to knowledge updates in LongMemEval (Wu et al. 2024) and to the order of turns in MRCR. The question says
    that the order is that of the text: comments of code, or documents of a haystack, have no order in time.
    """
    rng, thing, order = names.rng, names.rng.choice(MOVED_THINGS), "going by the order of the text"
    points = []
    for _ in range(size):
        name = names.surname()
        values = names.values(CITIES, 2 + rng.below(2))
        facts = tuple(ProseFact(capital(rng.choice(_MOVES).format(name, thing, value))) for value in values)
        *before, value = values
        points.append(
            Point(
                facts,
                f"{capital(order)}, to which city was the {name} {thing} moved last?",
                f"The {name} {thing} was moved last to {{}}.",
                value,
                rng.choice(before),
            )
        )
    many = (
        f"Name {{number}} of the places called {thing} and say, {order}, to which city each was moved last."
    )
    return Case(tuple(points), many)


_COUNTS = {2: "two", 3: "three", 4: "four"}
# Noun, what is stated each time, what responses say with the count, the question, and the values.
_COUNTED = (
    (
        "family",
        "bought a {} from a neighbor",
        "bought {} animals from a neighbor",
        "animals did {} buy from a neighbor",
        ANIMALS,
    ),
    (
        "family",
        "lost a {} in the flood",
        "lost {} animals in the flood",
        "animals did {} lose in the flood",
        ANIMALS,
    ),
    ("company", "opened a branch in {}", "opened branches in {} cities", "branches did {} open", CITIES),
    (
        "company",
        "sent an engineer to {}",
        "sent engineers to {} cities",
        "cities did {} send engineers to",
        CITIES,
    ),
    (
        "workshop",
        "began to make {}",
        "began to make {} sorts of goods",
        "sorts of goods did {} begin to make",
        GOODS,
    ),
    (
        "workshop",
        "was asked for {}",
        "was asked for {} sorts of goods",
        "sorts of goods was {} asked for",
        GOODS,
    ),
)


def counting(names: Names, size: int) -> Case:
    """How many sentences of the text say the same of a name, two to four; the wrong count is another one of these.

    Similar to aggregation in RULER, with small counts.
    """
    noun, states, counts, asks, pool = names.rng.choice(_COUNTED)
    points = []
    for _ in range(size):
        subject = f"the {names.surname()} {noun}"
        order = names.rng.order(tuple(_COUNTS))
        count, wrong = next(order), next(order)
        facts = [names.stated(f"{subject} {states.format(value)}") for value in names.values(pool, count)]
        points.append(
            Point(
                tuple(facts),
                f"How many {asks.format(subject)}?",
                capital(f"{subject} {counts}."),
                _COUNTS[count],
                _COUNTS[wrong],
                str(count),
            )
        )
    return Case(tuple(points), f"How many {asks.format(f'each {noun}')}? Answer for {{number}} of them.")


_DISCUSSED = (
    *("bus line", "town fountain", "ferry", "swimming pool", "ring road", "night market", "clock tower"),
    *("football field", "bakery", "campsite", "cable car", "planetarium", "bicycle path", "fish hatchery"),
    *("ice rink", "post office", "quarry", "railway crossing", "sawmill", "tennis court", "windmill"),
    *("youth hostel", "cider press", "greenhouse"),
)
_OPINIONS = (
    "costs more than it is worth",
    "was the best idea in years",
    "will not last another decade",
    "ought to belong to all of us",
    "has been neglected for too long",
    "should have been built elsewhere",
    "deserves a second chance",
    "brings nothing but trouble",
    "is the pride of the county",
    "could be run by half as many people",
)


def who_said_it(names: Names, size: int) -> Case:
    """Who made a quoted remark; the wrong speaker made another remark."""
    things, points = names.rng.order(_DISCUSSED), []
    for thing in islice(things, size):
        remark = f"The {thing} {names.rng.choice(_OPINIONS)}"
        answer = f'"{remark}," said {{}}.'
        speaker = names.person()
        points.append(Point((ProseFact(answer.format(speaker)),), f'Who said, "{remark}"?', answer, speaker))
    return Case(tuple(points), "Quote {number} remarks from the text, each with its speaker.")


_CLAIMANTS = ("company", "family", "society", "college", "club", "museum")
_CLAIMS = (
    ("the plan of {} was {} by the board", ("approved", "rejected")),
    ("the budget of {} was {} in the second vote", ("raised", "lowered")),
    ("the story of {} was {} by two witnesses", ("confirmed", "denied")),
    ("the lease of {} was {} by a year", ("extended", "shortened")),
    ("the work of {} was {} in the newspaper", ("praised", "criticized")),
    ("the offer of {} was {} after a short talk", ("accepted", "refused")),
    ("the visit of {} was moved to {} in the week", ("earlier", "later")),
    ("the share of {} was found to be {} than it had been", ("larger", "smaller")),
)


def contradiction(names: Names, size: int) -> Case:
    """A claim that the text contradicts, against the faithful one: they differ in one of two opposite words.

    Either word is equally likely to be right, and both occur in the context. Similar to the detection of unfaithful
    claims.
    """
    rng = names.rng
    noun, claims = rng.choice(_CLAIMANTS), list(rng.order(_CLAIMS))
    turns = [rng.below(2) for _ in range(size)]
    # Of four names, two share a claim, one with each opposite. More points are drawn independently: if half of them
    # were known to be right, some would reveal others.
    if size <= 4:
        turns[1::2] = [1 - turn for turn in turns[: size - 1 : 2]]
    points = []
    for number, turn in enumerate(turns):
        claim, opposites = claims[number // 2 % len(claims)]
        subject, value, wrong = f"the {names.surname()} {noun}", opposites[turn], opposites[1 - turn]
        points.append(
            Point(
                (names.stated(claim.format(subject, value)),),
                f"What does the text say about {claim.split(' of ')[0]} of {subject}?",
                capital(f"{claim.format(subject, '{}')}."),
                value,
                wrong,
            )
        )
    rng.shuffle(points)
    return Case(tuple(points), f"Report {{number}} claims of the text, each about another {noun}.")


_RULED = ("account", "company", "estate", "foundation", "project", "trust")
_RULES = (
    ("any line about {} must contain the word {}.", "This answer contains the word {}."),
    ("any line about {} must be filed under the heading {}.", "Filed under the heading {}."),
    ("any line about {} must be signed with the name {}.", "Signed with the name {}."),
    ("any line about {} must carry the stamp {}.", "This carries the stamp {}."),
    ("whoever writes about {} must add the code {}.", "I add the code {}."),
    ("whoever writes a line about {} must mention the keyword {}.", "I mention the keyword {}."),
)


def instruction(names: Names, size: int) -> Case:
    """A rule far back in the text that the response must follow; the wrong response follows the rule for another name.

    Similar to instruction following at a distance (RealInstruct and IFEval, with the instruction in the context).
    """
    noun = names.rng.choice(_RULED)
    order = list(names.rng.order(_RULES))
    points = []
    for number, word in enumerate(names.values(CODEWORDS, size)):
        subject, (rule, obeys) = f"the {names.surname()} {noun}", order[number % len(order)]
        points.append(
            Point(
                (ProseFact(capital(rule.format(subject, word))),),
                f"Write a line about {subject}, and do what the text asks of whoever does so.",
                f"{capital(subject)} is mentioned in the text. {obeys}",
                word,
            )
        )
    many = (
        f"Write about {{number}} names, each of another {noun}, and do what the text asks of whoever does so."
    )
    return Case(tuple(points), many)


def citation(names: Names, size: int) -> Case:
    """Which numbered entry of the text says something; the wrong entry says the same of another name.

    Similar to citing the supporting passage in ALCE (Gao et al. 2023) and LongCite.
    """
    family = names.family(size)
    numbers = dict.fromkeys(reference(names.rng) for _ in range(4 * size))
    values, sayings = names.values(family.values, size), names.sayings(family, size)
    points = []
    for number, value, (states, _) in zip(numbers, values, sayings, strict=False):
        subject = f"the {names.surname()} {family.noun}"
        points.append(
            Point(
                (ProseFact(capital(f"{subject} {states.format(value)}."), number),),
                f"In which entry does the text say something about {subject}?",
                f"The text says something about {subject} in entry {{}}.",
                number,
            )
        )
    many = f"Name {{number}} entries, each with what it says about another {family.noun}."
    return Case(tuple(points), many)
