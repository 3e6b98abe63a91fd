"""A question about some units, its responses, and how they rank."""

from collections.abc import Sequence
from dataclasses import dataclass

from longrm.rng import Draws
from longrm.worlds.facts import Claim, Unit, WorldRules, claim_about
from longrm.worlds.vocabulary import ANSWER, CLAIM, NUMBERS, QUESTION, QUESTION_MANY


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence that decides the order: which unit of those asked about, and which of its sentences."""

    unit: int
    sentence: int


@dataclass(frozen=True, slots=True)
class WorldQuestion:
    """A question, its responses in random order with their ranks, and the facts that decide between them."""

    text: str
    responses: tuple[str, ...]
    ranks: tuple[int, ...]
    evidence: tuple[Fact, ...]


def question_about(subject: str, responses: int) -> str:
    """Words the question that so many responses answer."""
    if responses == 2:
        return QUESTION.format(subject=subject)
    return QUESTION_MANY.format(number=NUMBERS[responses - 1], subject=subject)


def ask(world: WorldRules, units: Sequence[Unit], responses: int, draws: Draws) -> WorldQuestion:
    """Asks about `claims_needed(responses)` units.

    With two responses, the question is about the first unit and the rejected response names the value that is
    right for the second.

    With N >= 3 responses the question names nobody ("Name three people ..."), and every response makes
    m = N - 1 claims about entities of its own. Were all responses about the same m facts, they would share
    their right values, and whoever sees only the responses could rank them by what most of them say. So all
    N x m entities and all N x m values differ. The response of rank r makes N - r right claims, at random
    positions; the entities of the wrong claims trade their values round a random ring, so that each has a
    value of another entity of the same context. What is left to tell the ranks is the context alone.
    """
    claims = [claim_about(world, unit, draws) for unit in units]
    if responses == 2:
        return _pair(claims, draws)
    order = list(range(len(claims)))
    draws.shuffle(order)
    values = {index: claims[index].value for index in order}
    answers, wrong = [], []
    for rank in range(1, responses + 1):
        claimed = [order.pop() for _ in range(responses - 1)]
        wrong += claimed[: rank - 1]
        draws.shuffle(claimed)
        answers.append((rank, claimed))
    draws.shuffle(wrong)
    for index, other in zip(wrong, wrong[1:] + wrong[:1], strict=True):
        values[index] = claims[other].value
    draws.shuffle(answers)
    texts = [_list([(claims[index].subject, values[index]) for index in claimed]) for _, claimed in answers]
    question = question_about(world.subject.format("each"), responses)
    evidence = tuple(Fact(unit, sentence) for unit, claim in enumerate(claims) for sentence in claim.evidence)
    return WorldQuestion(question, tuple(texts), tuple(rank for rank, _ in answers), evidence)


def _pair(claims: Sequence[Claim], draws: Draws) -> WorldQuestion:
    right, other = claims
    ranked = [(1, right.value), (2, other.value)]
    draws.shuffle(ranked)
    return WorldQuestion(
        question_about(right.subject, 2),
        tuple(ANSWER.format(subject=right.subject, value=value) for _, value in ranked),
        tuple(rank for rank, _ in ranked),
        tuple(Fact(0, sentence) for sentence in right.evidence),
    )


def _list(pairs: Sequence[tuple[str, str]]) -> str:
    """Joins claims as "A, B and C."."""
    *first, last = (CLAIM.format(subject=subject, value=value) for subject, value in pairs)
    text = f"{', '.join(first)} and {last}."
    return text[0].upper() + text[1:]
