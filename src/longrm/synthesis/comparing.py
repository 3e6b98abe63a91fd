"""Answers that were scored alone become comparisons over one context."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from longrm.synthesis.fates import Fates
from longrm.types import Comparison, Message, Span, message_text

OPENING = "A document comes first, and a question about it after it.\n\n"
CLOSING = "\n\nHere the document ends. Rely on it alone.\n\n"
ASKING = "Question: "
_ROUNDING = 1e-9  # gaps of scores are no more exact


def plain_prompt(context: str, question: str, about: str = "") -> tuple[Message, ...]:
    """What a policy was asked: the context first, then the question; the question alone where there is no context.

    Args:
        context: Of any length.
        question: What is asked about it.
        about: Which part of the context the question is about; empty where that need not be said.
    """
    if not context:
        return ({"role": "user", "content": question},)
    hint = f"{about}\n\n" if about else ""
    return ({"role": "user", "content": f"{OPENING}{context}{CLOSING}{hint}{ASKING}{question}"},)


def apart(scores: Sequence[float], least_gap: float, fates: Fates) -> list[tuple[int, int]]:
    """Every two answers that a preference is known of, by their numbers, the better one first; counts the others.

    Args:
        scores: In points, one an answer.
        least_gap: Points by which two scores must differ.
        fates: Counts pairs under "pairs".
    """
    found = []
    for one, other in combinations(range(len(scores)), 2):
        if abs(scores[one] - scores[other]) < least_gap - _ROUNDING:
            fates.drop("pairs", "tie" if scores[one] == scores[other] else "too_close")
        else:
            fates.keep("pairs")
            found.append((one, other) if scores[one] > scores[other] else (other, one))
    return found


def comparison(
    identity: str,
    group: str,
    prompt: tuple[Message, ...],
    texts: Sequence[str],
    scores: Sequence[float],
    metadata: Mapping[str, Any],
    *,
    context: tuple[int, int] | None,
    question: str,
    evidence: Sequence[tuple[int, int]],
) -> Comparison:
    """Two answers to one prompt, ranked by their `judge_scores`, and how many `points_apart` they are.

    Args:
        identity: Unique in its run.
        group: The document or context that this comparison shares with others.
        prompt: As `plain_prompt` words it.
        texts: The answers.
        scores: Theirs, which differ.
        metadata: What else is known; what is None is left out.
        context: Characters of the last message that the context takes; None where there is none.
        question: Which ends the prompt.
        evidence: Characters of the parts of the context that decide.
    """
    last = len(prompt) - 1
    end = len(message_text(prompt[last]))
    told = {**metadata, "judge_scores": list(scores), "points_apart": abs(scores[0] - scores[1])}
    return Comparison(
        id=identity,
        group=group,
        prompt=prompt,
        responses=tuple(({"role": "assistant", "content": text},) for text in texts),
        ranks=(1, 2) if scores[0] > scores[1] else (2, 1),
        metadata={key: value for key, value in told.items() if value is not None},
        context=() if context is None else (Span(last, *context),),
        question=Span(last, end - len(question), end),
        evidence=tuple(Span(last, *span) for span in evidence),
    )
