"""A panel: several judges score the same response, each alone (paper, section 4)."""

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from longrm.errors import ConfigError
from longrm.rng import seed_of
from longrm.runs.logs import Log
from longrm.synthesis.judge import read_judgment
from longrm.synthesis.labels.agreement import Agreement
from longrm.synthesis.labels.consensus import Vote
from longrm.synthesis.model_requests import AsyncModel, TaskRequest, ask
from longrm.synthesis.stats import InputOutcome, VoteRecord


class Panel:
    """Several judges.

    Args:
        judges: Two at least, each with a name of its own.

    Raises:
        ConfigError: There are too few judges, or two have one name.
    """

    def __init__(self, judges: Sequence[AsyncModel]) -> None:
        self.names = [judge.name for judge in judges]
        if len(judges) < 2 or len(set(self.names)) < len(judges):
            raise ConfigError(
                f"voting needs two judges or more with different names, got {', '.join(self.names)}"
            )
        self._judges = judges

    async def votes(self, request: TaskRequest, response: str) -> list[Vote]:
        """Asks all judges about one response, at the same time."""
        return await asyncio.gather(*(self._vote(judge, request, response) for judge in self._judges))

    async def _vote(self, judge: AsyncModel, request: TaskRequest, response: str) -> Vote:
        # A judge's own draws: one model that votes several times, under several names, is not to repeat itself.
        own = replace(request, seed=seed_of(request.seed, judge.name))
        (answer,) = await ask(judge, own)
        found = read_judgment(answer, request, response)
        return Vote(judge.name, found.score, found.text, found.contradicted)


class VoteLog:
    """Keeps the votes of a run, each once: a killed run may have logged a batch that it now repeats."""

    def __init__(self, log: Log[VoteRecord]) -> None:
        self._log = log
        self._known = {_digest(vote.id) for vote in log}

    def append(self, outcomes: Sequence[InputOutcome]) -> None:
        """Logs the votes of a batch of inputs."""
        votes = [vote for one in outcomes for vote in one.votes]
        self._log.append(*(vote for vote in votes if _digest(vote.id) not in self._known))


def measure_agreement(votes: Iterable[VoteRecord], tolerance: float) -> Agreement:
    """The agreement of a run's judges on all responses, those without a consensus included."""
    found = Agreement(tolerance)
    for vote in votes:
        found.see(vote.scores, vote.group)
    return found


def _digest(identity: str) -> bytes:
    return hashlib.blake2b(identity.encode(errors="surrogatepass"), digest_size=8).digest()
