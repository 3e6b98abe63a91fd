"""One judgment against its gold order: the numbers of a single comparison that the metrics average.

Ties in the scores earn what a coin would: every figure is its expectation over the orders that are consistent
with the scores. Ties in the gold order are forgiven: any order consistent with the gold one is right.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, groupby

from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome


@dataclass(frozen=True, slots=True)
class OrderScore:
    """How well one judged order agrees with the gold one.

    Attributes:
        pairs: Pairs of responses that the gold order tells apart.
        pair_accuracy: Those of them in the judged order, ties 0.5 (a count, not a share).
        top1: Probability that the response judged best is a best one.
        exact_order: Probability that the judged order is a gold order.
        position_match: Share of positions held by a response that belongs there (LongRM, Eq. 2).
        kendall_tau: Kendall's tau-b; 0 where all scores tie.
    """

    pairs: int
    pair_accuracy: float
    top1: float
    exact_order: float
    position_match: float
    kendall_tau: float


def has_gold_order(record: JudgmentRecord) -> bool:
    """Whether the gold ranks tell at least two responses apart."""
    return record.ranks is not None and len(set(record.ranks)) > 1


def is_scored(record: JudgmentRecord) -> bool:
    """Whether the metrics count this record: no error, and gold that tells responses apart."""
    return record.outcome is not Outcome.ERROR and has_gold_order(record)


def judged_values(record: JudgmentRecord) -> tuple[float, ...] | None:
    """One value a response, higher is better, from the scores or else the ranking; None if not answered.

    Raises:
        ValueError: If an answer does not fit the gold ranks, or a score is not finite.
    """
    if record.outcome is not Outcome.ANSWERED:
        return None
    assert record.ranks is not None, "only comparisons with gold are scored"
    n = len(record.ranks)
    if record.scores:
        if len(record.scores) != n:
            raise ValueError(f"record {record.id!r} has {len(record.scores)} scores for {n} gold ranks")
        if not all(map(math.isfinite, record.scores)):
            raise ValueError(f"record {record.id!r} has a score that is not finite")
        return record.scores
    if sorted(record.ranking) != list(range(n)):
        raise ValueError(f"record {record.id!r} is answered without {n} scores or an order of {n} responses")
    places = {response: place for place, response in enumerate(record.ranking)}
    return tuple(float(-places[response]) for response in range(n))


def ordered_pairs(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Index pairs (better, worse) that the gold ranks tell apart."""
    return [
        (i, j) if ranks[i] < ranks[j] else (j, i)
        for i, j in combinations(range(len(ranks)), 2)
        if ranks[i] != ranks[j]
    ]


def score_order(values: Sequence[float], ranks: Sequence[int]) -> OrderScore:
    """Scores judged values (higher is better) against gold ranks (1 = best) that are not all equal."""
    blocks = _tie_blocks(values)
    pairs = ordered_pairs(ranks)
    concordant = sum(values[i] > values[j] for i, j in pairs)
    tied = sum(values[i] == values[j] for i, j in pairs)
    best, top = min(ranks), blocks[0]
    return OrderScore(
        pairs=len(pairs),
        pair_accuracy=concordant + tied / 2,
        top1=sum(ranks[i] == best for i in top) / len(top),
        exact_order=_exact_order(blocks, ranks),
        position_match=_position_match(blocks, ranks),
        kendall_tau=_tau_b(2 * concordant + tied - len(pairs), len(pairs), blocks),
    )


@lru_cache(maxsize=1024)
def chance_score(ranks: tuple[int, ...]) -> OrderScore:
    """What a random order earns on average: what tying all responses earns, as ties are expectations."""
    return score_order((0.0,) * len(ranks), ranks)


def _tie_blocks(values: Sequence[float]) -> list[list[int]]:
    """Indices by falling value, those of equal value together."""
    order = sorted(range(len(values)), key=lambda index: -values[index])
    return [list(block) for _, block in groupby(order, key=lambda index: values[index])]


def _exact_order(blocks: Sequence[Sequence[int]], ranks: Sequence[int]) -> float:
    share, last = 1.0, 0
    for block in blocks:
        block_ranks = [ranks[i] for i in block]
        if min(block_ranks) < last:
            return 0.0
        last = max(block_ranks)
        right = math.prod(math.factorial(count) for count in Counter(block_ranks).values())
        share *= right / math.factorial(len(block))
    return share


def _position_match(blocks: Sequence[Sequence[int]], ranks: Sequence[int]) -> float:
    gold, start, matches = sorted(ranks), 0, 0.0
    for block in blocks:
        held = Counter(ranks[i] for i in block)
        # Every member stands at each position of its block with equal probability.
        matches += sum(held[rank] for rank in gold[start : start + len(block)]) / len(block)
        start += len(block)
    return matches / len(ranks)


def _tau_b(surplus: int, gold_pairs: int, blocks: Sequence[Sequence[int]]) -> float:
    """Tau-b (Kendall 1945) from concordant - discordant, the pairs untied in gold, and the judged ties."""
    n = sum(map(len, blocks))
    judged_pairs = math.comb(n, 2) - sum(math.comb(len(block), 2) for block in blocks)
    return surplus / math.sqrt(gold_pairs * judged_pairs) if judged_pairs else 0.0
