"""Consistency majority voting: several judges score every response alone, and the largest agreement decides.

Section 4 of the paper, with every rule in the open. Votes are clustered by their scores. The consensus is the
heaviest cluster, if it is the only heaviest and holds more than `Voting.majority` of the weight of all votes. The
chosen judgment is the vote of the consensus whose explanation agrees best with the others of it; rejected are the
votes outside it. What holds no contrast is discarded, or kept and marked as such; never shipped silently.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from pydantic import Field

from longrm.benchmarks.answer_metrics.token_f1 import word_overlap
from longrm.config import Config
from longrm.judging.answers import names_another_score
from longrm.types import Message

UNPARSED = -1
"""What stands for a score that could not be read, in rows of the released format."""

_ROUNDING = 1e-9  # as in `agreement`: scores this far beyond the tolerance still agree

_RELEASED = ("document", "query", "answer", "insert_index", "prompt_ctx_length")

Reason = Literal["", "nothing_read", "tie", "no_majority"]
Contrast = Literal["score", "format", "none"]


class VotingSettings(Config):
    """How votes become a judgment.

    With a tolerance of 0, a majority of 0.3, unparsed votes rejected and rows without contrast marked, the clusters
    and the consensus are those of the released sample; the defaults are stricter.

    Attributes:
        tolerance: Points that the scores of one cluster may be apart, from the lowest to the highest.
        majority: Share of the weight of all votes, those that could not be read included, that the consensus must
            exceed.
        ties: What happens where several clusters are the heaviest: "discard" the item, or take the one that is
            nearest to the "median" of all scores, and discard it only where two are as near.
        unparsed: Whether votes without a score are rejected judgments, which teach the form, or are left out.
        without_contrast: "discard" items whose votes outside the consensus are none, or "mark" them: then the rest
            of the consensus is rejected, as in the released sample, and the row says `contrast = "none"`.
        least_gap: Points by which two consensus scores must differ to make a pair.
    """

    tolerance: float = Field(0.0, ge=0)
    majority: float = Field(0.5, ge=0, lt=1)
    ties: Literal["discard", "median"] = "discard"
    unparsed: Literal["reject", "leave_out"] = "reject"
    without_contrast: Literal["discard", "mark"] = "discard"
    least_gap: float = Field(1.0, gt=0)


@dataclass(frozen=True, slots=True)
class Vote:
    """What one judge made of one response.

    Attributes:
        judge: The judge's name, unique among the votes for one response.
        score: In points, 0 to 10; None where none could be read.
        text: The whole judgment as it was written: an analysis, then the score.
        contradicted: Whether the text argues for another score than the one given; None where nothing tells.
    """

    judge: str
    score: float | None
    text: str = ""
    contradicted: bool | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Votes whose scores agree, in the order in which they were cast; `weight` is the sum of their judges' weights."""

    votes: tuple[Vote, ...]
    weight: float

    @property
    def score(self) -> float:
        """The mean score in points; all that there is with a tolerance of 0."""
        return sum(_score(vote) for vote in self.votes) / len(self.votes)


@dataclass(frozen=True, slots=True)
class VoteCount:
    """The count of the votes for one response.

    The heaviest cluster comes first, of equal ones that with the lower score. Where no cluster decides, `consensus` is
    None and `reason` says why.
    """

    clusters: tuple[Cluster, ...]
    unparsed: tuple[Vote, ...]
    consensus: Cluster | None
    reason: Reason = ""

    @property
    def cluster_sizes(self) -> list[int]:
        """Sizes of all clusters, the largest first, as released rows record them; unparsed votes are one more."""
        sizes = [len(cluster.votes) for cluster in self.clusters]
        return sorted(filter(None, [*sizes, len(self.unparsed)]), reverse=True)


@dataclass(frozen=True, slots=True)
class ConsensusJudgment:
    """The judgment that the votes for one response make; rejected votes of the lightest cluster come first.

    `contrast` is "score" where some rejected judgment gives a score outside the consensus, "format" where all that is
    wrong with them is that no score could be read, "none" where they say the same as the chosen one.
    """

    count: VoteCount
    chosen: Vote
    rejected: tuple[Vote, ...]
    contrast: Contrast


def clusters(
    votes: Sequence[Vote], tolerance: float = 0.0, weights: Mapping[str, float] | None = None
) -> tuple[Cluster, ...]:
    """Clusters the votes that have a score; in each, the lowest and the highest are within the tolerance.

    The heaviest possible cluster is taken first, of several the one with the lowest scores, and then the rest is
    clustered in the same way. With a tolerance of 0 these are the votes with equal scores.
    """
    left = [vote for vote in votes if vote.score is not None]
    found = []
    while left:
        windows = list(_windows(left, tolerance, weights))
        best = max(windows, key=lambda cluster: (_rounded(cluster.weight), -cluster.score))
        found.append(best)
        taken = {vote.judge for vote in best.votes}
        left = [vote for vote in left if vote.judge not in taken]
    return tuple(sorted(found, key=lambda cluster: (-_rounded(cluster.weight), cluster.score)))


def count_votes(
    votes: Sequence[Vote], settings: VotingSettings, weights: Mapping[str, float] | None = None
) -> VoteCount:
    """Counts the votes for one response.

    A judge that could not be asked has no vote: ask it again before counting.
    """
    assert len({vote.judge for vote in votes}) == len(votes), "a judge has one vote"
    found = clusters(votes, settings.tolerance, weights)
    unparsed = tuple(vote for vote in votes if vote.score is None)
    if not found:
        return VoteCount(found, unparsed, None, "nothing_read")
    best = _heaviest(votes, settings, weights)
    if best is None:
        return VoteCount(found, unparsed, None, "tie")
    if found[0].votes != best.votes:  # a tie that the median has settled
        rest = clusters([vote for vote in votes if vote not in best.votes], settings.tolerance, weights)
        found = (best, *rest)
    total = sum(_weight(vote, weights) for vote in votes)
    if best.weight <= settings.majority * total + _ROUNDING:
        return VoteCount(found, unparsed, None, "no_majority")
    return VoteCount(found, unparsed, best)


def consensus_judgment(
    counted: VoteCount, settings: VotingSettings, weights: Mapping[str, float] | None = None
) -> ConsensusJudgment | None:
    """What is chosen and rejected; None without a consensus, or where there is nothing to reject.

    Chosen is the first vote of the consensus `by_agreement`. A cluster that weighs as much as the consensus is no
    low consensus, so it is not rejected; nor are votes without any text, or with the text that is chosen.
    """
    if counted.consensus is None:
        return None
    chosen, *others = by_agreement(counted.consensus.votes, weights)
    least = _rounded(counted.consensus.weight)
    lighter = [cluster for cluster in reversed(counted.clusters) if _rounded(cluster.weight) < least]
    apart = _tellable([vote for cluster in lighter for vote in cluster.votes], chosen)
    unread = _tellable(counted.unparsed, chosen) if settings.unparsed == "reject" else []
    rejected = (*apart, *unread)  # training may read the first few only
    if rejected:
        return ConsensusJudgment(counted, chosen, rejected, "score" if apart else "format")
    same = tuple(_tellable(others, chosen))
    if same and settings.without_contrast == "mark":
        return ConsensusJudgment(counted, chosen, same, "none")
    return None


def by_agreement(votes: Sequence[Vote], weights: Mapping[str, float] | None = None) -> list[Vote]:
    """The votes of a cluster, the one whose explanation agrees best first.

    First come those whose text does not argue for another score than it gives. Among these decides the mean
    `word_overlap` of a text with every other text of the cluster: what several judges saw is said by it, and what one
    alone made up is not. Then the judge's weight, then its name.
    """

    def place(vote: Vote) -> tuple[bool, float, float, str]:
        shares = [word_overlap(vote.text, other.text) for other in votes if other is not vote]
        agreement = sum(shares) / len(shares) if shares else 0.0
        return bool(vote.contradicted), -round(agreement, 12), -_weight(vote, weights), vote.judge

    return sorted(votes, key=place)


def read_vote(judge: str, score: float | None, text: str) -> Vote:
    """A vote, with what its own text says about its score."""
    return Vote(judge, score, text, None if score is None else names_another_score(text, score))


def judgment_row(
    identity: str,
    group: str,
    prompt: Sequence[Message],
    found: ConsensusJudgment,
    columns: Mapping[str, Any],
) -> dict[str, Any]:
    """A stage-2 row (paper, section 4), as the authors' release has them; what is unknown (None) is left out.

    Of its own columns `scores` says -1 where no score could be read, `conf` has the sizes of the clusters of agreeing
    judges, the largest first, and `insert_index` is the chunk of the context at which the critical part begins.
    Beside those of the release it says `group`, `contrast` and `consensus_score`, and whatever else `columns` hold.
    """
    counted = found.count
    assert counted.consensus is not None, "a verdict has a consensus"
    assert found.rejected, "a row without a rejected judgment teaches no contrast"
    votes = [*(vote for cluster in counted.clusters for vote in cluster.votes), *counted.unparsed]
    row = {
        "id": identity,
        "chat_template": tuple(prompt),
        "chosen": found.chosen.text,
        "rejects": [vote.text for vote in found.rejected],
        "chosen_model": found.chosen.judge,
        "reject_models": [vote.judge for vote in found.rejected],
        "scores": {
            vote.judge: UNPARSED if vote.score is None else vote.score
            for vote in sorted(votes, key=lambda vote: vote.judge)
        },
        "conf": counted.cluster_sizes,
        **{name: columns[name] for name in _RELEASED if name in columns},
        **columns,
        "group": group,
        "contrast": found.contrast,
        "consensus_score": counted.consensus.score,
    }
    return {name: value for name, value in row.items() if value is not None}


def _heaviest(
    votes: Sequence[Vote], settings: VotingSettings, weights: Mapping[str, float] | None
) -> Cluster | None:
    """The one heaviest cluster that the scores allow, overlapping ones included; None where that is not one."""
    read = [vote for vote in votes if vote.score is not None]
    windows = list(_windows(read, settings.tolerance, weights))
    most = max(_rounded(cluster.weight) for cluster in windows)
    tied = [cluster for cluster in windows if _rounded(cluster.weight) == most]
    if len(tied) > 1 and settings.ties == "median":
        middle = median(_score(vote) for vote in read)
        nearest = min(_rounded(abs(cluster.score - middle)) for cluster in tied)
        tied = [cluster for cluster in tied if _rounded(abs(cluster.score - middle)) == nearest]
    return tied[0] if len(tied) == 1 else None


def _windows(
    votes: Sequence[Vote], tolerance: float, weights: Mapping[str, float] | None
) -> Iterator[Cluster]:
    """Every cluster that the tolerance allows and that no other one contains, the lowest scores first."""
    reached = float("-inf")
    for low in sorted({_score(vote) for vote in votes}):
        within = [vote for vote in votes if low <= _score(vote) <= low + tolerance + _ROUNDING]
        high = max(_score(vote) for vote in within)
        if high > reached:
            reached = high
            yield Cluster(tuple(within), sum(_weight(vote, weights) for vote in within))


def _tellable(votes: Sequence[Vote], chosen: Vote) -> list[Vote]:
    return [vote for vote in votes if vote.text.strip() and vote.text != chosen.text]


def _weight(vote: Vote, weights: Mapping[str, float] | None) -> float:
    return 1.0 if weights is None else weights[vote.judge]


def _score(vote: Vote) -> float:
    assert vote.score is not None, "votes without a score are in no cluster"
    return vote.score


def _rounded(number: float) -> float:
    """Rounded, so that sums of the same weights tie whatever the order in which they were added."""
    return round(number, 9)
