"""Several reward models that judge together, by mean rank or by votes."""

from collections.abc import Callable, Mapping, Sequence

from longrm.errors import ConfigError, nearest
from longrm.reward_models.kinds import LoadRequest
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.trials import mean_scores, points
from longrm.types import Judgment, Outcome, Query, Scale, Trial

Points = Sequence[float]
"""What one member gives to every response, higher is better."""


def _mean_rank(points: Points) -> list[float]:
    """1 for the best place down to 0 for the last; responses that tie share their places."""
    others = max(1, len(points) - 1)
    beaten = [sum((one > other) + 0.5 * (one == other) for other in points) - 0.5 for one in points]
    return [count / others for count in beaten]


def _votes(points: Points) -> list[float]:
    """One vote for the best; responses that tie for it share it."""
    top = max(points)
    best = [float(value == top) for value in points]
    return [value / sum(best) for value in best]


COMBINATIONS: Mapping[str, Callable[[Points], list[float]]] = {"mean-rank": _mean_rank, "votes": _votes}
"""What each member says to a response, by the names of the ways to combine; an ensemble says the mean over members."""


class EnsembleRewardModel(RewardModel):
    """The mean over several reward models of the place that each gives to a response, or of its vote for the best.

    What only the scale of a member says is lost, so that members of any kinds can judge together. Each member is asked
    in all orders that it sees, so an ensemble sees none. It answers where every member does: with another panel for
    every comparison, nobody could say whose judgment is measured. Else the outcome is that of the first member
    without an answer, or an error where any ended in one.

    Args:
        members: Two at least.
        combination: One of `COMBINATIONS`.

    Raises:
        ConfigError: There are fewer members, or no such combination.
    """

    scale: Scale = "verdict"

    def __init__(self, members: Sequence[RewardModel], combination: str) -> None:
        if combination not in COMBINATIONS:
            raise ConfigError(f"no ensemble '{combination}'; {nearest(combination, COMBINATIONS)}")
        if len(members) < 2:
            raise ConfigError("an ensemble needs at least two models, with a + between them")
        self.name = f"ensemble:{combination}:{'+'.join(member.name for member in members)}"
        self.samples = any(member.samples for member in members)
        self.by_criterion = all(member.by_criterion for member in members)
        self.provenance = {
            f"{number} {key}": said
            for number, member in enumerate(members, start=1)
            for key, said in member.provenance.items()
        }
        self._members = members
        self._combine = COMBINATIONS[combination]

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Asks one member after the other about all queries."""
        judged = [member.judge_in_all_orders(queries) for member in self._members]
        return [self._together(trials) for trials in zip(*judged, strict=True)]

    def _together(self, trials: Sequence[Trial]) -> Judgment:
        silent = [place for place, trial in enumerate(trials) if trial.outcome is not Outcome.ANSWERED]
        if silent:
            place = next((place for place in silent if trials[place].outcome is Outcome.ERROR), silent[0])
            return Judgment(
                trials[place].outcome, detail=f"{self._members[place].name}: {trials[place].detail}"
            )
        return Judgment(Outcome.ANSWERED, mean_scores([self._combine(points(trial)) for trial in trials]))


def load_ensemble(name: str, request: LoadRequest) -> EnsembleRewardModel:
    """Loads `ensemble:COMBINATION:MODEL+MODEL+...`, models of any kinds but ensembles.

    Raises:
        ConfigError: There is no such combination, fewer than two models, an ensemble among them, or one has no name.
    """
    combination, _, members = name.partition(":")
    if combination not in COMBINATIONS:
        raise ConfigError(f"no ensemble '{combination}'; {nearest(combination, COMBINATIONS)}")
    names = members.split("+")
    if any(member.startswith("ensemble:") for member in names):
        raise ConfigError(f"'ensemble:{name}': an ensemble holds models of every kind but ensembles")
    if not all(names):
        raise ConfigError(f"'ensemble:{name}': an ensemble needs a model on both sides of every +")
    return EnsembleRewardModel([request.load(member) for member in names], combination)
