"""Consistency majority voting: several judges score every response on their own, and the largest agreement decides.

Section 4 of the paper, with every rule explicit. Votes with equal scores form a cluster. The consensus is the largest
cluster if no other is as large and it has more than a given share of all votes. Chosen is the judgment in the
consensus whose explanation agrees best with the others there; rejected are the votes outside it. Responses without such
a contrast are dropped. `Agreement` measures how far judges agree.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from longrm.benchmarks.answer_metrics import word_overlap
from longrm.judging.answers import names_another_score
from longrm.reading import is_number
from longrm.runs.records import Estimate
from longrm.types import Comparison, Message, text_of

UNPARSED = -1
"""Stands for a missing score in rows of the released format."""

_ROUNDING = 1e-9  # 0.3 of ten votes is a little more than three in floats

Reason = Literal["", "nothing_read", "tie", "no_majority"]
Contrast = Literal["score", "format", "none"]


@dataclass(frozen=True, slots=True)
class Vote:
    """One judge's judgment of one response."""

    judge: str  # unique among the votes for a response
    score: float | None  # in points, 0 to 10; None if there is none
    text: str = ""  # the analysis and the score as they were written, without thinking
    contradicted: bool | None = None  # whether the text argues for another score; None if that is unknown
    reason: str = ""  # why there is no score: an outcome, "unparsed" or "not_whole"


@dataclass(frozen=True, slots=True)
class VoteCount:
    """The votes for one response, and the judgment that they make."""

    # Votes with equal scores; the largest cluster first, of equally large ones that with the lower score.
    clusters: tuple[tuple[Vote, ...], ...]
    unparsed: tuple[Vote, ...]  # votes without a score
    reason: Reason = ""  # why there is no consensus
    chosen: Vote | None = None  # the judgment to learn; None if there is no consensus, or nothing to reject
    rejected: tuple[Vote, ...] = ()  # the votes to reject, those of the smallest cluster first
    # "score" if a rejected judgment gives a score outside the consensus, "format" if the rejected ones only lack a
    # score, "none" if nothing is rejected
    contrast: Contrast = "none"

    @property
    def consensus(self) -> tuple[Vote, ...]:
        """The cluster that decides; empty if there is none."""
        return () if self.reason else self.clusters[0]

    @property
    def consensus_score(self) -> float | None:
        """The score of the consensus in points; None without one."""
        return self.consensus[0].score if self.consensus else None

    @property
    def votes(self) -> list[Vote]:
        """All votes, those of the largest cluster first."""
        return [*(vote for cluster in self.clusters for vote in cluster), *self.unparsed]

    @property
    def cluster_sizes(self) -> list[int]:
        """Sizes of all clusters, the largest first, as released rows record them; unparsed votes are one more."""
        return sorted(filter(None, map(len, (*self.clusters, self.unparsed))), reverse=True)


def count_votes(votes: Sequence[Vote], majority: float) -> VoteCount:
    """Counts the votes for one response; the consensus needs more than the share `majority` of all of them.

    Votes without a score count too. With a majority of 0.3, consensus and clusters are those of the released sample.
    """
    assert len({vote.judge for vote in votes}) == len(votes), "a judge has one vote"
    by_score: dict[float, list[Vote]] = {}
    for vote in votes:
        if vote.score is not None:
            by_score.setdefault(vote.score, []).append(vote)
    scores = sorted(by_score, key=lambda score: (-len(by_score[score]), score))
    clusters = tuple(tuple(by_score[score]) for score in scores)
    unparsed = tuple(vote for vote in votes if vote.score is None)
    if not clusters:
        return VoteCount(clusters, unparsed, "nothing_read")
    if len(clusters) > 1 and len(clusters[0]) == len(clusters[1]):
        return VoteCount(clusters, unparsed, "tie")
    if len(clusters[0]) <= majority * len(votes) + _ROUNDING:
        return VoteCount(clusters, unparsed, "no_majority")

    chosen = by_agreement(clusters[0])[0]

    def rejectable(votes: Sequence[Vote]) -> list[Vote]:
        return [vote for vote in votes if vote.text.strip() and vote.text != chosen.text]

    outside = rejectable([vote for cluster in reversed(clusters[1:]) for vote in cluster])
    unread = rejectable(unparsed)  # last: training may read only the first few
    if not outside and not unread:
        return VoteCount(clusters, unparsed)
    return VoteCount(
        clusters,
        unparsed,
        chosen=chosen,
        rejected=(*outside, *unread),
        contrast="score" if outside else "format",
    )


def by_agreement(votes: Sequence[Vote]) -> list[Vote]:
    """The votes of a cluster, the one whose explanation agrees best first.

    Votes whose text argues for another score come last. Then the mean `word_overlap` of a text with the other texts
    decides: it contains what several judges saw, not what one alone made up. Then the judge's name.
    """

    def key(vote: Vote) -> tuple[bool, float, str]:
        overlaps = [word_overlap(vote.text, other.text) for other in votes if other is not vote]
        agreement = sum(overlaps) / len(overlaps) if overlaps else 0.0
        return bool(vote.contradicted), -round(agreement, 12), vote.judge

    return sorted(votes, key=key)


def judgment_row(
    identity: str, group: str, prompt: Sequence[Message], count: VoteCount, columns: Mapping[str, Any]
) -> dict[str, Any]:
    """A stage-2 row (paper, section 4) in the format of the authors' release; None is left out.

    `scores` has -1 for a missing score, `conf` the sizes of the clusters, the largest first, and `insert_index` the
    chunk of the context at which the critical part begins. `group`, `contrast`, `consensus_score` and further `columns`
    are additions to the release.
    """
    assert count.chosen is not None, "a row has a consensus and contrast"
    released = ("document", "query", "answer", "insert_index", "prompt_ctx_length")
    row = {
        "id": identity,
        "chat_template": tuple(prompt),
        "chosen": count.chosen.text,
        "rejects": [vote.text for vote in count.rejected],
        "chosen_model": count.chosen.judge,
        "reject_models": [vote.judge for vote in count.rejected],
        "scores": {
            vote.judge: UNPARSED if vote.score is None else vote.score
            for vote in sorted(count.votes, key=lambda vote: vote.judge)
        },
        "conf": count.cluster_sizes,
        **{name: columns[name] for name in released if name in columns},  # these columns come first
        **columns,
        "group": group,
        "contrast": count.contrast,
        "consensus_score": count.consensus_score,
    }
    return {name: value for name, value in row.items() if value is not None}


@dataclass(frozen=True, slots=True)
class VoteVerification:
    """A released row counted again, compared with what it records."""

    votes: tuple[Vote, ...]  # in the order of the judges' names
    conf: tuple[int, ...]  # the recorded sizes of the clusters
    rejected: tuple[str, ...]  # the recorded judges of the rejected judgments, in the row's order
    contrast: Contrast  # as recorded, or from the recorded scores
    same_conf: bool  # the clusters have the recorded sizes
    same_consensus: bool  # the chosen judgment is in the consensus
    same_chosen: bool  # its explanation agrees best with the others there
    outside: tuple[str, ...]  # the rejected judges outside the consensus: our rules reject no others


def verify_votes(row: Comparison) -> VoteVerification | None:
    """Counts the votes of a released row again; None if it does not have its judges' scores and names.

    The consensus is the only largest cluster: the row itself shows that it was enough.
    """
    scores, sizes, chosen, rejected = (
        row.metadata.get(name) for name in ("scores", "conf", "chosen_model", "reject_models")
    )
    if row.role != "judgment" or not isinstance(scores, Mapping) or not isinstance(rejected, list):
        return None
    known = {judge: score for judge, score in scores.items() if is_number(score)}
    judges = [str(chosen), *map(str, rejected)]
    if len(judges) != len(row.responses) or not set(judges) <= known.keys():
        return None
    texts = dict(zip(judges, map(text_of, row.responses), strict=True))
    votes = []
    for judge, score in sorted(known.items()):
        text = texts.get(judge, "")
        contradicted = None if score == UNPARSED else names_another_score(text, float(score))
        votes.append(Vote(judge, None if score == UNPARSED else float(score), text, contradicted))
    count = count_votes(votes, majority=0.0)
    consensus = [vote.judge for vote in by_agreement(count.consensus)]
    contrast: Any = row.metadata.get("contrast")
    if contrast not in get_args(Contrast):  # released rows do not record it
        others = {known[judge] for judge in judges[1:]} - {known[judges[0]]}
        contrast = "score" if others - {UNPARSED} else "format" if others else "none"
    conf = tuple(sizes) if isinstance(sizes, list) else ()
    return VoteVerification(
        votes=tuple(votes),
        conf=conf,
        rejected=tuple(judges[1:]),
        contrast=contrast,
        same_conf=list(conf) == count.cluster_sizes,
        same_consensus=judges[0] in consensus,
        same_chosen=consensus[:1] == judges[:1],
        outside=tuple(judge for judge in judges[1:] if judge not in consensus),
    )


_FloatArray = npt.NDArray[np.float64]


class Agreement:
    """Collects scores item by item; two scores agree if they are equal."""

    def __init__(self) -> None:
        self._origin: float | None = None
        # By group: scores, their sum, the sum of their squares, the within-item spread, pairs, agreeing pairs.
        self._groups: dict[str, list[float]] = {}
        self._asked: dict[str, list[int]] = {}  # by judge: items, and those without a score
        # By two judges: pairs, agreeing pairs, sum of distances.
        self._pairs: dict[tuple[str, str], list[float]] = {}

    def see(self, scores: Mapping[str, float | None], group: str) -> None:
        """Adds one item: the score of each judge in points, None if it has none."""
        for judge, score in scores.items():
            counts = self._asked.setdefault(judge, [0, 0])
            counts[0] += 1
            counts[1] += score is None
        read = {judge: score for judge, score in sorted(scores.items()) if score is not None}
        if len(read) < 2:  # a single score contains no information about agreement
            return
        agreeing = 0
        for one, other in combinations(read, 2):
            distance = abs(read[one] - read[other])
            agree = int(not distance)
            agreeing += agree
            known = self._pairs.get((one, other), [0, 0, 0.0])
            self._pairs[one, other] = [known[0] + 1, known[1] + agree, known[2] + distance]
        if self._origin is None:
            self._origin = next(iter(read.values()))
        values = np.array([*read.values()]) - self._origin  # near 0, so that squares lose no digits
        size = len(values)
        # Krippendorff weighs the within-item spread of n_i scores by n_i / (n_i - 1).
        spread = float(((values - values.mean()) ** 2).sum()) * size / (size - 1)
        found = (size, values.sum(), (values**2).sum(), spread, size * (size - 1) / 2, agreeing)
        sums = self._groups.get(group, [0.0] * 6)
        self._groups[group] = [old + float(new) for old, new in zip(sums, found, strict=True)]

    def alpha(self, *, resamples: int = 1000, seed: int = 0) -> Estimate:
        """Krippendorff's alpha for interval data with missing values (Krippendorff 2011, section D).

        1 is perfect agreement and 0 chance; undefined if all scores are equal, since chance would agree as well. `n`
        counts the scores of items with two scores or more.
        """
        return self._estimate(_alpha, 0, resamples, seed)

    def pairwise(self, *, resamples: int = 1000, seed: int = 0) -> Estimate:
        """The share of all pairs of scores for the same item that are equal."""
        return self._estimate(_share, 4, resamples, seed)

    def to_dict(self) -> dict[str, Any]:
        """For the manifest; intervals are a bootstrap over groups, and judges are in alphabetical order."""
        judges: dict[str, Any] = {}
        for judge, (asked, unparsed) in sorted(self._asked.items()):
            pairs = [found for names, found in self._pairs.items() if judge in names]
            compared, agreeing = (sum(found[at] for found in pairs) for at in (0, 1))
            share = agreeing / compared if compared else None
            judges[judge] = {"asked": asked, "unparsed": unparsed, "agreement_with_others": share}
        return {
            "krippendorff_alpha": asdict(self.alpha()),
            "pairwise": asdict(self.pairwise()),
            "pairs": [
                {"judges": list(names), "n": n, "agreement": agreeing / n, "mean_distance": distance / n}
                for names, (n, agreeing, distance) in sorted(self._pairs.items())
            ],
            "judges": judges,
        }

    def _estimate(
        self, measure: Callable[[_FloatArray], float | None], counted: int, resamples: int, seed: int
    ) -> Estimate:
        """A measure of the sums over groups, with a percentile bootstrap; column `counted` is its n."""
        table = np.array([*self._groups.values()]).reshape(-1, 6)
        groups = len(table)
        totals = table.sum(axis=0)
        value, n = measure(totals), round(float(totals[counted]))
        if value is None or groups < 2:
            return Estimate(value, None, None, n, groups)
        # Groups are drawn, not items: the scores of answers about one document vary together.
        rng = np.random.default_rng(seed)
        replicates = []
        for _ in range(resamples):  # one at a time: a table of all draws would grow with the groups
            weights = np.bincount(rng.integers(0, groups, groups), minlength=groups)
            replicates.append(measure(weights @ table))
        defined = [replicate for replicate in replicates if replicate is not None]
        if not defined:
            return Estimate(value, None, None, n, groups)
        low, high = np.quantile(defined, (0.025, 0.975))
        return Estimate(value, float(low), float(high), n, groups)


def _alpha(sums: _FloatArray) -> float | None:
    n, total, squares, within = (float(number) for number in sums[:4])
    if n < 2:
        return None
    spread = squares - total**2 / n
    if spread <= 1e-12 * max(1.0, squares):  # all scores are equal
        return None
    return 1.0 - (within / n) / (spread / (n - 1))  # 1 - observed / expected disagreement


def _share(sums: _FloatArray) -> float | None:
    pairs, agreeing = float(sums[4]), float(sums[5])
    return agreeing / pairs if pairs else None
