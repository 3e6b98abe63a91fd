"""A generated question as a comparison; both families of worlds end here."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from longrm.types import Comparison, Criterion, Span

if TYPE_CHECKING:  # plans name worlds, and worlds read plans
    from longrm.worlds.generator import WorldPlan


def ending_of(question: str) -> str:
    """What follows a context."""
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
    **more: Any,
) -> Comparison:
    """Makes question `number` about context `index` of a plan a comparison; its id tells nothing of the gold.

    Args:
        plan: What is generated.
        index: Of the group.
        number: Of the question within its group.
        context: Its text.
        question: What is asked about it.
        responses: In the order in which they are kept.
        ranks: 1 = best.
        evidence: Characters of the context, (start, end) each; none is named where the context is an unrelated one.
        depth: Where the evidence stands, 0 to 1.
        rubrics: The criteria by which the responses are to be judged, if the world has some.
        more: Further metadata.
    """
    content = context + ending_of(question)
    group_id = f"{plan.name}-{index:06d}"
    unrelated = {"unrelated": True} if plan.unrelated else {}
    return Comparison(
        id=f"{group_id}-{number}",
        group=group_id,
        prompt=({"role": "user", "content": content},),
        responses=tuple(({"role": "assistant", "content": response},) for response in responses),
        ranks=ranks,
        metadata={
            "task": plan.world,
            "length": plan.length,
            "depth": depth,
            "seed": plan.seed,
            **more,
            **unrelated,
        },
        context=(Span(0, 0, len(context)),),
        question=Span(0, len(context) + 2, len(content)),
        evidence=tuple(Span(0, start, end) for start, end in sorted(evidence)),
        rubrics=rubrics,
    )
