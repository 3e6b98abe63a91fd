"""Baselines: rules without a model. A reward model that does not beat one may be doing no more than the rule does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longrm.errors import ConfigError, nearest
from longrm.reward_models.protocol import RewardModel
from longrm.rng import hash_fraction
from longrm.types import Judgment, Outcome, Query, message_text, text_of

if TYPE_CHECKING:
    from longrm.reward_models.kinds import LoadRequest

# Words and punctuation marks of a chunk of the context.
_CHUNK = 128


def _random(query: Query) -> list[float]:
    """The score is a hash of the id and the response, so it depends on neither position nor batch."""
    return [hash_fraction(query.id, text_of(response)) for response in query.responses]


def _first(query: Query) -> list[float]:
    return [-float(position) for position in range(len(query.responses))]


def _last(query: Query) -> list[float]:
    return [float(position) for position in range(len(query.responses))]


def _longest(query: Query) -> list[float]:
    return [float(len(text_of(response))) for response in query.responses]


def _shortest(query: Query) -> list[float]:
    return [-float(len(text_of(response))) for response in query.responses]


def _overlap(query: Query) -> list[float]:
    """The share of a response that chunks of the context hold (of the whole prompt where it is not known)."""
    # Imported late: arrays and BM25 that no other rule needs.
    from longrm.reward_models.lexical import index

    texts = [message_text(message) for message in query.prompt]
    context = (texts[span.message][span.start : span.end] for span in query.context)
    lexicon = index(tuple(context) or tuple(texts), _CHUNK)
    return [lexicon.support(text_of(response)) for response in query.responses]


@dataclass(frozen=True, slots=True)
class BaselineRule:
    """A rule that scores responses without a model.

    Attributes:
        scores: One number a response, higher is better.
        sees_order: Whether the place at which a response is shown changes its score.
        reads_context: Whether it reads the prompt, and not the responses alone.
    """

    scores: Callable[[Query], Sequence[float]]
    sees_order: bool = False
    reads_context: bool = False


BASELINES: Mapping[str, BaselineRule] = {
    "random": BaselineRule(_random),
    "first": BaselineRule(_first, sees_order=True),
    "last": BaselineRule(_last, sees_order=True),
    "longest": BaselineRule(_longest),
    "shortest": BaselineRule(_shortest),
    "overlap": BaselineRule(_overlap, reads_context=True),
}
"""The registry of baselines: a new one is one function and one entry."""


class Baseline(RewardModel):
    """One of `BASELINES` as a reward model, such as `baseline:longest`.

    Raises:
        ConfigError: There is no such baseline.
    """

    def __init__(self, name: str) -> None:
        if name not in BASELINES:
            raise ConfigError(f"no baseline '{name}'; {nearest(name, BASELINES)}")
        self._rule = BASELINES[name]
        self.name = f"baseline:{name}"
        self.sees_order = self._rule.sees_order

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Scores every response by the rule."""
        return [Judgment(Outcome.ANSWERED, scores=tuple(self._rule.scores(query))) for query in queries]


def load_baseline(name: str, request: "LoadRequest") -> Baseline:
    """Loads `baseline:NAME`; see `Baseline`."""
    return Baseline(name)
