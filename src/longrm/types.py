"""The types that all modules share: messages, comparisons, queries and judgments."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from longrm.rng import key_hash

Message = Mapping[str, Any]
"""One `{role, content}` turn. Unknown fields (`tool_calls`, `name`) and list content are kept untouched."""

Response = tuple[Message, ...]
"""A policy's answer to a prompt: usually one assistant message.

A trajectory has several: turns of the assistant, with answers of its tools or the user in between.
"""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One criterion of a rubric with its weight, which is negative if a response should not meet it."""

    text: str
    weight: float = 1.0


Tool = Mapping[str, Any]
"""A tool that a prompt offers: `{"type": "function", "function": {...}}`, where `function` is its JSON schema."""


MAX_LENGTH = 1 << 40
"""Tokens of the longest length bucket: more than any context has, and few enough for every table and chart."""


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
        rubrics: The criteria by which the responses are to be judged, if known.
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
        if self.ranks is not None and (len(self.ranks) != len(self.responses) or min(self.ranks) < 1):
            raise ValueError(f"a rank from 1 (the best) is needed for each response, got {self.ranks}")

    def best_first(self) -> tuple[int, ...]:
        """Indices of the responses from best to worst; ties keep their order. Needs known ranks."""
        assert self.ranks is not None, "best_first needs gold ranks"
        ranks = self.ranks
        return tuple(sorted(range(len(ranks)), key=lambda index: ranks[index]))


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A prompt, with the tools that it offers, and the completion to imitate; none if completions are to be sampled.

    Attributes:
        label: Whether the row says that the completion is good (KTO's `label`); None if it does not say.
        score: The score that the row gives the completion, on a scale that is not known; None without one.
    """

    id: str
    prompt: tuple[Message, ...]
    completion: Response
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Tool, ...] = ()
    label: bool | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The steps of an agent, or of a solution, after a prompt, with labels where they are known.

    A step is one turn of the assistant, preceded by whatever others wrote since the step before (results of tools,
    the user), or one part of a written solution.

    Attributes:
        id: Unique within a data set.
        group: The task that this trajectory shares with others; statistics cluster on it.
        prompt: The messages before the first step.
        steps: The messages of each step; the last message of each is the assistant's.
        labels: One number a step: 1 = right, 0 = neutral, -1 = wrong; None where it is unknown. Empty if all are.
        success: Whether the trajectory reached its goal; None if unknown.
        tools: The tools that the prompt offers.
        metadata: Task, target `length` in tokens, source.
    """

    id: str
    group: str
    prompt: tuple[Message, ...]
    steps: tuple[tuple[Message, ...], ...]
    labels: tuple[float | None, ...] = ()
    success: bool | None = None
    tools: tuple[Tool, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("the prompt has no message")
        if not self.steps or not all(step and step[-1].get("role") == "assistant" for step in self.steps):
            raise ValueError("a trajectory needs steps, each ending with a message of the assistant")
        if self.labels and len(self.labels) != len(self.steps):
            raise ValueError(f"{len(self.labels)} labels for {len(self.steps)} steps")

    def prefixes(self) -> tuple[Response, ...]:
        """The trajectory up to each step, as responses to the prompt.

        Plain texts of the assistant that follow each other, the parts of a solution, are one message, joined by blank
        lines.
        """
        found, messages = [], list[Message]()
        for step in self.steps:
            for message in step:
                if messages and _is_plain(messages[-1]) and _is_plain(message):
                    joined = f"{message_text(messages[-1])}\n\n{message_text(message)}"
                    messages = [*messages[:-1], {**messages[-1], "content": joined}]
                else:
                    messages = [*messages, message]
            found.append(tuple(messages))
        return tuple(found)

    def query(self) -> "Query":
        """What a reward model is asked about every step."""
        return Query(self.id, self.prompt, self.prefixes(), tools=self.tools, steps=True)


def _is_plain(message: Message) -> bool:
    return message.get("role") == "assistant" and not message.get("tool_calls")


@dataclass(frozen=True, slots=True)
class Query:
    """The input of a reward model: no gold, no metadata, and no order that gives the gold away.

    Attributes:
        id: The comparison's id.
        prompt: The messages that every response answers.
        responses: In presented order.
        context: Spans of the long context in the prompt, if known; only they may be cut or compressed.
        question: Span of the question in the prompt, if known.
        trial: The number of this trial of the comparison, from 0: its orders, and the votes within an order.
        tools: The tools that the prompt offers.
        rubrics: The criteria of the comparison, which a judge sees only if it judges by them.
        criterion: The one criterion to judge by; by default all that matters.
        steps: Whether the responses are one trajectory up to each of its steps; each score then rates a step.
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
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """The part that was cut out of a context that did not fit.

    Attributes:
        policy: Which part: "middle", "left" (the beginning), "right" (the end), or "compress" (the least relevant).
        tokens: How many of the model's tokens; approximate tokens if it was compressed.
    """

    policy: str
    tokens: int


@dataclass(frozen=True, slots=True)
class CommittedAnswer:
    """A judge's own answer to the question, given before it saw the responses (`judge.solve`).

    Attributes:
        text: What it wrote, with its thinking.
        outcome: How the request ended; unparsed if there is nothing but thinking.
        solved: Whether the answer is right; None if no gold answer is known.
    """

    text: str
    outcome: Outcome = Outcome.ANSWERED
    solved: bool | None = None

    @property
    def status(self) -> str:
        """Whether it is right, in words, and how it ended if the model did not finish it."""
        checked = "not checked" if self.solved is None else "right" if self.solved else "wrong"
        return checked if self.outcome is Outcome.ANSWERED else f"{checked}, {self.outcome}"


@dataclass(frozen=True, slots=True)
class Judgment:
    """The answer of a reward model to a query, with responses in the order in which the query presents them.

    Attributes:
        outcome: How the query ended.
        scores: One number per response, higher is better; empty unless answered with scores.
        ranking: Indices of the responses from best to worst; empty unless answered with a ranking.
        explanation: The text of a generative model, with its thinking, for all attempts.
        detail: Why there is no verdict, in one line; with `judge.group`, how many verdicts are missing. Else empty.
        prompt_tokens: Tokens of the prompt as the model counts them; None if it does not count.
        cached_tokens: How many of them were computed for an earlier query.
        cut: The part of the context that was cut to make it fit; None if nothing was.
        attempts: How often the model was queried.
        contradicted: Whether the explanation argues for another verdict; None if that cannot be decided.
        criteria: The scores by each criterion of a rubric, one row per criterion; empty without a rubric.
        standard_errors: Of the scores, where they are estimates (`judge.group`); empty otherwise.
        committed: The model's own answer, if it answered the question before it judged.
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
    standard_errors: tuple[float, ...] = ()
    committed: CommittedAnswer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Judgment):
    """A judgment in the comparison's own order of responses, with the order in which they were presented.

    Attributes:
        order: The presented order: entry k is the index, in the comparison, of the response shown at position k.
    """

    order: tuple[int, ...] = ()


Scale = Literal["logit", "points", "verdict", "label", "none"]
"""The unit of scores: log-odds, points of a rubric, shares of votes, labels of steps (1, 0, -1), or none (an order)."""


def are_ratings(scale: Scale) -> bool:
    """Whether scores rate single responses, and are not read from a verdict about several."""
    return scale != "verdict"


def presented_order(comparison: Comparison, seed: int) -> tuple[int, ...]:
    """Draws the order in which the responses are shown, from a hash of the seed and the id.

    Entry k is the index, in the comparison, of the response that is shown at position k.
    """
    indices = range(len(comparison.responses))
    return tuple(sorted(indices, key=lambda index: key_hash(seed, comparison.id, index)))


def query_of(comparison: Comparison, order: Sequence[int], trial: int = 0) -> Query:
    """The query of a comparison, with its responses in this order."""
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
    """The highest value of a response that gold ranks best (the lowest rank), minus the highest of all others.

    It is positive if the response judged best is one of the best, and 0 at a tie. None if all gold ranks tie.
    """
    best, others = (
        [value for value, rank in zip(values, ranks, strict=True) if (rank == min(ranks)) is is_best]
        for is_best in (True, False)
    )
    return max(best) - max(others) if others else None


def text_of(messages: Sequence[Message]) -> str:
    """The text of messages with their tool calls, joined by blank lines."""
    return "\n\n".join(
        "\n".join(filter(None, [message_text(message), *tool_calls_text(message)])) for message in messages
    )


def tool_calls_text(message: Message) -> list[str]:
    """The tool calls of a message as JSON, one text each; arguments that are JSON texts are unpacked."""
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
    """The string content of a message, or the text parts of its list content; empty if it has neither."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return ""


def as_messages(value: str | Sequence[Message], role: str) -> tuple[Message, ...]:
    """A prompt or a response as messages: users may pass plain text."""
    if isinstance(value, str):
        return ({"role": role, "content": value},)
    return tuple(value)
