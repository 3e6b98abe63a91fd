"""Baselines: rules without a model, which a reward model should beat."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from longrm.errors import ConfigError, nearest
from longrm.reward_models import shallow_rules as shallow
from longrm.reward_models.protocol import RewardModel
from longrm.rng import hash_fraction
from longrm.types import Judgment, Outcome, Query, text_of


def _random(query: Query) -> list[float]:
    """A hash of the id and the response, which depends on neither position nor batch."""
    return [hash_fraction(query.id, text_of(response)) for response in query.responses]


def _last(query: Query) -> list[float]:
    return [float(position) for position in range(len(query.responses))]


def _longest(query: Query) -> list[float]:
    return [float(len(text_of(response))) for response in query.responses]


@dataclass(frozen=True, slots=True)
class BaselineRule:
    """A rule that scores responses without a model."""

    scores: Callable[[Query], Sequence[float]]  # one number per response, higher is better
    sees_order: bool = False  # whether the score depends on the position of the response
    reads_context: bool = False  # whether it reads the prompt, and not only the responses


BASELINES: dict[str, BaselineRule] = {
    "random": BaselineRule(_random),
    "first": BaselineRule(lambda query: [-score for score in _last(query)], sees_order=True),
    "last": BaselineRule(_last, sees_order=True),
    "longest": BaselineRule(_longest),
    "shortest": BaselineRule(lambda query: [-score for score in _longest(query)]),
    "overlap": BaselineRule(shallow.overlap, reads_context=True),
    "bm25": BaselineRule(shallow.bm25, reads_context=True),
    "predicate": BaselineRule(shallow.predicate, reads_context=True),
    "nearest": BaselineRule(shallow.nearest, reads_context=True),
    "first-mention": BaselineRule(shallow.first_mention, reads_context=True),
    "last-mention": BaselineRule(shallow.last_mention, reads_context=True),
    "frequency": BaselineRule(shallow.frequency, reads_context=True),
    "ngrams": BaselineRule(shallow.ngrams, reads_context=True),
    "question-ngrams": BaselineRule(shallow.question_ngrams, reads_context=True),
    "subsequence": BaselineRule(shallow.subsequence, reads_context=True),
}
"""The registry of baselines."""

SHALLOW_RULES = tuple(name for name, rule in BASELINES.items() if not rule.sees_order and name != "random")
"""The rules that a question about a context must not be answered by; the others are at chance by construction."""


class Baseline(RewardModel):
    """One of `BASELINES` as a reward model, such as `baseline:longest`."""

    def __init__(self, name: str) -> None:
        if name not in BASELINES:
            raise ConfigError(f"no baseline '{name}'; {nearest(name, BASELINES)}")
        self._rule = BASELINES[name]
        self.name = f"baseline:{name}"
        self.sees_order = self._rule.sees_order

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Scores every response by the rule."""
        return [Judgment(Outcome.ANSWERED, scores=tuple(self._rule.scores(query))) for query in queries]
