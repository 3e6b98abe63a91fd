"""How a world's context, question and responses become a comparison."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from longrm.types import Comparison, Criterion, Span

if TYPE_CHECKING:  # a plan checks itself against the registry of worlds, which are made of these functions
    from longrm.worlds.generator import WorldPlan


def ending_of(question: str) -> str:
    """What follows a context in the user message."""
    return f"\n\n{question}"


def world_comparison(
    plan: "WorldPlan",
    index: int,
    number: int,
    *,
    context: str,
    question: str,
    responses: Sequence[str],
    ranks: tuple[int, ...],
    evidence: Iterable[tuple[int, int]],
    depth: float,
    rubrics: tuple[Criterion, ...] = (),
    answer: str | Sequence[str] = "",
    **metadata: Any,
) -> Comparison:
    """Makes question `number` about context `index` a comparison.

    Args:
        plan: What is generated.
        index: The group's number.
        number: The question's number within its group.
        context: The context.
        question: The question.
        responses: In the order in which they are stored.
        ranks: 1 = best.
        evidence: Characters of the context, (start, end) each; empty where the context is an unrelated one.
        depth: Where the evidence is, 0 to 1.
        rubrics: The criteria by which the responses are judged, if the world has any.
        answer: The gold answer, in several forms if need be; empty if the question has no single one.
        metadata: Further metadata.
    """
    content = context + ending_of(question)
    group_id = f"{plan.name}-{index:06d}"
    own = {"task": plan.world, "length": plan.length, "depth": depth, "seed": plan.seed}
    gold = {"answer": answer} if answer else {}
    return Comparison(
        id=f"{group_id}-{number}",
        group=group_id,
        prompt=({"role": "user", "content": content},),
        responses=tuple(({"role": "assistant", "content": response},) for response in responses),
        ranks=ranks,
        metadata={**own, **gold, **metadata, **({"unrelated": True} if plan.unrelated else {})},
        context=(Span(0, 0, len(context)),),
        question=Span(0, len(context) + 2, len(content)),
        evidence=tuple(Span(0, start, end) for start, end in sorted(evidence)),
        rubrics=rubrics,
    )
