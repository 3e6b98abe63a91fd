"""Judging prompts with their gold verdicts, as rows to train judges on, and what such a prompt may ask for besides.

Rows are in TRL's conversational prompt-only format; `longrm.verdict_reward` reads their other columns.
"""

import re
from collections.abc import Sequence
from itertools import combinations, groupby
from string import ascii_uppercase as LETTERS
from typing import Any

from longrm.data.tokenizing import Tokenizer
from longrm.judging.format import JudgingFormat
from longrm.types import Comparison, Message, message_text, presented_order, query_of, text_of

ASK_ANSWER = (
    "Before anything else, write your own answer to the last turn between <answer> and </answer>, as short as "
    "possible."
)
"""Ends a prompt that asks a judge to commit to an answer first, as in S2J (arXiv 2509.22099)."""

ASK_CONFIDENCE = (
    "On the line before the verdict, write your confidence that it is correct, from 0 to 1, in this format:\n"
    "Confidence: 0.8"
)
"""Ends a prompt that asks for a confidence, as in RLCR (arXiv 2507.16806)."""

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)
_CONFIDENCE = re.compile(
    r"^[\s*_]*(?:<confidence>|(?:my\s+)?confidence[*_\s]*[:=])[*_\s]*(\d*\.?\d+)\s*(%?)\s*(?:</confidence>)?[\s*_.]*$",
    re.IGNORECASE | re.MULTILINE,
)


def committed_answer(text: str, format: JudgingFormat) -> str | None:
    """The first text between <answer> and </answer> before the verdict in brackets; None without one."""
    verdicts = [*format.marker.finditer(text)]
    found = _ANSWER.search(text, 0, verdicts[-1].start() if verdicts else len(text))
    return found[1].strip() if found else None


def stated_confidence(text: str) -> float | None:
    """The last confidence on a line of its own, as 0.8, 80% or in tags; None if there is none from 0 to 1."""
    found = [*_CONFIDENCE.finditer(text)]
    if not found:
        return None
    value = float(found[-1][1]) / (100 if found[-1][2] else 1)
    return value if value <= 1 else None


def judge_prompt_rows(
    comparison: Comparison,
    format: JudgingFormat,
    *,
    tokenizer: Tokenizer,
    seed: int = 0,
    solve: bool = False,
    confidence: bool = False,
) -> list[dict[str, Any]]:
    """Renders a comparison as rows of judging prompts with their gold verdicts.

    Pairwise, every pair of responses that gold orders makes two rows, one for each order. Listwise, all responses are
    shown in an order drawn from the seed and in its reverse. Pointwise, every response makes a row. There is no row if
    gold does not order any two responses. docs/judge_training.md describes the columns; `solve` adds `answer`.
    """
    ranks = comparison.ranks
    assert ranks is not None, "gold must be known"
    if len(set(ranks)) == 1:
        return []
    orders: list[tuple[int, ...]]
    if format.pointwise:
        orders = [(index,) for index in range(len(ranks))]
    elif format.name == "pairwise":
        ordered = [pair for pair in combinations(range(len(ranks)), 2) if ranks[pair[0]] != ranks[pair[1]]]
        orders = [order for one, other in ordered for order in ((one, other), (other, one))]
    else:
        drawn = presented_order(comparison, seed)
        orders = [drawn, drawn[::-1]]
    asked = [text for text, wanted in ((ASK_ANSWER, solve), (ASK_CONFIDENCE, confidence)) if wanted]
    rows = []
    for order in orders:
        (messages,) = format.render(query_of(comparison, order))
        prompt = [*messages[:-1], _extended(messages[-1], asked)]
        shown = [ranks[index] for index in order]
        rows.append(
            {
                "prompt": prompt,
                "gold": str(shown[0])
                if format.pointwise
                else verdict_text(format, [-rank for rank in shown]),
                "order": [*order],
                "id": comparison.id,
                "group": comparison.group,
                "length": len(tokenizer.generation_ids(prompt)),
                "format": format.name,
                **({"answer": gold_answers(comparison)} if solve else {}),
            }
        )
    return rows


def _extended(message: Message, texts: Sequence[str]) -> dict[str, Any]:
    return {**message, "content": "\n\n".join([message_text(message), *texts])}


def stated_answers(comparison: Comparison) -> list[str]:
    """The gold answers in the data (`answer` in the metadata, a text or several), any of which is right."""
    stated = comparison.metadata.get("answer")
    several = stated if isinstance(stated, list | tuple) else [stated]
    return [
        str(answer) for answer in several if isinstance(answer, str | int | float) and str(answer).strip()
    ]


def gold_answers(comparison: Comparison) -> list[str]:
    """The stated answers; by default the best responses. Gold must be known."""
    if stated := stated_answers(comparison):
        return stated
    ranks = comparison.ranks
    assert ranks is not None, "gold must be known"
    return [
        text_of(response)
        for response, rank in zip(comparison.responses, ranks, strict=True)
        if rank == min(ranks)
    ]


def verdict_text(format: JudgingFormat, points: Sequence[float]) -> str:
    """A verdict as the format asks for it, from one number per presented response, higher is better."""
    if format.pointwise:
        return f"{points[0]:g}"
    if format.name == "pairwise":
        return "A" if points[0] > points[1] else "B" if points[0] < points[1] else "C"
    best_first = sorted(range(len(points)), key=lambda position: -points[position])
    blocks = groupby(best_first, key=lambda position: points[position])
    return " > ".join(" = ".join(LETTERS[position] for position in block) for _, block in blocks)
