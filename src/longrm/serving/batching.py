"""What the server asks of a model: which of the waiting queries it reads together, and their judgments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from longrm.data.tokenizing import Tokenizer
from longrm.judging import Policy
from longrm.reward_models.protocol import RewardModel
from longrm.types import Judgment, Outcome, Query


class OpenQuery(Protocol):
    """A query that is ready to be read."""

    @property
    def query(self) -> Query:
        """The query."""
        ...

    @property
    def size(self) -> int:
        """Tokens of the prompt and of all responses."""
        ...


@runtime_checkable
class BatchingModel(Protocol):
    """A model that says itself which queries it reads together, and keeps what prompts begin with."""

    def keep_prefixes(self, budget: int) -> None:
        """Keeps the keys and values of prompts, in so many bytes."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        ...

    def open(self, query: Query, cut: Policy | None = None, salt: str = "") -> Any:
        """A query that is ready to be read, or a judgment at once; what it keeps serves those of one salt alone."""
        ...

    def choose(self, waiting: Sequence[Any]) -> list[int]:
        """Which of the waiting queries to read next."""
        ...

    def read(self, opened: Sequence[Any]) -> list[Judgment]:
        """One judgment for each."""
        ...


@dataclass(frozen=True, slots=True)
class _WholeQuery:
    query: Query
    size: int = 0


class WholeQueries:
    """Asks a model that reads queries in a way of its own, all that wait at once."""

    def __init__(self, model: RewardModel) -> None:
        self._model = model

    def open(self, query: Query, cut: Policy | None = None, salt: str = "") -> _WholeQuery | Judgment:
        """The query as it is; nothing can be cut, and nothing is kept."""
        if cut is not None:
            return Judgment(Outcome.ERROR, detail="this model cuts nothing on request")
        return _WholeQuery(query)

    def choose(self, waiting: Sequence[_WholeQuery]) -> list[int]:
        """All of them."""
        return list(range(len(waiting)))

    def read(self, opened: Sequence[_WholeQuery]) -> list[Judgment]:
        """One judgment for each."""
        return self._model.judge([one.query for one in opened])
