"""What every reward model is: queries in, judgments out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from longrm.errors import DataError
from longrm.types import Judgment, Message, Outcome, Query, as_messages


class RewardModel(ABC):
    """Anything that turns a query into a judgment.

    Attributes:
        name: How summaries and reports call it.
    """

    name: str

    @abstractmethod
    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Judges every query alone; how they are batched never changes a verdict.

        Returns:
            One judgment a query, in the same order, about the responses in presented order.
        """

    def score(
        self, prompt: str | Sequence[Message], responses: Sequence[str | Sequence[Message]]
    ) -> list[float]:
        """Scores the responses to one prompt.

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
        query = Query(
            "score", as_messages(prompt, "user"), tuple(as_messages(text, "assistant") for text in responses)
        )
        (judgment,) = self.judge([query])
        if judgment.outcome is not Outcome.ANSWERED:
            raise DataError(f"{self.name} gave no scores ({judgment.outcome}): {judgment.detail}")
        return list(judgment.scores)
