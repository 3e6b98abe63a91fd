"""Asks the judges for their votes, and turns every case's votes into stage-2 rows or pairs."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

from pydantic import Field

from longrm.clients import Completion, Request
from longrm.config import Config
from longrm.data.native import to_row
from longrm.errors import ConfigError, RunError
from longrm.judging import Format, load_format
from longrm.runs.logs import Log
from longrm.synthesis.agreement import Agreement
from longrm.synthesis.pipeline import Asked, Fates, Made
from longrm.synthesis.records import to_row as record_row
from longrm.synthesis.voting import Tally, Vote, Voting, judgment_row, pair, read_vote, tally, verdict
from longrm.types import Message, Outcome, Query, as_messages


class Asking(Config):
    """How the judges are asked, and what is made of their votes.

    Attributes:
        max_tokens: The most tokens that a judge may write about one response.
        temperature: 0 takes the likeliest token each time.
        seed: Draws the tokens where the temperature is above 0; every ballot has its own.
        rows: "judgments", stage-2 rows of a chosen judgment and rejected ones, or "pairs", comparisons of responses
            by their consensus scores.
        voting: The rules.
    """

    max_tokens: int = Field(1024, ge=1)
    temperature: float = Field(0.0, ge=0)
    seed: int = 0
    rows: Literal["judgments", "pairs"] = "judgments"
    voting: Voting = Voting()


@dataclass(frozen=True, slots=True)
class Ballot:
    """One response to be judged alone.

    Attributes:
        response: What was answered.
        model: What wrote it.
        asked: The judging prompt that the judges read: the short context, and the rubric.
        trained: The judging prompt of the row: long, and without the rubric.
        metadata: More columns of the row, such as `insert_index`, `perturbation` and `prompt_ctx_length`.
    """

    response: str
    model: str
    asked: tuple[Message, ...]
    trained: tuple[Message, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """Responses to one prompt.

    Attributes:
        id: Unique in its run.
        group: The document or context that this case shares with others.
        prompt: What the responses answer.
        ballots: One a response.
        metadata: What rows of all kinds are to tell.
    """

    id: str
    group: str
    prompt: tuple[Message, ...]
    ballots: tuple[Ballot, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cast:
    """What all judges said about one ballot (`votes.jsonl`): the agreement of a run is measured on these.

    Attributes:
        id: The case's id and the ballot's number.
        group: The case's group.
        scores: By judge, in points; None where none could be read.
    """

    id: str
    group: str
    scores: dict[str, float | None]


class Election:
    """The work of a voting pipeline: cases in, rows out.

    Args:
        judges: Two at least, each with a name of its own.
        asking: How they are asked.
        weights: What every judge's vote weighs, such as `Agreement.weights`; 1 where not given.
        votes: Where the votes are logged, if anywhere; it must be open.
        judging: How an answer is read; `pointwise` where not given.

    Raises:
        ConfigError: There are too few judges, two have one name, or a weight is missing.
    """

    def __init__(
        self,
        judges: Sequence[Asked],
        asking: Asking,
        *,
        weights: Mapping[str, float] | None = None,
        votes: Log[Cast] | None = None,
        judging: Format | None = None,
    ) -> None:
        names = [judge.name for judge in judges]
        if len(names) < 2 or len(set(names)) < len(names):
            raise ConfigError(f"voting needs two judges or more with different names, got {', '.join(names)}")
        missing = sorted(set(names) - weights.keys()) if weights is not None else []
        if missing:
            raise ConfigError(f"no weight for the judges {', '.join(missing)}; give every judge one")
        self._judges, self._asking, self._weights, self._votes = judges, asking, weights, votes
        self._judging = judging or load_format("pointwise")
        self._logged = {cast.id for cast in votes} if votes is not None else set()

    async def work(self, cases: Sequence[Case]) -> list[Made]:
        """Asks all judges about all responses of the cases, each alone, and counts.

        Raises:
            RunError: A judge could not be asked. What was answered is in its cache.
        """
        ballots = [ballot for case in cases for ballot in case.ballots]
        names = [f"{case.id}/{number}" for case in cases for number, _ in enumerate(case.ballots)]
        cast = await self.cast(names, ballots)
        self._log(names, [case.group for case in cases for _ in case.ballots], cast)
        counted = iter(cast)
        return [self._made(case, [next(counted) for _ in case.ballots]) for case in cases]

    async def cast(self, names: Sequence[str], ballots: Sequence[Ballot]) -> list[tuple[Vote, ...]]:
        """The votes on every ballot, the judges in their order; `names` tell the ballots apart."""
        requests = [
            Request(ballot.asked, self._asking.max_tokens, self._asking.temperature, self._seed_of(name))
            for name, ballot in zip(names, ballots, strict=True)
        ]
        answers = await asyncio.gather(*(judge.ask(requests) for judge in self._judges))
        return [
            tuple(
                self._vote(judge.name, name, ballot, answered[number])
                for judge, answered in zip(self._judges, answers, strict=True)
            )
            for number, (name, ballot) in enumerate(zip(names, ballots, strict=True))
        ]

    def _vote(self, judge: str, name: str, ballot: Ballot, answer: Completion) -> Vote:
        if answer.outcome is Outcome.ERROR:
            raise RunError(
                f"the judge {judge} could not be asked about '{name}' ({answer.detail}); run the same command again"
            )
        response = as_messages(ballot.response, "assistant")
        reading = self._judging.parse(answer.text, Query(name, ballot.asked, (response,)))
        return read_vote(judge, reading.values[0] if reading else None, answer.text)

    def _seed_of(self, name: str) -> int:
        digest = hashlib.sha256(f"{self._asking.seed}\x00{name}".encode()).digest()
        return int.from_bytes(digest[:4], "big") >> 1  # servers take 31 bits

    def _log(self, names: Sequence[str], groups: Sequence[str], cast: Sequence[tuple[Vote, ...]]) -> None:
        if self._votes is None:
            return
        for name, group, votes in zip(names, groups, cast, strict=True):
            if name not in self._logged:
                self._logged.add(name)
                self._votes.append(Cast(name, group, {vote.judge: vote.score for vote in votes}))

    def _made(self, case: Case, cast: Sequence[tuple[Vote, ...]]) -> Made:
        fates = Fates()
        for vote in (vote for votes in cast for vote in votes):
            if vote.score is None:
                fates.drop("votes read", "unparsed")
            else:
                fates.keep("votes read")
        counted = [tally(votes, self._asking.voting, self._weights) for votes in cast]
        for one in counted:
            if one.reason:
                fates.drop("consensus", one.reason)
            else:
                fates.keep("consensus")
        make = self._pairs if self._asking.rows == "pairs" else self._judgments
        return Made(case.id, tuple(make(case, counted, fates)), fates.steps)

    def _judgments(self, case: Case, counted: Sequence[Tally], fates: Fates) -> list[dict[str, Any]]:
        rows = []
        for number, (ballot, one) in enumerate(zip(case.ballots, counted, strict=True)):
            found = verdict(one, self._asking.voting, self._weights)
            if found is not None:
                fates.keep("contrast" if found.contrast != "none" else "marked as without contrast")
                told = {**case.metadata, "answer": ballot.response, "model": ballot.model, **ballot.metadata}
                row = judgment_row(f"{case.id}/{number}", case.group, ballot.trained, found, told)
                rows.append(record_row(row))
            elif one.consensus is not None:
                fates.drop("contrast", "no_contrast")
        return rows

    def _pairs(self, case: Case, counted: Sequence[Tally], fates: Fates) -> list[dict[str, Any]]:
        rows = []
        for (first, one), (second, other) in combinations(enumerate(counted), 2):
            models = [case.ballots[first].model, case.ballots[second].model]
            found = pair(
                f"{case.id}/{first}-{second}",
                case.group,
                case.prompt,
                [
                    (as_messages(case.ballots[number].response, "assistant"), tallied)
                    for number, tallied in ((first, one), (second, other))
                ],
                self._asking.voting,
                {**case.metadata, "models": sorted(models)},
            )
            if found is not None and found.responses[0] != found.responses[1]:
                fates.keep("pairs")
                rows.append(to_row(found))
            else:
                fates.drop("pairs", _why_no_pair(one, other))
        return rows


def measured(votes: Log[Cast], tolerance: float) -> Agreement:
    """The agreement of a run's judges on all its ballots, those without a consensus included."""
    found, seen = Agreement(tolerance), set()
    for cast in votes:
        if cast.id not in seen:  # a killed run may have logged a batch that it then repeated
            seen.add(cast.id)
            found.see(cast.scores, cast.group)
    return found


def _why_no_pair(one: Tally, other: Tally) -> str:
    return "too_close" if one.consensus is not None and other.consensus is not None else "no_consensus"
