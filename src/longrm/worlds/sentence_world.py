"""Worlds whose contexts are sentences of seven words: facts about entities among filler, for tiny models.

A *unit* is what a context states about one entity (or a couple), in a fixed number of sentences. A question is about
one unit or several, its responses *claim* values, and wrong values are right for other entities of the same context:
what the responses say tells nothing about which is right.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, cycle, pairwise
from typing import TYPE_CHECKING

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, ContextLengthError
from longrm.rng import Rng
from longrm.types import Comparison
from longrm.worlds.comparisons import ending_of, world_comparison
from longrm.worlds.vocabulary import (
    ANSWER,
    CLAIM,
    ENTITIES,
    FILLERS,
    LINK,
    NUMBERS,
    QUESTION,
    QUESTION_MANY,
    RECORDS,
    SLOTS,
    VALUES,
    VERSION,
)

if TYPE_CHECKING:
    from longrm.worlds.generator import WorldPlan


@dataclass(frozen=True, slots=True)
class Holder:
    """An entity and the value that the context gives it."""

    entity: str
    value: str


@dataclass(frozen=True, slots=True)
class Unit:
    """The facts about some entities: their sentences, and the entities with their values."""

    sentences: tuple[str, ...]
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """What can be asked about a unit.

    Attributes:
        subject: As questions and responses name it, such as "the partner of Alora".
        value: The value that the context gives the subject.
        evidence: Numbers of the unit's sentences that prove it.
    """

    subject: str
    value: str
    evidence: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SentenceWorld:
    """A world of seven-word sentences.

    Attributes:
        unit: Writes the sentences about `entities` holders.
        claim: Chooses what is asked about a unit.
        forms: Every sentence form that `unit` fills in, such as "{entity} has {value}.", and every other word that only
            this world writes: the `words` tokenizer is made from these.
        sentences: Sentences of a unit.
        entities: Entities of a unit.
        anywhere: Whether the unit of a pair's wrong value may be anywhere in the context. Otherwise it is next to the
            evidence, so that being near the evidence does not reveal the right value.
        subject: How questions and responses name an entity; one `{}`.
        asks: What is asked, for `longrm world --list`.
        similar_to: Similar benchmarks, likewise.
    """

    unit: Callable[[tuple[Holder, ...], Rng], Unit]
    claim: Callable[[Unit, Rng], Claim]
    forms: tuple[str, ...]
    sentences: int = 1
    entities: int = 1
    anywhere: bool = False
    subject: str = "{}"
    asks: str = "the access code of a subject"
    similar_to: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """Texts whose words the `words` tokenizer must know."""
        return (self.subject, *self.forms)

    def check(self, plan: "WorldPlan") -> None:
        """Refuses a plan that this world cannot generate.

        Raises:
            ConfigError: It has too many responses for the values that there are, or a kind of text.
        """
        if plan.texts or plan.haystack:
            raise ConfigError(
                f"{plan.world} writes sentences of seven words only: omit texts and haystack, or choose a world in "
                "prose (longrm world --list)"
            )
        most = max(n for n in range(3, len(VALUES)) if claims_needed(n) * self.entities <= len(VALUES))
        if not 2 <= plan.responses <= most:
            raise ConfigError(f"{plan.world} can rank 2 to {most} responses, got {plan.responses}")

    def group(self, plan: "WorldPlan", index: int, tokenizer: Tokenizer) -> list[Comparison]:
        """Makes a group of comparisons about one context; see `longrm.worlds.generator.group`."""
        draft = _Draft(self, plan, index, tokenizer)
        sentences, context = draft.fit(draft.questions)
        depths = context.depths
        questions = draft.questions(sentences)
        if plan.unrelated:
            _, context = _Draft(self, plan, index + 1, tokenizer).fit(lambda _: questions)
        return [
            world_comparison(
                plan,
                index,
                number,
                context=context.text,
                question=question.text,
                responses=question.responses,
                ranks=question.ranks,
                evidence=() if plan.unrelated else [context.facts[fact] for fact in question.facts],
                depth=depths[number % len(depths)],
                answer=question.answer,
            )
            for number, question in enumerate(questions)
        ]


# The two worlds


def record_unit(holders: tuple[Holder, ...], rng: Rng) -> Unit:
    """`records`: one fact answers, such as "The access code of Alora is anchor."."""
    return Unit((_record(holders[0], rng),), holders)


def record_claim(unit: Unit, rng: Rng) -> Claim:
    """Asks for the value of the entity."""
    del rng  # there is no choice
    return Claim(unit.holders[0].entity, unit.holders[0].value, (0,))


PARTNER = "the partner of {}"


def couple_unit(holders: tuple[Holder, ...], rng: Rng) -> Unit:
    """`chain`: two facts must be joined, who is the partner of an entity and what is the partner's value.

    Both partners have a record, so the record of the question's entity states a value that no response names. The wrong
    value belongs to someone else's partner, so neither fact alone reveals the right one.
    """
    first, second = (holder.entity for holder in holders)
    if rng.below(2):
        first, second = second, first
    link = LINK.format(entity=first, partner=second)
    return Unit((*(_record(holder, rng) for holder in holders), link), holders)


def partner_claim(unit: Unit, rng: Rng) -> Claim:
    """Asks for the value of the partner of either of the two."""
    entity = rng.below(2)
    partner = 1 - entity
    return Claim(PARTNER.format(unit.holders[entity].entity), unit.holders[partner].value, (partner, 2))


def _record(holder: Holder, rng: Rng) -> str:
    return rng.choice(RECORDS).format(entity=holder.entity, value=holder.value)


# Questions


@dataclass(frozen=True, slots=True)
class _Question:
    """A question, its responses in random order with their ranks, the numbers of the facts that decide, its answer.

    There is no one answer if more than two responses make claims about facts of their own.
    """

    text: str
    responses: tuple[str, ...]
    ranks: tuple[int, ...]
    facts: tuple[int, ...]
    answer: str = ""


def claims_needed(responses: int) -> int:
    """How many units one question is about: the right and a wrong one for a pair, else N x (N - 1)."""
    return 2 if responses == 2 else responses * (responses - 1)


def _question_text(subject: str, responses: int) -> str:
    if responses == 2:
        return QUESTION.format(subject=subject)
    return QUESTION_MANY.format(number=NUMBERS[responses - 1], subject=subject)


def _ask(
    world: SentenceWorld, units: Sequence[Unit], chosen: Sequence[int], responses: int, rng: Rng
) -> _Question:
    """Asks about the `claims_needed(responses)` chosen units.

    With two responses, the question is about the first unit, and the rejected response names the value that is right
    for the second.

    With N >= 3 responses the question names nobody ("Name three people ..."), and every response makes m = N - 1 claims
    about entities of its own. If all responses were about the same m facts they would share their right values, and the
    responses alone could be ranked by what most of them say. So all N x m entities and values differ. The response of
    rank r makes N - r right claims at random positions; the entities of wrong claims trade their values along a random
    ring, so that each gets the value of another entity of the context. Only the context reveals the ranks.
    """
    claims = [_claim_about(world, units[number], rng) for number in chosen]
    # Facts are numbered by the sentences of all units in order.
    facts = [
        [unit * world.sentences + sentence for sentence in claim.evidence]
        for unit, claim in zip(chosen, claims, strict=True)
    ]
    if responses == 2:
        right, other = claims
        ranked = [(1, right.value), (2, other.value)]
        rng.shuffle(ranked)
        return _Question(
            _question_text(right.subject, 2),
            tuple(ANSWER.format(subject=right.subject, value=value) for _, value in ranked),
            tuple(rank for rank, _ in ranked),
            tuple(facts[0]),
            right.value,
        )
    order = list(range(len(claims)))
    rng.shuffle(order)
    answers: list[tuple[int, list[int]]] = []
    wrong: list[int] = []
    for rank in range(1, responses + 1):
        claimed = [order.pop() for _ in range(responses - 1)]
        wrong += claimed[: rank - 1]
        rng.shuffle(claimed)
        answers.append((rank, claimed))
    rng.shuffle(wrong)
    values = [claim.value for claim in claims]
    for index, other_index in zip(wrong, wrong[1:] + wrong[:1], strict=True):
        values[index] = claims[other_index].value
    rng.shuffle(answers)
    texts = []
    for _, claimed in answers:
        *first, last = (CLAIM.format(subject=claims[at].subject, value=values[at]) for at in claimed)
        text = f"{', '.join(first)} and {last}."
        texts.append(text[0].upper() + text[1:])
    return _Question(
        _question_text(world.subject.format("each"), responses),
        tuple(texts),
        tuple(rank for rank, _ in answers),
        tuple(fact for own in facts for fact in own),
    )


def _claim_about(world: SentenceWorld, unit: Unit, rng: Rng) -> Claim:
    claim = world.claim(unit, rng)
    assert claim.subject in {world.subject.format(holder.entity) for holder in unit.holders}, (
        f"a claim about {claim.subject!r}, but the world has subject={world.subject!r}"
    )
    assert all(0 <= sentence < world.sentences for sentence in claim.evidence), "no such sentence of the unit"
    return claim


# Contexts


@dataclass(frozen=True, slots=True)
class _Context:
    """A context: its text, the (start, end) characters of its facts, unit after unit, and the depths of its blocks."""

    text: str
    facts: tuple[tuple[int, int], ...]
    depths: tuple[float, ...]


class _Draft:
    """The sentences of context number `index` of a plan before its length is known.

    About 70% are facts and the rest is filler; where the entities run out, filler takes over. Facts and filler are two
    random streams that do not depend on the length, so one more sentence changes no other.

    The units that one question is about are a *block*, which is in one place: where the depth says. A block of one
    unit (pairs of worlds with `anywhere`) is one of the first 64 units, whose values all differ, so that any other of
    them can be its alternative.
    """

    def __init__(self, world: SentenceWorld, plan: "WorldPlan", index: int, tokenizer: Tokenizer) -> None:
        self._world, self._plan, self._tokenizer = world, plan, tokenizer
        self._key = ("longrm worlds", VERSION, *plan.key, index)
        self._uniform = plan.depth == "uniform"
        claims = claims_needed(plan.responses)
        self._single = plan.responses == 2 and world.anywhere
        self._block_units = 1 if self._single else claims
        self._least = claims * world.sentences  # sentences that a context needs to be asked about at all
        self._units: list[Unit] = []
        self._offset = Rng(*self._key, "offset").below(2**30)
        self._facts = _Stream(self._fact_sentences(Rng(*self._key, "facts")), tokenizer)
        self._fillers = _Stream(filler_sentences(Rng(*self._key, "fillers")), tokenizer)
        self._questions: dict[tuple[int, int], list[_Question]] = {}

    def fit(self, questions: Callable[[int], list[_Question]]) -> tuple[int, _Context]:
        """Finds the longest context that has at most the plan's length with its longest question.

        Token counts of parts do not quite add up for every tokenizer, so whole texts are counted until one is not too
        long and another sentence would be: once with `words`, mostly twice with others.

        Args:
            questions: The questions about a context of so many sentences.

        Returns:
            The number of sentences, and the context.

        Raises:
            ContextLengthError: The length is too short for the sentences that the questions need.
        """
        length, count = self._plan.length, self._tokenizer.count
        typical = _question_text(self._world.subject.format(ENTITIES[0]), self._plan.responses)
        sentences = self._most_sentences(length - _text_tokens(self._tokenizer, typical), self._least)
        too_many = length + 1
        while True:
            context = self._context(sentences)
            endings = (ending_of(question.text) for question in questions(sentences))
            ending = max(endings, key=lambda text: _text_tokens(self._tokenizer, text))
            total, tail = count(context.text + ending), count(ending)
            # For other lengths, scale the sum over words by how far it was off for this one.
            budget = (length - tail) * self._tokens(sentences) // max(total - tail, 1)
            wanted = self._most_sentences(budget, sentences)
            if total > length:
                if sentences == self._least:
                    raise ContextLengthError(
                        f"length {length} is too short: these questions need {self._least} sentences, {total} tokens "
                        "with this tokenizer; raise the length or reduce the responses"
                    )
                too_many = sentences
                sentences = min(wanted, sentences - 1)
            elif (wanted := min(wanted, too_many - 1)) <= sentences:
                return sentences, context
            else:
                sentences = wanted

    def questions(self, sentences: int) -> list[_Question]:
        """Returns `per_group` questions about a context of so many sentences, going round its blocks."""
        self._tokens(sentences)  # draws the units
        blocks, known = self._block_count(sentences), self._known(sentences)
        if (blocks, known) not in self._questions:
            rng = Rng(*self._key, "questions")
            turns = [rng.below(known - 1) for _ in range(blocks)] if self._single else []
            found = []
            for number in range(self._plan.per_group):
                block = number % blocks
                chosen = list(self._members(block, sentences))
                rng.shuffle(chosen)
                if self._single:
                    other = (turns[block] + number // blocks) % (known - 1)
                    chosen.append(other + (other >= chosen[0]))  # any but the block's own unit
                question = _ask(self._world, self._units, chosen, self._plan.responses, rng)
                for text in question.responses:
                    _text_tokens(self._tokenizer, text)  # refuses a word that the tokenizer does not know
                found.append(question)
            self._questions[blocks, known] = found
        return self._questions[blocks, known]

    def _fact_sentences(self, rng: Rng) -> Iterator[str]:
        """Yields the sentences of units until the entities run out, each entity once.

        Values repeat in one random order, so that any 64 entities in a row have distinct values.
        """
        world = self._world
        holders = map(Holder, rng.order(ENTITIES), cycle(rng.order(VALUES)))
        for members in zip(*[holders] * world.entities, strict=True):
            unit = world.unit(members, rng)
            assert len(unit.sentences) == world.sentences, (
                f"a unit of {len(unit.sentences)} sentences, but the world has sentences={world.sentences}"
            )
            self._units.append(unit)
            yield from unit.sentences

    def _fact_count(self, sentences: int) -> int:
        """How many of so many sentences are facts; it grows by at most one per sentence."""
        most = len(ENTITIES) // self._world.entities * self._world.sentences
        return min(max((7 * sentences + 5) // 10, self._least), most)

    def _block_count(self, sentences: int) -> int:
        if not self._uniform:
            return 1
        if self._single:
            return min(self._plan.per_group, self._known(sentences))
        facts = self._block_units * self._world.sentences
        return min(self._plan.per_group, self._fact_count(sentences) // facts)

    def _known(self, sentences: int) -> int:
        """How many of the first 64 units, whose values all differ, a context of so many sentences has."""
        return min(self._fact_count(sentences) // self._world.sentences, len(VALUES))

    def _members(self, block: int, sentences: int) -> range:
        """The units of a block.

        Where there are more units than values, the first units' values occur once more than others. So a block of one
        begins at a random offset: else how often a value occurs would reveal that it is right.
        """
        size = self._block_units
        first = (self._offset + block) % self._known(sentences) if self._single else block * size
        return range(first, first + size)

    def _tokens(self, sentences: int) -> int:
        """Tokens of a context of so many sentences, if every word is encoded with the space before it."""
        facts = self._fact_count(sentences)
        return self._facts.tokens(facts) + self._fillers.tokens(sentences - facts)

    def _most_sentences(self, tokens: int, near: int) -> int:
        """The largest number of sentences with at most so many tokens, searched from a number near it."""
        while near > self._least and self._tokens(near) > tokens:
            near -= 1
        while self._tokens(near + 1) <= tokens:
            near += 1
        return near

    def _context(self, sentences: int) -> _Context:
        """Puts the blocks where the depth says, and everything else anywhere."""
        rng = Rng(*self._key, "layout")
        size = self._block_units * self._world.sentences
        if self._uniform:
            count = self._block_count(sentences)
            edges = [index * sentences // count for index in range(count + 1)]
            starts = [low + rng.below(high - low - size + 1) for low, high in pairwise(edges)]
            rng.shuffle(starts)  # else the first question of a group would always be about the first block
        else:
            starts = [round(float(self._plan.depth) * (sentences - size))]
        taken = bytearray(sentences)
        held: dict[int, int] = {}  # the positions of the blocks' facts
        for block, start in enumerate(starts):
            run = list(range(start, start + size))
            taken[start : start + size] = b"\1" * size
            rng.shuffle(run)
            first = self._members(block, sentences).start * self._world.sentences
            held.update(zip(range(first, first + size), run, strict=True))
        free = [position for position in range(sentences) if not taken[position]]
        rng.shuffle(free)
        positions = [held[item] if item in held else free.pop() for item in range(sentences)]
        facts = self._fact_count(sentences)
        ordered = [""] * sentences
        items = self._facts.first(facts) + self._fillers.first(sentences - facts)
        for position, sentence in zip(positions, items, strict=True):
            ordered[position] = sentence
        ends = list(accumulate(len(sentence) + 1 for sentence in ordered))  # with the space behind each
        spans = ((ends[at] - 1 - len(ordered[at]), ends[at] - 1) for at in positions[:facts])
        last = sentences - size
        if self._uniform:
            depths = tuple(round(start / last, 4) if last else 0.5 for start in starts)
        else:
            depths = (float(self._plan.depth),)
        return _Context(" ".join(ordered), tuple(spans), depths)


class _Stream:
    """Sentences drawn as they are needed, with their cumulative number of tokens."""

    def __init__(self, source: Iterable[str], tokenizer: Tokenizer) -> None:
        self._source, self._tokenizer = iter(source), tokenizer
        self._sentences: list[str] = []
        self._totals = [0]

    def tokens(self, count: int) -> int:
        while len(self._sentences) < count:
            sentence = next(self._source)
            self._sentences.append(sentence)
            self._totals.append(self._totals[-1] + _text_tokens(self._tokenizer, sentence))
        return self._totals[count]

    def first(self, count: int) -> list[str]:
        self.tokens(count)
        return self._sentences[:count]


def filler_sentences(rng: Rng) -> Iterator[str]:
    """Yields sentences that state nothing about any entity, without end."""
    while True:
        yield rng.choice(FILLERS).format(**{slot: rng.choice(words) for slot, words in SLOTS.items()})


def _text_tokens(tokenizer: Tokenizer, text: str) -> int:
    """Estimates the tokens of a text in the middle of another: the sum over its words, each after a space."""
    return sum(_word_tokens(tokenizer, word) for word in text.split())


@lru_cache(maxsize=8192)  # the worlds write about 700 words, some with a full stop: room for a few tokenizers
def _word_tokens(tokenizer: Tokenizer, word: str) -> int:
    if tokenizer.unk_id is not None and tokenizer.unk_id in tokenizer.encode(word):
        raise ConfigError(
            f"the tokenizer does not know '{word}', which this world writes; list the word in the world's `forms`, "
            "from which the words tokenizer is made, or choose another tokenizer"
        )
    return tokenizer.count(f" {word}")
