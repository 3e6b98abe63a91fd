"""Counts the votes of released stage-2 rows again, and says where rules and rows differ.

The rows tell every judge's score, the sizes of the clusters, and which judges wrote what was chosen and rejected.
Under our rules they are counted again: what the recorded scores decide must come out as it was recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longrm.reading import is_number
from longrm.synthesis.labels.consensus import (
    UNPARSED,
    Contrast,
    Vote,
    VoteCount,
    VotingSettings,
    by_agreement,
    count_votes,
    read_vote,
)
from longrm.types import Comparison, text_of

_CONTRASTS: tuple[Contrast, ...] = ("score", "format", "none")


@dataclass(frozen=True, slots=True)
class VoteVerification:
    """One row, counted again under the given rules: what it records, and the `count` that comes out.

    `votes` are in the order of the judges' names and `rejected` in the row's; `conf` are the recorded sizes of the
    clusters.
    """

    id: str
    votes: tuple[Vote, ...]
    count: VoteCount
    conf: tuple[int, ...]
    chosen: str
    rejected: tuple[str, ...]
    contrast: Contrast
    weights: Mapping[str, float] | None = None

    @property
    def same_conf(self) -> bool:
        """Whether the clusters have the recorded sizes."""
        return list(self.conf) == self.count.cluster_sizes

    @property
    def same_consensus(self) -> bool:
        """Whether there is a consensus, and the chosen judgment is one of it."""
        return self.chosen in self.consensus

    @property
    def consensus(self) -> tuple[str, ...]:
        """The judges of the consensus; none where there is none."""
        held = self.count.consensus
        return () if held is None else tuple(vote.judge for vote in held.votes)

    @property
    def same_chosen(self) -> bool:
        """Whether the explanation that agrees best with its consensus is the one that was chosen."""
        held = self.count.consensus
        return held is not None and by_agreement(held.votes, self.weights)[0].judge == self.chosen

    @property
    def outside(self) -> tuple[str, ...]:
        """The rejected judges that are outside the consensus: the only ones that our rules reject."""
        return tuple(judge for judge in self.rejected if judge not in self.consensus)


def verify_votes(
    row: Comparison, settings: VotingSettings, weights: Mapping[str, float] | None = None
) -> VoteVerification | None:
    """Counts one row's votes again.

    Returns:
        None where the row does not tell the scores of its judges, or who wrote its judgments.
    """
    scores, conf, chosen, rejected = (
        row.metadata.get(name) for name in ("scores", "conf", "chosen_model", "reject_models")
    )
    if row.role != "judgment" or not isinstance(scores, Mapping) or not isinstance(rejected, list):
        return None
    known = {judge: score for judge, score in scores.items() if is_number(score)}
    judges = [str(chosen), *map(str, rejected)]
    if len(judges) != len(row.responses) or not set(judges) <= known.keys():
        return None
    texts = dict(zip(judges, map(text_of, row.responses), strict=True))
    votes = tuple(
        read_vote(judge, None if score == UNPARSED else float(score), texts.get(judge, ""))
        for judge, score in sorted(known.items())
    )
    sizes = tuple(conf) if isinstance(conf, list) else ()
    weighing = weights if weights is not None and known.keys() <= weights.keys() else None
    counted = count_votes(votes, settings, weighing)
    stated = row.metadata.get("contrast")
    contrast = next((one for one in _CONTRASTS if one == stated), None) or _contrast(judges, known)
    return VoteVerification(row.id, votes, counted, sizes, judges[0], tuple(judges[1:]), contrast, weighing)


def _contrast(judges: Sequence[str], scores: Mapping[str, float]) -> Contrast:
    others = {scores[judge] for judge in judges[1:]} - {scores[judges[0]]}
    if others - {UNPARSED}:
        return "score"
    return "format" if others else "none"
