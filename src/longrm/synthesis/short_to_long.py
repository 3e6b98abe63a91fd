"""Stage 1: answers are judged on the critical chunks alone, and the judgment is learned on the padded context.

Paper, section 3. A strong judge is reliable on a short context; the rubric that it reads, the row leaves out.
"""

from collections.abc import Sequence
from typing import Any

from longrm.data.native import to_row as comparison_row
from longrm.data.tokenizing import Tokenizer
from longrm.synthesis.asking import ask_all
from longrm.synthesis.cases import Answer, Case
from longrm.synthesis.casework import Casework
from longrm.synthesis.fates import Made
from longrm.synthesis.judged import read_judgment
from longrm.synthesis.padding import Pool
from longrm.synthesis.pipeline import Asked
from longrm.synthesis.records import DemonstrationRow, Source, to_row
from longrm.synthesis.short_to_long_settings import ShortToLong

_LEAST_GAP = 1.0  # scores are whole numbers


class Synthesizer:
    """Turns sources into stage-1 rows, some at a time.

    Args:
        settings: How.
        tokenizer: The target tokenizer.
        pool: Chunks of other documents.
        judge: Scores, and says whether passages suffice.
        finder: Names critical chunks, where a model does; the judge by default.
    """

    def __init__(
        self,
        settings: ShortToLong,
        tokenizer: Tokenizer,
        pool: Pool,
        judge: Asked,
        finder: Asked | None = None,
    ) -> None:
        self._settings, self._judge = settings, judge
        self._casework = Casework(settings, tokenizer, pool, judge, finder or judge)

    async def work(self, sources: Sequence[Source]) -> list[Made]:
        """What becomes of some sources, in the same order; no other source changes it.

        Raises:
            RunError: A model could not be asked. What was answered is in its cache.
        """
        cases = await self._casework.work_on(sources, self._judge_answers, _LEAST_GAP)
        return [Made(case.source.document.id, tuple(self._rows(case)), case.fates.steps) for case in cases]

    async def _judge_answers(self, cases: Sequence[Case]) -> None:
        requests = [[self._casework.asked(case, answer) for answer in case.answers] for case in cases]
        answered = await ask_all(self._judge, requests)
        for case, asked, said in zip(cases, requests, answered, strict=True):
            kept = []
            for answer, request, completion in zip(case.answers, asked, said, strict=True):
                judged = read_judgment(completion, request, answer.candidate.text)
                reason = judged.reason or ("contradicted" if judged.contradicted else "")
                if reason:
                    case.fates.drop("judgment", reason)
                    continue
                case.fates.keep("judgment")
                answer.score, answer.judgment = judged.score, judged.text
                kept.append(answer)
            case.answers = kept

    def _rows(self, case: Case) -> list[dict[str, Any]]:
        if self._settings.rows == "pairs":
            return [*map(comparison_row, self._casework.compared(case, {"judge": self._judge.name}))]
        return [to_row(self._demonstration(case, answer)) for answer in case.answers]

    def _demonstration(self, case: Case, answer: Answer) -> DemonstrationRow:
        assert answer.score is not None, "only judged answers become rows"
        return DemonstrationRow(
            id=f"{case.source.document.id}#{answer.number}",
            prompt=answer.context.made.messages,
            completion=answer.judgment,
            model=answer.candidate.model,
            perturbation=answer.candidate.perturbation,
            judge=self._judge.name,
            score=int(answer.score),
            **self._casework.told(case, answer),
        )
