"""Asks several judges about the same responses, each alone, and counts their votes."""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from longrm.clients import Completion, Request
from longrm.errors import ConfigError
from longrm.rng import seed_of
from longrm.runs.logs import Log
from longrm.synthesis.agreement import Agreement
from longrm.synthesis.asking import check_asked
from longrm.synthesis.judged import read_judgment
from longrm.synthesis.pipeline import Asked
from longrm.synthesis.voting import Tally, Vote, Voting, tally


@dataclass(frozen=True, slots=True)
class Ballot:
    """One response to be judged alone.

    Attributes:
        id: Unique in its run.
        group: The document or context that it shares with others.
        request: What every judge is asked.
        response: What is judged.
    """

    id: str
    group: str
    request: Request
    response: str


@dataclass(frozen=True, slots=True)
class Cast:
    """What all judges said about one ballot (`votes.jsonl`): the agreement of a run is measured on these.

    Attributes:
        id: The ballot's id.
        group: Its group.
        scores: By judge, in points; None where none could be read.
    """

    id: str
    group: str
    scores: dict[str, float | None]


class Election:
    """Several judges and the rules by which their votes are counted.

    Args:
        judges: Two at least, each with a name of its own.
        voting: The rules.
        weights: What every judge's vote weighs, such as `Agreement.weights`; 1 where not given.
        votes: Where the votes are logged, if anywhere; it must be open.

    Raises:
        ConfigError: There are too few judges, two have one name, or a weight is missing.
    """

    def __init__(
        self,
        judges: Sequence[Asked],
        voting: Voting,
        *,
        weights: Mapping[str, float] | None = None,
        votes: Log[Cast] | None = None,
    ) -> None:
        names = [judge.name for judge in judges]
        if len(names) < 2 or len(set(names)) < len(names):
            raise ConfigError(f"voting needs two judges or more with different names, got {', '.join(names)}")
        missing = sorted(set(names) - weights.keys()) if weights is not None else []
        if missing:
            raise ConfigError(f"no weight for the judges {', '.join(missing)}; give every judge one")
        self.voting, self.weights = voting, weights
        self._judges, self._votes = judges, votes
        # A killed run may have logged a batch that it now repeats.
        self._logged = {_digest(cast.id) for cast in votes} if votes is not None else set()

    async def hold(self, ballots: Sequence[Ballot]) -> list[Tally]:
        """Asks all judges about all ballots, at the same time, and counts the votes on each.

        Raises:
            RunError: A judge could not be asked. What was answered is in its cache.
        """
        answers = await asyncio.gather(
            *(
                judge.ask([_of_judge(ballot.request, judge.name) for ballot in ballots])
                for judge in self._judges
            )
        )
        for judge, answered in zip(self._judges, answers, strict=True):
            check_asked(judge, answered)
        cast = [
            tuple(_vote(judge.name, ballot, answer) for judge, answer in zip(self._judges, said, strict=True))
            for ballot, said in zip(ballots, zip(*answers, strict=True), strict=True)
        ]
        self._log(ballots, cast)
        return [tally(votes, self.voting, self.weights) for votes in cast]

    def _log(self, ballots: Sequence[Ballot], cast: Sequence[tuple[Vote, ...]]) -> None:
        if self._votes is None:
            return
        for ballot, votes in zip(ballots, cast, strict=True):
            if _digest(ballot.id) not in self._logged:
                self._votes.append(Cast(ballot.id, ballot.group, {vote.judge: vote.score for vote in votes}))


def measured(votes: Iterable[Cast], tolerance: float) -> Agreement:
    """The agreement of a run's judges on all its ballots, those without a consensus included.

    Args:
        votes: What `votes.jsonl` holds, each ballot once.
        tolerance: Points by which scores that agree may differ.
    """
    found = Agreement(tolerance)
    for cast in votes:
        found.see(cast.scores, cast.group)
    return found


def _vote(judge: str, ballot: Ballot, answer: Completion) -> Vote:
    judged = read_judgment(answer, ballot.request, ballot.response)
    return Vote(judge, judged.score, judged.text, judged.contradicted)


def _of_judge(request: Request, judge: str) -> Request:
    """A judge's own draws: one model that votes several times, under several names, is not to repeat itself."""
    return replace(request, seed=seed_of(request.seed, judge))


def _digest(identity: str) -> bytes:
    return hashlib.blake2b(identity.encode(errors="surrogatepass"), digest_size=8).digest()
