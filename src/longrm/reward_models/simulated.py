"""A judge that knows the gold order and errs at given rates: the result of an evaluation is known in advance."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from string import ascii_uppercase as LETTERS
from typing import Self

from longrm.data.fields import length_and_depth
from longrm.errors import ConfigError, nearest
from longrm.judging import load_format
from longrm.reward_models.protocol import RewardModel
from longrm.rng import Rng
from longrm.types import Comparison, Judgment, Outcome, Query, Response, text_of

_SHORT = 1024  # tokens; beyond them the error grows with the length


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """How often a simulated judge errs, each from 0 to 1.

    Attributes:
        error: The verdict on a comparison is wrong: drawn once, the same in all orders and votes.
        misformat: The answer of a trial contains no verdict.
        disagreement: A trial has another verdict than its comparison.
        per_doubling: Added to `error` for each doubling of the length beyond 1,024 tokens, up to chance level.
    """

    error: float = 0.0
    misformat: float = 0.0
    disagreement: float = 0.0
    per_doubling: float = 0.0

    def __post_init__(self) -> None:
        for name, rate in asdict(self).items():
            if not 0 <= rate <= 1:
                raise ConfigError(f"the {name} rate of a simulated judge must be from 0 to 1, got {rate}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses "0.2", which is `error`, or "error=0.2,misformat=0.05"; anything else is a `ConfigError`."""
        known, rates = asdict(cls()), {}
        for part in text.split(","):
            name, equals, value = (side.strip() for side in part.rpartition("="))
            name = name if equals else "error"
            if name not in known:
                raise ConfigError(f"no rate '{name}' in 'simulated:{text}'; {nearest(name, known)}")
            if name in rates:
                raise ConfigError(f"duplicate rate '{name}' in 'simulated:{text}'")
            try:
                rates[name] = float(value)
            except ValueError:
                raise ConfigError(
                    f"'simulated:{text}': {name} must be a number from 0 to 1, got '{value}'"
                ) from None
        return cls(**rates)

    def __str__(self) -> str:
        given = {name: rate for name, rate in asdict(self).items() if rate}
        if given.keys() <= {"error"}:
            return f"{self.error:g}"
        return ",".join(f"{name}={rate:g}" for name, rate in given.items())

    def error_at(self, length: int | None, responses: int) -> float:
        """The error at a length in tokens; `error` itself if the length is not known."""
        doublings = math.log2(length / _SHORT) if length and length > _SHORT else 0.0
        at_chance = 1 - 1 / math.factorial(responses)  # of a random order
        return min(self.error + self.per_doubling * doublings, max(self.error, at_chance))


@dataclass(frozen=True, slots=True)
class _Key:
    """What a simulated judge knows about one comparison."""

    ranks: Mapping[str, int]  # gold ranks by the digest of a response's text; empty if unknown
    responses: int  # how many there are; 0 if the comparison is unknown
    length: int | None  # the length bucket in tokens; None if unknown
    by_criterion: Mapping[str, Mapping[str, int]]  # the same by the text of each criterion


_UNKNOWN = _Key({}, 0, None, {})


class SimulatedRewardModel(RewardModel):
    """Writes a short explanation and a verdict, pairwise or listwise, which is parsed like any judge's.

    If the gold order is not known a coin decides, and likewise between responses that tie; two that tie by the given
    criterion are called a tie. All draws are hashes of the seed, the comparison's id, their purpose and, if they vary
    between trials, the trial; none depends on the order of the responses or of the queries. A query about some of a
    comparison's responses has draws of its own. Gold by criterion is in the
    metadata's `criterion_ranks`, in the order of the rubrics.
    """

    sees_order = True
    samples = True
    by_criterion = True
    scale = "verdict"

    def __init__(self, rates: ErrorRates, comparisons: Iterable[Comparison], seed: int = 0) -> None:
        self.name = f"simulated:{rates}"
        self._rates, self._seed = rates, seed
        self._keys = {
            comparison.id: _Key(
                _ranks_by_text(comparison, comparison.ranks or ()),
                len(comparison.responses),
                length_and_depth(comparison).length,
                {
                    criterion.text: _ranks_by_text(comparison, ranks)
                    for criterion, ranks in zip(
                        comparison.rubrics, comparison.metadata.get("criterion_ranks") or (), strict=False
                    )
                },
            )
            for comparison in comparisons
        }
        self._formats = {name: load_format(name) for name in ("pairwise", "listwise")}

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Judges the queries; one with fewer than 2 or more than 26 responses is an error."""
        return [self._judge(query) for query in queries]

    def _judge(self, query: Query) -> Judgment:
        count = len(query.responses)
        judging = self._formats["pairwise" if count == 2 else "listwise"]
        if count not in judging.n_responses:
            # An error of this query alone: others are judged in the same call.
            return Judgment(Outcome.ERROR, detail=f"a simulated judge ranks 2 to 26 responses, got {count}")
        text = self._write(query)
        verdict = judging.parse(text, replace(query, prompt=()))
        if verdict is None:
            detail = "no verdict in the answer after 1 attempt"
            return Judgment(Outcome.UNPARSED, explanation=text, detail=detail)
        return Judgment(
            Outcome.ANSWERED, verdict.values, verdict.ranking, text, contradicted=verdict.contradicted
        )

    def _write(self, query: Query) -> str:
        order = self._verdict(query)
        if order and self._draws(query, "disagreement", query.trial).fraction() < self._rates.disagreement:
            rng, before = self._draws(query, "other verdict", query.trial), list(order)
            while order == before:
                rng.shuffle(order)
        letters = [LETTERS[position] for position in order]
        text, verdict = "By the criterion neither is better.", "C"
        if letters:
            text = f"Response {letters[0]} is more faithful to the context than response {letters[1]}."
            verdict = letters[0] if len(letters) == 2 else " > ".join(letters)
        if self._draws(query, "misformat", query.trial).fraction() < self._rates.misformat:
            return text
        return f"{text}\n\n[[{verdict}]]"

    def _verdict(self, query: Query) -> list[int]:
        """The verdict: presented positions, best first; empty if two responses tie by the given criterion."""
        names = [_digest(response) for response in query.responses]
        # Sorted by digest before the shuffle, so that the coin does not depend on the presented order.
        order = sorted(range(len(names)), key=lambda position: names[position])
        self._draws(query, "coin").shuffle(order)
        key = self._keys.get(query.id, _UNKNOWN)
        known = key.by_criterion.get(query.criterion, {}) if query.criterion else key.ranks
        if not known.keys() >= {*names}:
            return order
        ranks = [known[name] for name in names]
        if query.criterion and ranks == ranks[:1] * 2:
            return []
        order.sort(key=lambda position: ranks[position])  # stable: the coin still orders ties
        error = self._rates.error_at(key.length, len(names))
        if len({*ranks}) > 1 and self._draws(query, "error").fraction() < error:
            rng = self._draws(query, "wrong verdict")
            while [ranks[position] for position in order] == sorted(ranks):
                rng.shuffle(order)
        return order

    def _draws(self, query: Query, *purpose: object) -> Rng:
        criterion = (query.criterion,) if query.criterion else ()
        key = self._keys.get(query.id, _UNKNOWN)
        part: list[str] = []
        if len(query.responses) < key.responses:  # each pair of a group has errors of its own
            part = sorted(map(_digest, query.responses))
        return Rng("simulated judge", self._seed, query.id, *criterion, *part, *purpose)


def _ranks_by_text(comparison: Comparison, ranks: Sequence[int]) -> dict[str, int]:
    """Ranks by the digest of a response; responses with the same text share the better rank."""
    best: dict[str, int] = {}
    for response, rank in zip(comparison.responses, ranks, strict=False):
        name = _digest(response)
        best[name] = min(rank, best.get(name, rank))
    return best


def _digest(response: Response) -> str:
    return hashlib.sha256(text_of(response).encode()).hexdigest()
