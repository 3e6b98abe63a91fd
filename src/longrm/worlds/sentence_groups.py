"""Groups of comparisons of the worlds whose sentences are all of seven words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longrm.data.tokenizing import Tokenizer
from longrm.rng import Draws
from longrm.types import Comparison
from longrm.worlds.contexts import Block, Depth, Draft, WorldContext, fit, text_tokens
from longrm.worlds.facts import WorldRules, claims_needed
from longrm.worlds.questions import WorldQuestion, ask, question_about
from longrm.worlds.rows import ending_of, world_comparison
from longrm.worlds.vocabulary import ENTITIES, VERSION

if TYPE_CHECKING:  # plans name worlds, and worlds read plans
    from longrm.worlds.generator import WorldPlan


def sentence_group(
    world: WorldRules, plan: "WorldPlan", index: int, tokenizer: Tokenizer
) -> list[Comparison]:
    """Makes group number `index` of a plan; see `longrm.worlds.generator.group`.

    Raises:
        ConfigError: The plan's length is too short for its questions.
    """
    questioner = _Questioner(world, plan, index, tokenizer)
    sentences, context = questioner.fit(questioner.questions)
    depths = context.depths
    placed = questioner.questions(sentences)
    if plan.unrelated:
        _, context = _Questioner(world, plan, index + 1, tokenizer).fit(lambda _: placed)
    return [
        world_comparison(
            plan,
            index,
            number,
            context=context.text,
            question=one.question.text,
            responses=one.question.responses,
            ranks=one.question.ranks,
            evidence=() if plan.unrelated else [context.facts[fact] for fact in one.facts],
            depth=depths[number % len(depths)],
        )
        for number, one in enumerate(placed)
    ]


@dataclass(frozen=True, slots=True)
class _PlacedQuestion:
    """A question, and the places among a context's facts of those that decide."""

    question: WorldQuestion
    facts: tuple[int, ...]


class _Questioner:
    """Asks about the context with number `index` of a plan."""

    def __init__(self, world: WorldRules, plan: "WorldPlan", index: int, tokenizer: Tokenizer) -> None:
        self._plan, self._tokenizer, self._world = plan, tokenizer, world
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
            texts = (ending_of(placed.question.text) for placed in questions(sentences))
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
