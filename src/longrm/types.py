"""The types that all modules share: messages, comparisons, queries and judgments.

Nothing here imports torch, reads a file or knows a format.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, assert_never

from longrm.rng import key_hash

Message = Mapping[str, Any]
"""One `{role, content}` turn. Unknown fields (`tool_calls`, `name`) and list content are kept untouched."""

Response = tuple[Message, ...]
"""What a policy answered to a prompt: usually one assistant message.

A trajectory is a response of several: turns of the assistant with what its tools, or the user, answered in between.
"""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that a rubric asks of a response, and what it counts; below 0 where a response should not have it."""

    text: str
    weight: float = 1.0


Tool = Mapping[str, Any]
"""A tool that a prompt offers: `{"type": "function", "function": {...}}`, where `function` holds its JSON schema."""


MAX_LENGTH = 1 << 40
"""Tokens of the longest length bucket: more than any context has, and few enough for every table and figure."""


class Outcome(StrEnum):
    """How one query ended. `ERROR` is never scored and leaves a run incomplete; all are counted."""

    ANSWERED = "answered"
    UNPARSED = "unparsed"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    TOO_LONG = "too_long"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` to `end` (exclusive) of the text of one message of a prompt."""

    message: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.message < 0 or not 0 <= self.start <= self.end:
            raise ValueError(f"a span needs message >= 0 and 0 <= start <= end, got {self}")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A prompt, its N >= 2 responses and, where known, their gold order.

    Attributes:
        id: Unique within a data set.
        group: The document or context that this comparison shares with others; statistics cluster on it.
        prompt: The messages that every response answers.
        responses: N >= 2 responses, each a tuple of messages.
        ranks: One whole number a response, 1 = best, equal numbers tie; None when the order is unknown.
        metadata: Task, target `length` in tokens, evidence `depth` (0 = start, 1 = end), source.
        context: Spans of the long context in the prompt, if known.
        question: Span of the question in the prompt, if known.
        evidence: Spans of the parts of the context that decide the order, if known.
        role: "judgment" marks training rows whose responses are judgments; evaluation refuses them.
        tools: The tools that the prompt offers.
        rubrics: The criteria by which these responses are to be judged, if its data names some.
    """

    id: str
    group: str
    prompt: tuple[Message, ...]
    responses: tuple[Response, ...]
    ranks: tuple[int, ...] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    context: tuple[Span, ...] = ()
    question: Span | None = None
    evidence: tuple[Span, ...] = ()
    role: Literal["response", "judgment"] = "response"
    tools: tuple[Tool, ...] = ()
    rubrics: tuple[Criterion, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("the prompt has no message")
        if len(self.responses) < 2:
            raise ValueError(f"a comparison needs at least 2 responses, got {len(self.responses)}")
        if self.ranks is not None:
            if len(self.ranks) != len(self.responses):
                raise ValueError(f"{len(self.ranks)} ranks for {len(self.responses)} responses")
            if min(self.ranks) < 1:
                raise ValueError(f"ranks count from 1 (the best), got {min(self.ranks)}")

    def best_first(self) -> tuple[int, ...]:
        """Indices of the responses from best to worst; ties keep their order. Needs known ranks."""
        assert self.ranks is not None, "best_first needs gold ranks"
        ranks = self.ranks
        return tuple(sorted(range(len(ranks)), key=lambda index: ranks[index]))


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A prompt, with the tools that it offers, and the completion to imitate."""

    id: str
    prompt: tuple[Message, ...]
    completion: Response
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class Query:
    """What a reward model is given: no gold, no metadata, and no order that gives the gold away.

    Attributes:
        id: The comparison's id.
        prompt: The messages that every response answers.
        responses: In presented order.
        context: Spans of the long context in the prompt, if known: what may be cut or compressed.
        question: Span of the question in the prompt, if known.
        trial: The number of this trial of the comparison, from 0: its orders, and the votes within an order.
        tools: The tools that the prompt offers.
        rubrics: The criteria that its data names, of which a judge knows only if it is asked by them.
        criterion: What alone a judge is asked about; by default all that matters.
    """

    id: str
    prompt: tuple[Message, ...]
    responses: tuple[Response, ...]
    context: tuple[Span, ...] = ()
    question: Span | None = None
    trial: int = 0
    tools: tuple[Tool, ...] = ()
    rubrics: tuple[Criterion, ...] = ()
    criterion: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """What was cut out of a context that did not fit.

    Attributes:
        policy: What was cut: "middle", "left" (the beginning), "right" (the end), or "compress" (what mattered least).
        tokens: How many tokens were cut, as the model counts them; approximate tokens where it was compressed.
    """

    policy: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Judgment:
    """What a reward model answers to a query. Responses are counted in the order in which the query presents them.

    Attributes:
        outcome: How the query ended.
        scores: One number per response, higher is better; empty unless answered with scores.
        ranking: Indices of the responses from best to worst; empty unless answered with a ranking.
        explanation: What a generative model wrote: the whole text of all attempts, thinking included.
        detail: Why there is no verdict, in one line; empty when there is one.
        prompt_tokens: Tokens of the prompt as the model counts them; None where it counts none.
        cached_tokens: How many of them were read for an earlier query, and not again.
        cut: What was cut out of the context to make it fit; None where nothing was.
        attempts: How often the model was queried until there was a verdict, or it was given up.
        contradicted: Whether the explanation argues for another verdict than the one given; None where that cannot be
            decided.
        criteria: What each criterion of a rubric adds to the scores, one row a criterion; empty where none was asked.
    """

    outcome: Outcome
    scores: tuple[float, ...] = ()
    ranking: tuple[int, ...] = ()
    explanation: str = ""
    detail: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    cut: Cut | None = None
    attempts: int = 1
    contradicted: bool | None = None
    criteria: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Judgment):
    """A judgment in the comparison's own order of responses, with the order in which they were presented.

    Attributes:
        order: The presented order: entry k is the index, in the comparison, of the response shown at position k.
    """

    order: tuple[int, ...] = ()


Scale = Literal["logit", "points", "verdict", "none"]
"""What a difference of two scores means: log-odds; points of a rubric; shares of votes; nothing but an order."""


def are_ratings(scale: Scale) -> bool:
    """Whether scores are given to responses, and not read from a verdict about them."""
    match scale:
        case "logit" | "points" | "none":
            return True
        case "verdict":
            return False
        case unknown:
            assert_never(unknown)


def presented_order(comparison: Comparison, seed: int) -> tuple[int, ...]:
    """Draws the order in which the responses are shown, from a hash of the seed and the id alone.

    Returns:
        Entry k is the index, in the comparison, of the response that is shown at position k.
    """
    return tuple(
        sorted(range(len(comparison.responses)), key=lambda index: key_hash(seed, comparison.id, index))
    )


def query_of(comparison: Comparison, order: Sequence[int], trial: int = 0) -> Query:
    """Turns a comparison into the query that a reward model may see."""
    return Query(
        comparison.id,
        comparison.prompt,
        tuple(comparison.responses[index] for index in order),
        comparison.context,
        comparison.question,
        trial,
        comparison.tools,
        comparison.rubrics,
    )


def margin(values: Sequence[float], ranks: Sequence[int]) -> float | None:
    """By how much a response that gold ranks best leads: the highest value of these minus the highest of the others.

    It is above 0 where the response judged best is a best one, 0 at a tie of one with another, and below 0 where it is
    not.

    Args:
        values: One number a response, higher is better.
        ranks: Gold ranks, 1 = best.

    Returns:
        None where all gold ranks tie.
    """
    best, others = (
        [value for value, rank in zip(values, ranks, strict=True) if (rank == min(ranks)) is is_best]
        for is_best in (True, False)
    )
    return max(best) - max(others) if others else None


def text_of(messages: Sequence[Message]) -> str:
    """The readable text of messages, calls of tools included, joined by blank lines."""
    return "\n\n".join(
        "\n".join(filter(None, [message_text(message), *tool_calls_text(message)])) for message in messages
    )


def tool_calls_text(message: Message) -> list[str]:
    """The calls of tools in a message as readable JSON, one text each; arguments that are JSON texts are unpacked."""
    texts = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call) if isinstance(call, Mapping) else call
        if isinstance(function, Mapping):
            function = {
                key: _unpacked(value) if key == "arguments" else value for key, value in function.items()
            }
        texts.append(f"[tool call] {json.dumps(function, ensure_ascii=False, default=str)}")
    return texts


def _unpacked(arguments: Any) -> Any:
    try:
        return json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        return arguments


def message_text(message: Message) -> str:
    """The string content of a message, or the text parts of its list content; empty where it has neither."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return ""


def as_messages(value: str | Sequence[Message], role: str) -> tuple[Message, ...]:
    """Accepts what users pass as a prompt or a response: plain text, or messages."""
    if isinstance(value, str):
        return ({"role": role, "content": value},)
    return tuple(value)
