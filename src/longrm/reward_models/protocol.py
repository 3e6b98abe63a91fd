"""What every reward model is: queries in, judgments out."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from longrm.errors import DataError
from longrm.reward_models.trials import latin_square, points, together, trial_of
from longrm.runs.records import Trial
from longrm.types import Judgment, Message, Outcome, Query, Scale, as_messages


class RewardModel(ABC):
    """Anything that turns a query into a judgment.

    Attributes:
        name: How summaries and reports call it.
        sees_order: Whether the place at which a response is shown may change the judgment.
        samples: Whether asking again may give another judgment, so that votes say something.
        scale: What a difference of two scores means.
        provenance: What the manifest of a run tells of it: commits of the Hub, where a score is read.
    """

    name: str
    sees_order: bool = False
    samples: bool = False
    scale: Scale = "none"
    provenance: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Judges every query alone; how they are batched never changes a verdict.

        Returns:
            One judgment a query, in the same order, about the responses in presented order.
        """

    def orders(self, comparison: str) -> tuple[tuple[int, ...], ...]:
        """The presented orders in which this comparison must be asked; none where any order will do."""
        return ()

    def judge_in_all_orders(self, queries: Sequence[Query]) -> list[Trial]:
        """Judges every query, in each row of a Latin square where the order may matter, and averages.

        Returns:
            One trial a query, about the responses in the query's own order.
        """
        squares = [
            latin_square(plain) if self.sees_order else (plain,)
            for plain in (tuple(range(len(query.responses))) for query in queries)
        ]
        shown = [
            replace(query, responses=tuple(query.responses[index] for index in order), trial=trial)
            for query, orders in zip(queries, squares, strict=True)
            for trial, order in enumerate(orders)
        ]
        judged = iter(self.judge(shown))
        return [together([trial_of(next(judged), order) for order in orders]) for orders in squares]

    def score(
        self, prompt: str | Sequence[Message], responses: Sequence[str | Sequence[Message]]
    ) -> list[float]:
        """Scores the responses to one prompt; a model that sees their order is asked in several, and averaged.

        Args:
            prompt: The user's text, or messages.
            responses: A list of responses, one at least, each text or messages.

        Returns:
            One number a response, higher is better.

        Raises:
            DataError: There is no response, or the model could not answer; the message says why.
        """
        if isinstance(responses, str) or not responses:
            raise DataError("score needs a list of responses, one at least, even where there is only one")
        messages = as_messages(prompt, "user")
        answers = tuple(as_messages(text, "assistant") for text in responses)
        (whole,) = self.judge_in_all_orders([Query("score", messages, answers)])
        if whole.outcome is not Outcome.ANSWERED:
            raise DataError(f"{self.name} gave no scores ({whole.outcome}): {whole.detail}")
        return list(points(whole))
