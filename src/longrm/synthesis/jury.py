"""Stage 2: several judges vote on the short context, and their consensus is learned on the long one.

Paper, section 4; the rules are in `voting`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from longrm.data.native import to_row as comparison_row
from longrm.data.tokenizing import Tokenizer
from longrm.runs.logs import Log
from longrm.synthesis.ballots import Ballot, Cast, Election
from longrm.synthesis.cases import Answer, Case
from longrm.synthesis.casework import Casework
from longrm.synthesis.fates import Fates, Made
from longrm.synthesis.padding import Pool
from longrm.synthesis.pipeline import Asked
from longrm.synthesis.records import JudgmentRow, Source, to_row
from longrm.synthesis.short_to_long_settings import ShortToLong
from longrm.synthesis.voting import Tally, Voting, judgment_row, verdict


class Jury:
    """Turns sources into stage-2 rows, or into pairs by consensus scores, some at a time.

    Args:
        settings: How contexts are made and judges are asked.
        voting: The rules by which votes are counted.
        tokenizer: The target tokenizer.
        pool: Chunks of other documents.
        judges: Two at least, each with a name of its own; where a judge says whether passages suffice, the first does.
        finder: Names critical chunks, where a model does; the first judge by default.
        weights: What every judge's vote weighs; 1 where not given.
        votes: Where the votes are logged, if anywhere; it must be open.

    Raises:
        ConfigError: There are too few judges, two have one name, or a weight is missing.
    """

    def __init__(
        self,
        settings: ShortToLong,
        voting: Voting,
        tokenizer: Tokenizer,
        pool: Pool,
        judges: Sequence[Asked],
        *,
        finder: Asked | None = None,
        weights: Mapping[str, float] | None = None,
        votes: Log[Cast] | None = None,
    ) -> None:
        self._settings, self._voting = settings, voting
        self._election = Election(judges, voting, weights=weights, votes=votes)
        self._casework = Casework(settings, tokenizer, pool, judges[0], finder or judges[0])

    async def work(self, sources: Sequence[Source]) -> list[Made]:
        """What becomes of some sources, in the same order; no other source changes it.

        Raises:
            RunError: A model could not be asked. What was answered is in its cache.
        """
        cases = await self._casework.work_on(sources, self._vote, self._voting.least_gap)
        return [Made(case.source.document.id, tuple(self._rows(case)), case.fates.steps) for case in cases]

    async def _vote(self, cases: Sequence[Case]) -> None:
        answers = [(case, answer) for case in cases for answer in case.answers]
        tallies = await self._election.hold([self._ballot(*pair) for pair in answers])
        for case in cases:
            case.answers = []
        for (case, answer), counted in zip(answers, tallies, strict=True):
            _count(case.fates, counted)
            if counted.consensus is None:
                continue
            answer.score, answer.conf = counted.consensus.score, tuple(counted.conf)
            answer.verdict = verdict(counted, self._voting, self._election.weights)
            if self._settings.rows == "pairs" or self._has_contrast(case, answer):
                case.answers.append(answer)

    def _ballot(self, case: Case, answer: Answer) -> Ballot:
        document = case.source.document
        request = self._casework.asked(case, answer)
        return Ballot(f"{document.id}#{answer.number}", document.group, request, answer.candidate.text)

    def _has_contrast(self, case: Case, answer: Answer) -> bool:
        if answer.verdict is None:
            case.fates.drop("contrast", "no_contrast")
            return False
        case.fates.keep("contrast" if answer.verdict.contrast != "none" else "marked as without contrast")
        return True

    def _rows(self, case: Case) -> list[dict[str, Any]]:
        if self._settings.rows == "pairs":
            return [*map(comparison_row, self._casework.compared(case, {}))]
        return [to_row(self._judgment(case, answer)) for answer in case.answers]

    def _judgment(self, case: Case, answer: Answer) -> JudgmentRow:
        assert answer.verdict is not None, "only answers with a verdict become rows of judgments"
        document, long = case.source.document, answer.context.made
        told = {name: value for name, value in self._casework.told(case, answer).items() if value is not None}
        told |= {
            "query": document.question,
            "answer": answer.candidate.text,
            "model": answer.candidate.model,
            "perturbation": answer.candidate.perturbation,
            "prompt_ctx_length": told.pop("tokens"),
            "insert_index": long.laid.before if long.laid.text else None,
        }
        identity = f"{document.id}#{answer.number}"
        return judgment_row(identity, document.group, long.messages, answer.verdict, told)


def _count(fates: Fates, counted: Tally) -> None:
    read = sum(len(cluster.votes) for cluster in counted.clusters)
    if read:
        fates.keep("votes read", read)
    if counted.unparsed:
        fates.drop("votes read", "unparsed", len(counted.unparsed))
    if counted.reason:
        fates.drop("consensus", counted.reason)
    else:
        fates.keep("consensus")
