"""What a world is: units of facts that a context states, and the claims that can be made about them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError
from longrm.rng import Draws
from longrm.types import Comparison
from longrm.worlds.vocabulary import ENTITIES, RECORDS, VALUES

if TYPE_CHECKING:  # plans name worlds, and worlds read plans
    from longrm.worlds.generator import WorldPlan


@dataclass(frozen=True, slots=True)
class Holder:
    """An entity and the value that the context gives it."""

    entity: str
    value: str


@dataclass(frozen=True, slots=True)
class Unit:
    """The facts that belong together.

    Attributes:
        sentences: What a context says of the unit; always `WorldRules.sentences` of them.
        holders: The entities of the unit, in the order of their records.
    """

    sentences: tuple[str, ...]
    holders: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """A question's subject and its right value.

    Attributes:
        subject: As it stands in questions and responses, such as "the partner of Alora".
        value: The value that the context gives the subject.
        evidence: Which sentences of the unit prove it.
    """

    subject: str
    value: str
    evidence: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorldRules:
    """The rules of one world: the facts that its contexts state, and what can be asked about them.

    Attributes:
        unit: Words the facts of `entities` holders.
        claim: Chooses what can be asked about a unit.
        forms: Every sentence form that `unit` fills in, such as "{entity} has {value}.", and every other word that
            this world alone writes: the `words` tokenizer knows these.
        sentences: Sentences of a unit.
        entities: Entities of a unit.
        anywhere: Whether the alternative of a pair may stand anywhere in the context. Otherwise it stands beside
            the evidence, so that being near the evidence does not tell the right value.
        subject: How questions and responses speak of an entity; one `{}`.
        asks: What is asked, for lists.
        similar_to: The benchmark of the field that is like it, for lists.
    """

    unit: Callable[[tuple[Holder, ...], Draws], Unit]
    claim: Callable[[Unit, Draws], Claim]
    forms: tuple[str, ...]
    sentences: int = 1
    entities: int = 1
    anywhere: bool = False
    subject: str = "{}"
    asks: str = "the access code of a subject"
    similar_to: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """What the `words` tokenizer must know."""
        return (self.subject, *self.forms)

    def check(self, plan: "WorldPlan") -> None:
        """Refuses a plan that this world cannot make.

        Raises:
            ConfigError: Too many responses for the values that there are, or a kind of text.
        """
        if plan.texts or plan.haystack:
            raise ConfigError(
                f"{plan.world} writes sentences of seven words alone: leave out the kind of text and the haystack, or "
                "name a world in prose (longrm world --list)"
            )
        values = len(VALUES)
        most = max(n for n in range(3, values) if claims_needed(n) * self.entities <= values)
        if not 2 <= plan.responses <= most:
            raise ConfigError(
                f"{plan.world} can rank 2 to {most} responses, got {plan.responses}: all claims of a "
                f"question need values of their own, and there are {values}"
            )

    def group(self, plan: "WorldPlan", index: int, tokenizer: Tokenizer) -> list[Comparison]:
        """Makes a group of comparisons about one context.

        Raises:
            ConfigError: The plan's length is too short for its questions.
        """
        from longrm.worlds.sentence_groups import sentence_group  # late: it reads these rules

        return sentence_group(self, plan, index, tokenizer)


def claims_needed(responses: int) -> int:
    """How many units one question is about: the right one and a wrong one, or N x (N - 1)."""
    return 2 if responses == 2 else responses * (responses - 1)


def units(world: WorldRules, draws: Draws) -> Iterator[Unit]:
    """Yields units until the entities run out, each entity once.

    Values go round in one random order, so that any 64 entities in a row have distinct values.
    """
    holders = map(Holder, draws.order(ENTITIES), cycle(draws.order(VALUES)))
    for group in zip(*[holders] * world.entities, strict=True):
        unit = world.unit(group, draws)
        assert len(unit.sentences) == world.sentences, (
            f"a unit of {len(unit.sentences)} sentences, where the world's entry says sentences={world.sentences}"
        )
        yield unit


def claim_about(world: WorldRules, unit: Unit, draws: Draws) -> Claim:
    """What can be asked about a unit, in the words that the world's entry gives to its subjects."""
    claim = world.claim(unit, draws)
    subjects = {world.subject.format(holder.entity) for holder in unit.holders}
    assert claim.subject in subjects, (
        f"a claim about {claim.subject!r}, where the world's entry says subject={world.subject!r}"
    )
    assert all(0 <= sentence < world.sentences for sentence in claim.evidence), (
        "evidence is a sentence of the unit"
    )
    return claim


def record(holder: Holder, draws: Draws) -> str:
    """One sentence that gives an entity its value."""
    return draws.one(RECORDS).format(entity=holder.entity, value=holder.value)
