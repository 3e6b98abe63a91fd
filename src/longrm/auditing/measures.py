"""Summaries of the numbers that an audit keeps of each row: lengths, depths of evidence, biases and votes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy import stats

from longrm.auditing.rows import Evidence
from longrm.benchmarks.benchmark import bucket
from longrm.evaluation.estimates import ratio
from longrm.evaluation.table import Bootstrap
from longrm.runs.records import Estimate
from longrm.synthesis.voting import Agreement, VoteVerification

# Of the bootstrap. The seed is fixed: another one would only move the intervals by their sampling error.
_BOOTSTRAP = Bootstrap(resamples=1000, seed=0)

_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of texts in tokens."""

    texts: int
    total: int
    quantiles: Mapping[str, float]  # by the share of the texts that are no longer: 0, 0.05, 0.25, 0.5, ...
    buckets: Mapping[int, int]  # texts by the power of two that their length is rounded up to


def lengths_of(tokens: Sequence[int]) -> Lengths:
    """Summarizes lengths; there must be one at least."""
    values = np.array(tokens)
    return Lengths(
        texts=len(values),
        total=int(values.sum()),
        quantiles={f"{share:g}": float(np.quantile(values, share)) for share in _QUANTILES},
        buckets=dict(sorted(Counter(map(bucket, tokens)).items())),
    )


@dataclass(frozen=True, slots=True)
class Depths:
    """Depths of evidence: the share of the rest of the context that precedes it, from 0 to 1."""

    known: int  # pieces of evidence whose depth is known; rows with the same context count once
    tenths: tuple[int, ...]  # how many are in each tenth of the depth
    mean: float | None
    # The p-value of a chi-squared test that depths are uniform, over pieces of at most a twentieth of their context:
    # large pieces have few possible depths. None for fewer than 50 pieces.
    even: float | None


def depths_of(evidence: Iterable[Evidence]) -> Depths:
    """Summarizes the evidence of different contexts."""
    pieces = [piece for one in evidence for piece in one.pieces]
    tenths, small = [0] * 10, [0] * 10
    for depth, share in pieces:
        tenth = min(9, int(depth * 10))
        tenths[tenth] += 1
        small[tenth] += share <= 0.05
    return Depths(
        known=len(pieces),
        tenths=tuple(tenths),
        mean=sum(depth for depth, _ in pieces) / len(pieces) if pieces else None,
        # Fewer than five expected in each tenth would make the test unreliable.
        even=float(stats.chisquare(small).pvalue) if sum(small) >= 50 else None,
    )


@dataclass(frozen=True, slots=True)
class Bias(Estimate):
    """How often an irrelevant feature goes with the better response, and how often it would by chance."""

    chance: float | None


def bias_of(observations: Sequence[tuple[int, float, float]]) -> Bias:
    """The bias by its observations: a group's code, whether the feature holds (0.5 at a tie), and the chance of it."""
    if not observations:
        return Bias(None, None, None, 0, 0, None)
    groups, held, chance = map(np.array, zip(*observations, strict=True))
    estimate = ratio(held.astype(float), np.ones(len(held)), groups, **_BOOTSTRAP)
    return Bias(**asdict(estimate), chance=float(chance.mean()))


@dataclass(frozen=True, slots=True)
class Votes:
    """The votes of judgment rows, counted again: equal scores form a cluster, and the only largest one decides.

    Rows without a decision were not kept, so these votes are a selection.
    """

    rows: int  # rows that record each judge's score
    recorded: int  # of these, rows that record the sizes of their clusters
    same_clusters: int  # of these, rows whose clusters have the recorded sizes
    chosen_inside: int  # rows whose chosen judgment is in the only largest cluster
    chosen_agrees: int  # of these, rows in which no other explanation agrees better with those of the cluster
    rejected: int  # rejected judgments
    rejected_outside: int  # of these, those outside the cluster or without a score
    alpha: Estimate  # Krippendorff's alpha over all scores
    pairwise: Estimate  # the share of pairs of scores that are equal


class VoteMeasure:
    """Counts the votes of judgment rows; their texts are not kept."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._agreement = Agreement()

    def see(self, found: VoteVerification, group: str) -> None:
        """Counts one row's votes."""
        self._agreement.see({vote.judge: vote.score for vote in found.votes}, group)
        self._counts.update(
            rows=1,
            recorded=bool(found.conf),
            same_clusters=bool(found.conf) and found.same_conf,
            chosen_inside=found.same_consensus,
            chosen_agrees=found.same_chosen,
            rejected=len(found.rejected),
            rejected_outside=len(found.outside),
        )

    def result(self) -> Votes | None:
        """The counts, and how far the judges agree; None without votes."""
        if not self._counts:
            return None
        alpha, pairwise = self._agreement.alpha(**_BOOTSTRAP), self._agreement.pairwise(**_BOOTSTRAP)
        return Votes(**self._counts, alpha=alpha, pairwise=pairwise)
