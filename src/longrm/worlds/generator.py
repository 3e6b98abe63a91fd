"""Groups of comparisons: several questions about one generated context."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, nearest
from longrm.rng import Draws
from longrm.types import Comparison, Span
from longrm.worlds.contexts import Block, Depth, Draft, WorldContext, fit, text_tokens
from longrm.worlds.known_worlds import WORLDS
from longrm.worlds.questions import WorldQuestion, ask, claims_needed, question_about
from longrm.worlds.vocabulary import ENTITIES, VALUES, VERSION

MOST_TOKENS, MOST_PER_GROUP, MOST_ROWS = 10_000_000, 10_000, 100_000_000
"""What is generated at most: tokens of a context and questions about it, which are held in memory, and comparisons."""


@dataclass(frozen=True, slots=True)
class WorldPlan:
    """What to generate.

    Attributes:
        world: A name of `WORLDS`.
        length: Tokens of the user message: the context and the longest question of the group. Never more, and
            so few less that no further sentence fits.
        responses: N >= 2. Two are a pair; more are graded by how many of their N - 1 claims are right.
        depth: Where the block of facts in question stands, 0 = start to 1 = end; with a number, all questions
            of a group are about the one block there. "uniform" spreads the questions evenly over all depths.
        per_group: Comparisons that share a context.
        seed: Other seeds give other contexts.
        unrelated: A control: the questions and responses are those of the same plan without it, the context
            is that of the next group. No model can do better than chance.

    Raises:
        ConfigError: A value is out of its range.
    """

    world: str
    length: int
    responses: int = 2
    depth: Depth = "uniform"
    per_group: int = 1
    seed: int = 0
    unrelated: bool = False

    def __post_init__(self) -> None:
        if self.world not in WORLDS:
            raise ConfigError(f"no world '{self.world}'; {nearest(self.world, WORLDS)}")
        if self.depth != "uniform" and not (isinstance(self.depth, int | float) and 0 <= self.depth <= 1):
            raise ConfigError(f"depth must be from 0 (start) to 1 (end) or 'uniform', got {self.depth!r}")
        if self.length < 1 or self.per_group < 1:
            raise ConfigError(f"length and per_group must be positive, got {self.length}, {self.per_group}")
        if self.length > MOST_TOKENS or self.per_group > MOST_PER_GROUP:
            raise ConfigError(
                f"length can be {MOST_TOKENS:,} tokens and per_group {MOST_PER_GROUP:,} at most, for a group is made "
                f"in memory; got {self.length:,} and {self.per_group:,}"
            )
        most = self._most_responses()
        if not 2 <= self.responses <= most:
            raise ConfigError(
                f"{self.world} can rank 2 to {most} responses, got {self.responses}: all claims of a "
                f"question need values of their own, and there are {len(VALUES)}"
            )

    def _most_responses(self) -> int:
        entities = WORLDS[self.world].entities
        return max(n for n in range(3, len(VALUES)) if claims_needed(n) * entities <= len(VALUES))

    @property
    def name(self) -> str:
        """Begins the ids of the plan's comparisons; tells nothing of the gold."""
        depth = "" if self.depth == "uniform" else f"-d{float(self.depth)}"
        control = "-unrelated" if self.unrelated else ""
        return f"{self.world}-{self.length}-{self.responses}{depth}-s{self.seed}{control}"


def generate(plan: WorldPlan, n: int, tokenizer: Tokenizer) -> Iterator[Comparison]:
    """Yields `n` comparisons, `plan.per_group` a context; the last context may have fewer.

    Raises:
        ConfigError: So many are never made, or the plan's length is too short for its questions.
    """
    if n > MOST_ROWS:
        raise ConfigError(f"{n:,} comparisons are more than are made, which is {MOST_ROWS:,}; ask for fewer")
    groups = (group(plan, index, tokenizer) for index in range(-(-n // plan.per_group)))
    return islice((comparison for members in groups for comparison in members), n)


def group(plan: WorldPlan, index: int, tokenizer: Tokenizer) -> list[Comparison]:
    """Makes group number `index` of a plan: comparisons about one context.

    The result depends on the version of the worlds, the plan, the index and the tokenizer's counts alone, so
    groups may be made in any order and on any machine.

    Raises:
        ConfigError: The plan's length is too short for its questions.
    """
    questioner = _Questioner(plan, index, tokenizer)
    sentences, context = questioner.fit(questioner.questions)
    depths = context.depths
    placed = questioner.questions(sentences)
    if plan.unrelated:
        _, context = _Questioner(plan, index + 1, tokenizer).fit(lambda _: placed)
    return [
        _comparison(plan, index, number, question, context, depths[number % len(depths)])
        for number, question in enumerate(placed)
    ]


@dataclass(frozen=True, slots=True)
class _PlacedQuestion:
    """A question, and the places among a context's facts of those that decide."""

    question: WorldQuestion
    facts: tuple[int, ...]


class _Questioner:
    """Asks about the context with number `index` of a plan."""

    def __init__(self, plan: WorldPlan, index: int, tokenizer: Tokenizer) -> None:
        self._plan, self._tokenizer, self._world = plan, tokenizer, WORLDS[plan.world]
        depth: Depth = plan.depth if plan.depth == "uniform" else float(plan.depth)
        self._key = (
            "longrm worlds",
            VERSION,
            plan.world,
            plan.length,
            plan.responses,
            depth,
            plan.per_group,
            plan.seed,
            index,
        )
        claims = claims_needed(plan.responses)
        self._single_unit = plan.responses == 2 and self._world.anywhere
        self._block = Block(
            1 if self._single_unit else claims, plan.per_group, least=claims * self._world.sentences
        )
        self._draft = Draft(self._world, self._block, depth, self._key, tokenizer)
        self._questions: dict[tuple[int, int], list[_PlacedQuestion]] = {}

    def fit(self, questions: Callable[[int], list[_PlacedQuestion]]) -> tuple[int, WorldContext]:
        """Finds how many sentences the plan's length allows before the longest question, and the context."""

        def ending(sentences: int) -> str:
            texts = (_ending(placed.question) for placed in questions(sentences))
            return max(texts, key=lambda text: text_tokens(self._tokenizer, text))

        typical = question_about(self._world.subject.format(ENTITIES[0]), self._plan.responses)
        guess = text_tokens(self._tokenizer, typical)
        return fit(self._draft, self._plan.length, ending, guess, self._tokenizer)

    def questions(self, sentences: int) -> list[_PlacedQuestion]:
        """Asks `per_group` questions about a context of so many sentences, going round its blocks."""
        self._draft.tokens(sentences)  # draws the units
        key = self._draft.block_count(sentences), self._draft.known(sentences)
        if key not in self._questions:
            self._questions[key] = self._ask(sentences, *key)
        return self._questions[key]

    def _ask(self, sentences: int, blocks: int, known: int) -> list[_PlacedQuestion]:
        """Asks about every block; an alternative that stands apart is one of the first `known` units."""
        draws, world = Draws(*self._key, "questions"), self._world
        turns = [draws.below(known - 1) for _ in range(blocks)] if self._single_unit else []
        questions = []
        for number in range(self._plan.per_group):
            block = number % blocks
            chosen = list(self._draft.members(block, sentences))
            draws.shuffle(chosen)
            if self._single_unit:
                other = (turns[block] + number // blocks) % (known - 1)
                chosen.append(other + (other >= chosen[0]))  # any but the block's own unit
            question = ask(world, [self._draft.units[unit] for unit in chosen], self._plan.responses, draws)
            for text in question.responses:
                text_tokens(self._tokenizer, text)  # refuses a word that the tokenizer does not know
            facts = (chosen[fact.unit] * world.sentences + fact.sentence for fact in question.evidence)
            questions.append(_PlacedQuestion(question, tuple(facts)))
        return questions


def _ending(question: WorldQuestion) -> str:
    return f"\n\n{question.text}"


def _comparison(
    plan: WorldPlan, index: int, number: int, placed: _PlacedQuestion, context: WorldContext, depth: float
) -> Comparison:
    question, text = placed.question, context.text
    content = text + _ending(question)
    metadata: dict[str, Any] = {"task": plan.world, "length": plan.length, "depth": depth, "seed": plan.seed}
    if plan.unrelated:
        metadata["unrelated"] = True
    evidence = () if plan.unrelated else sorted(context.facts[fact] for fact in placed.facts)
    group_id = f"{plan.name}-{index:06d}"
    return Comparison(
        id=f"{group_id}-{number}",
        group=group_id,
        prompt=({"role": "user", "content": content},),
        responses=tuple(({"role": "assistant", "content": response},) for response in question.responses),
        ranks=question.ranks,
        metadata=metadata,
        context=(Span(0, 0, len(text)),),
        question=Span(0, len(text) + 2, len(content)),
        evidence=tuple(Span(0, start, end) for start, end in evidence),
    )
