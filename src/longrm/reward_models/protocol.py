"""What every reward model is: queries in, judgments out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import Any, overload

from longrm.errors import DataError
from longrm.reward_models.trials import latin_square, points, together, trial_of
from longrm.types import Judgment, Message, Outcome, Query, Scale, Tool, Trial, as_messages

Prompt = str | Sequence[Message]
"""The text of a user's message, or messages."""

Answer = str | Sequence[Message]
"""A response likewise."""


class RewardModel(ABC):
    """Anything that turns a query into a judgment.

    Attributes:
        name: How summaries and reports call it.
        sees_order: Whether the place at which a response is shown may change the judgment.
        samples: Whether asking again may give another judgment, so that votes say something.
        by_criterion: Whether it can be asked about one criterion alone, as `Query.criterion` names it.
        scale: What a difference of two scores means.
        provenance: What the manifest of a run tells of it: commits of the Hub, where a score is read.
        on_progress: Called during `judge` with the share of its prompts that is read, where the model reports it.
    """

    name: str
    sees_order: bool = False
    samples: bool = False
    by_criterion: bool = False
    scale: Scale = "none"
    provenance: Mapping[str, str] = MappingProxyType({})
    on_progress: Callable[[float], None] = staticmethod(lambda share: None)

    @abstractmethod
    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Judges every query alone; how they are batched never changes a verdict.

        Returns:
            One judgment a query, in the same order, about the responses in presented order.
        """

    def keep_prefixes(self, budget: int) -> None:  # noqa: B027 - most models have nothing to keep
        """Keeps what prompts begin with alike from now on, where the model can; most cannot, and nothing changes.

        Args:
            budget: Bytes of memory.
        """

    def head_deviation(self, query: Query) -> float | None:
        """How far the lead of the first of two responses is from that of a random head, in standard deviations.

        Returns:
            None where a model has no scalar head of its own.
        """
        return None

    def orders(self, comparison: str) -> tuple[tuple[int, ...], ...]:
        """The presented orders in which this comparison must be asked; none where any order will do."""
        return ()

    def judge_in_all_orders(self, queries: Sequence[Query], votes: int = 1) -> list[Trial]:
        """Judges every query, in each row of a Latin square where the order may matter, and averages.

        Args:
            queries: What is judged.
            votes: How often each order is asked; more than one for a model that samples.

        Returns:
            One trial a query, about the responses in the query's own order.
        """
        squares = [
            (latin_square(plain) if self.sees_order else (plain,)) * votes
            for plain in (tuple(range(len(query.responses))) for query in queries)
        ]
        shown = [
            replace(query, responses=tuple(query.responses[index] for index in order), trial=trial)
            for query, orders in zip(queries, squares, strict=True)
            for trial, order in enumerate(orders)
        ]
        judged = iter(self.judge(shown))
        return [together([trial_of(next(judged), order) for order in orders]) for orders in squares]

    @overload
    def score(  # type: ignore[overload-overlap]  # a text is a list of texts to mypy
        self, prompt: Prompt, responses: Sequence[Answer], *, tools: Sequence[Tool] = ()
    ) -> list[float]: ...

    @overload
    def score(
        self, prompt: Sequence[Prompt], responses: Sequence[Sequence[Answer]], *, tools: Sequence[Tool] = ()
    ) -> list[list[float]]: ...

    def score(
        self, prompt: Any, responses: Any, *, tools: Sequence[Tool] = ()
    ) -> list[float] | list[list[float]]:
        """Scores the responses to one prompt, or to each of several.

        A model that sees the order of responses is asked in several orders, and averaged.

        Args:
            prompt: The user's text, or messages; or a list of such prompts.
            responses: A list of responses, one at least, each text or messages; for several prompts a list of lists.
            tools: The tools that every prompt offers, as `{"type": "function", "function": {...}}`.

        Returns:
            One number a response, higher is better; for several prompts a list of lists.

        Raises:
            DataError: A prompt has no response, the two lists are of other lengths, or the model could not answer;
                the message says which.
        """
        several = _are_prompts(prompt)
        if several and (isinstance(responses, str) or len(responses) != len(prompt)):
            raise DataError(
                f"score needs a list of responses for each prompt, and got {len(responses)} for {len(prompt)} prompts"
            )
        pairs = zip(prompt, responses, strict=True) if several else [(prompt, responses)]
        queries = [_query(number, *pair, tools) for number, pair in enumerate(pairs)]
        scored = []
        for query, whole in zip(queries, self.judge_in_all_orders(queries), strict=True):
            if whole.outcome is not Outcome.ANSWERED:
                where = f" for prompt {query.id}" if several else ""
                raise DataError(f"{self.name} gave no scores{where} ({whole.outcome}): {whole.detail}")
            scored.append(list(points(whole)))
        return scored if several else scored[0]

    @overload
    def rank(  # type: ignore[overload-overlap]  # a text is a list of texts to mypy
        self, prompt: Prompt, responses: Sequence[Answer], *, tools: Sequence[Tool] = ()
    ) -> list[int]: ...

    @overload
    def rank(
        self, prompt: Sequence[Prompt], responses: Sequence[Sequence[Answer]], *, tools: Sequence[Tool] = ()
    ) -> list[list[int]]: ...

    def rank(self, prompt: Any, responses: Any, *, tools: Sequence[Tool] = ()) -> list[int] | list[list[int]]:
        """Orders the responses to one prompt, or to each of several, as `score` does.

        Returns:
            Indices of the responses from best to worst, equal ones as they came; for several prompts a list of lists.

        Raises:
            DataError: As `score`.
        """
        scores: Any = self.score(prompt, responses, tools=tools)
        return [_order(of_one) for of_one in scores] if _are_prompts(prompt) else _order(scores)

    def attribute(
        self, prompt: Prompt, responses: Sequence[Answer], *, tools: Sequence[Tool] = (), **settings: Any
    ) -> Any:
        """Tells which sentences of a prompt moved the lead of the best response, as `longrm attribute` does.

        Args:
            prompt: The user's text, or messages.
            responses: Two responses or more.
            tools: The tools that the prompt offers.
            settings: `context`, the part of the prompt that is context, word for word, by default all of it; and
                `removal`, `masks`, `seed` and others of `ablation`.

        Returns:
            An `AttributionRecord` of `longrm.attribution.attribute`: all sentences with their weights, and `trust`.

        Raises:
            DataError: As `score`; or there are several prompts, fewer than two responses or none that differs, or a
                message of the context is a list of parts.
        """
        if _are_prompts(prompt):
            raise DataError("attribute explains the responses to one prompt: give a text, or messages")
        if isinstance(responses, str) or len(responses) < 2:
            raise DataError(
                "attribute needs a list of responses, of two at least: it explains the lead of one"
            )
        # Attributing stands above reward models, so that nobody who only scores loads it.
        attributed = import_module("longrm.attribution.attribute").attribute_prompt
        return attributed(self, _query(0, prompt, responses, tools), **settings)


def _are_prompts(prompt: Any) -> bool:
    """Whether this is a list of prompts, and not one of messages."""
    return not isinstance(prompt, str) and not all(isinstance(message, Mapping) for message in prompt)


def _query(number: int, prompt: Prompt, responses: Sequence[Answer], tools: Sequence[Tool]) -> Query:
    if isinstance(responses, str) or not responses:
        raise DataError("a list of responses is needed, of one at least, even where there is only one")
    answers = tuple(as_messages(text, "assistant") for text in responses)
    return Query(str(number), as_messages(prompt, "user"), answers, tools=tuple(tools))


def _order(scores: Sequence[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda index: -scores[index])
