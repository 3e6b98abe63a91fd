"""The interface of all reward models: queries in, judgments out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

from longrm.errors import DataError
from longrm.reading import short
from longrm.reward_models.trials import aggregate_trials, latin_square, to_scores, trial_of
from longrm.types import Judgment, Message, Outcome, Query, Scale, Tool, Trial, as_messages

if TYPE_CHECKING:  # a server of a baseline starts without torch
    from longrm.data.tokenizing import Tokenizer
    from longrm.modeling.prefix_cache import PrefixCache

Chat = str | Sequence[Message]
"""A prompt or a response: its text, or its messages."""

Prompts = Sequence[str] | Sequence[Sequence[Message]]
"""Several prompts."""


class RewardModel(ABC):
    """A model that turns queries into judgments. Subclasses implement `judge`."""

    name: str  # in summaries and reports
    sees_order: bool = False  # whether the judgment may depend on the order in which responses are presented
    samples: bool = False  # whether another call may return another judgment, so that votes are meaningful
    by_criterion: bool = False  # whether it can judge by one criterion alone, `Query.criterion`
    writes: bool = False  # whether it writes verdicts, which `judge.name` describes
    solves: bool = False  # whether it answers the question before it judges, `Judgment.committed`
    scale: Scale = "none"  # what a difference of two scores means
    step_threshold: float | None = (
        None  # the score above which a step is right; None if scores have no such zero
    )
    limit: int | None = None  # the context window in tokens, if known
    tokenizer: "Tokenizer | None" = None  # of the model, if known
    prefix_cache: "PrefixCache | None" = None  # set by `keep_prefixes`
    # What a run's manifest records about the model, such as commits of the Hub.
    provenance: Mapping[str, str] = MappingProxyType({})
    # Called during `judge` with the share of the prompts that is done, by models that report it.
    on_progress: Callable[[float], None] = staticmethod(lambda share: None)

    @abstractmethod
    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Judges the queries, each about its responses in presented order; batching never changes a verdict."""

    def keep_prefixes(self, budget: int | None = None) -> None:  # noqa: B027 - most models have nothing to cache
        """Caches the shared prefixes of later prompts in `budget` bytes of memory, if the model supports it."""

    def head_deviation(self, query: Query) -> float | None:
        """The lead of the first of two responses, in standard deviations of the lead under a random scalar head."""
        return None

    def orders(self, comparison: str) -> tuple[tuple[int, ...], ...]:
        """The only presented orders in which this comparison can be judged; empty if any order is possible."""
        return ()

    def judge_in_all_orders(self, queries: Sequence[Query], votes: int = 1) -> list[Trial]:
        """Judges every query in each row of a Latin square of orders, if the model sees the order, and averages.

        Each order is judged `votes` times. The trials are about the responses in the query's own order.
        """
        orders_of, presented = [], []
        for query in queries:
            plain = tuple(range(len(query.responses)))
            orders = (latin_square(plain) if self.sees_order else (plain,)) * votes
            orders_of.append(orders)
            for trial, order in enumerate(orders):
                responses = tuple(query.responses[index] for index in order)
                presented.append(replace(query, responses=responses, trial=trial))
        # One call for all orders of all queries, so that a model may batch them.
        judgments = iter(self.judge(presented))
        return [
            aggregate_trials([trial_of(next(judgments), order) for order in orders]) for orders in orders_of
        ]

    # A text is a sequence of texts, too: the first form that fits counts.
    @overload
    def score(  # type: ignore[overload-overlap]
        self, prompt: Chat, responses: Sequence[Chat], *, tools: Sequence[Tool] = ()
    ) -> list[float]: ...

    @overload
    def score(
        self, prompt: Prompts, responses: Sequence[Sequence[Chat]], *, tools: Sequence[Tool] = ()
    ) -> list[list[float]]: ...

    def score(self, prompt: Any, responses: Any, *, tools: Sequence[Tool] = ()) -> Any:
        """Scores the responses to one prompt, or to each of several prompts.

        A model that sees the order of responses is queried in several orders, and the scores are averaged.

        Args:
            prompt: The user's text, or messages; or a list of such prompts.
            responses: A list of at least one response, each text or messages; for several prompts a list of lists.
            tools: The tools that every prompt offers, as `{"type": "function", "function": {...}}`.

        Returns:
            A list with one number per response, higher is better; for several prompts a list of such lists.

        Raises:
            DataError: A prompt has no response, the lists differ in length, the responses are one conversation, or the
                model gave no scores.
        """
        several = are_prompts(prompt)
        if several and (isinstance(responses, str) or len(responses) != len(prompt)):
            raise DataError(
                f"score needs a list of responses for each of {len(prompt)} prompts, got {len(responses)}"
            )
        pairs = zip(prompt, responses, strict=True) if several else [(prompt, responses)]
        queries = [query_of(number, *pair, tools) for number, pair in enumerate(pairs)]
        scored = []
        for query, trial in zip(queries, self.judge_in_all_orders(queries), strict=True):
            if trial.outcome is not Outcome.ANSWERED:
                where = f" for prompt {query.id}" if several else ""
                raise DataError(f"{self.name} gave no scores{where} ({trial.outcome}): {trial.detail}")
            scored.append(list(to_scores(trial)))
        return scored if several else scored[0]

    @overload
    def rank(  # type: ignore[overload-overlap]
        self, prompt: Chat, responses: Sequence[Chat], *, tools: Sequence[Tool] = ()
    ) -> list[int]: ...

    @overload
    def rank(
        self, prompt: Prompts, responses: Sequence[Sequence[Chat]], *, tools: Sequence[Tool] = ()
    ) -> list[list[int]]: ...

    def rank(self, prompt: Any, responses: Any, *, tools: Sequence[Tool] = ()) -> Any:
        """Ranks the responses to one prompt, or to each of several; the arguments and errors are those of `score`.

        Returns:
            Indices of the responses, best first, ties in their own order; for several prompts a list of such lists.
        """

        def ranked(scores: Sequence[float]) -> list[int]:
            return sorted(range(len(scores)), key=lambda index: -scores[index])

        scores = self.score(prompt, responses, tools=tools)
        return [ranked(one) for one in scores] if are_prompts(prompt) else ranked(scores)


class WrappedRewardModel(RewardModel):
    """A reward model that changes what another one, `inner`, is asked, and reports the same capabilities."""

    def __init__(self, inner: RewardModel) -> None:
        self.inner = inner
        self.name, self.sees_order, self.samples = inner.name, inner.sees_order, inner.samples
        self.by_criterion, self.solves, self.scale = inner.by_criterion, inner.solves, inner.scale
        self.step_threshold = inner.step_threshold
        self.writes = inner.writes
        self.limit, self.tokenizer, self.provenance = inner.limit, inner.tokenizer, inner.provenance

    def keep_prefixes(self, budget: int | None = None) -> None:
        """See `RewardModel`."""
        self.inner.keep_prefixes(budget)
        self.prefix_cache = self.inner.prefix_cache


def are_prompts(prompt: Any) -> bool:
    """Whether this is a list of prompts rather than of messages."""
    return not isinstance(prompt, str | Mapping) and not all(
        isinstance(message, Mapping) for message in prompt
    )


def query_of(number: int, prompt: Chat, responses: Sequence[Chat], tools: Sequence[Tool]) -> Query:
    """The query about the responses to the prompt with this number."""
    if isinstance(responses, str | Mapping) or not responses:
        raise DataError("responses must be a list of at least one response")
    if any(isinstance(response, Mapping) for response in responses):
        raise DataError(
            "the responses are the messages of one conversation; pass the prompt that they share and a list of their "
            "last turns: score(prompt, [chosen, rejected])"
        )
    asked = messages_of_chat(prompt, "user")
    answers = tuple(answer_to(asked, response) for response in responses)
    return Query(str(number), asked, answers, tools=tuple(tools))


def answer_to(prompt: Sequence[Message], response: Any) -> tuple[Message, ...]:
    """A response as messages. One that repeats the prompt would be read behind it a second time: an error."""
    answer = messages_of_chat(response, "assistant")
    if prompt and answer[: len(prompt)] == tuple(prompt):
        raise DataError(
            "a response repeats the prompt: pass only what follows the prompt, such as its last turn"
        )
    return answer


def messages_of_chat(value: Any, role: str) -> tuple[Message, ...]:
    """A text or messages as messages. Content that is not text would be ignored by the model, so it is an error."""
    if not isinstance(value, str):
        # `Collection`, because some trainers pass numpy arrays.
        are_messages = isinstance(value, Collection) and not isinstance(value, Mapping)
        if not are_messages or not all(isinstance(message, Mapping) for message in value):
            raise DataError(f"a prompt or a response must be text or a list of messages, got {short(value)}")
    messages = as_messages(value, role)
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list | tuple) else ()
        if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts):
            raise DataError(f"only text is supported, got a message with {short(content)}")
    return messages
