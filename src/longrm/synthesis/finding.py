"""The short context of a document: its critical chunks are found, and it is checked that they suffice."""

from collections.abc import Sequence
from typing import assert_never

import numpy as np

from longrm.synthesis import critical
from longrm.synthesis.asking import ask_all
from longrm.synthesis.cases import Case
from longrm.synthesis.chunks import Answering, Chunk, cut, gold_of, runs, touching
from longrm.synthesis.domains import DOMAINS, language_of
from longrm.synthesis.fates import Fates
from longrm.synthesis.lengthening import Evidence
from longrm.synthesis.padding import Pool
from longrm.synthesis.pipeline import Asked
from longrm.synthesis.records import Source
from longrm.synthesis.short_to_long_settings import ShortToLong

_COMMON = 0.5  # an answer that more of the pool "holds" than this cannot be looked for by its words


class Finding:
    """Opens cases.

    Args:
        settings: How.
        pool: Chunks of other documents, which tell how rare words are.
        checker: Says whether passages suffice to answer, where a judge does.
        finder: Names critical chunks, where a model does.
    """

    def __init__(self, settings: ShortToLong, pool: Pool, checker: Asked, finder: Asked) -> None:
        self._settings, self._pool, self._checker, self._finder = settings, pool, checker, finder
        self._is_short = DOMAINS[settings.domain].layout == "short"

    async def opened(self, sources: Sequence[Source]) -> list[Case]:
        """Finds the critical chunks of some sources; cases in which they do not suffice are not open."""
        cases = await self._found(sources)
        await self._check_sufficiency([case for case in cases if case.open])
        return cases

    async def _found(self, sources: Sequence[Source]) -> list[Case]:
        """Cuts the documents and finds their critical chunks."""
        settings = self._settings
        parts: list[Sequence[Chunk]] = [
            () if self._is_short else cut(source.document.text, settings.chunk) for source in sources
        ]
        both = [*zip((source.document for source in sources), parts, strict=True)]
        found: list[tuple[int, ...] | str]
        match settings.find:
            case _ if self._is_short:
                found = [()] * len(sources)
            case "model":
                requests = [critical.attribution_requests(*pair, settings.window) for pair in both]
                answers = await ask_all(self._finder, requests)
                found = [critical.attributed(*pair) for pair in zip(answers, parts, strict=True)]
            case "given":
                found = [touching(chunks, critical.given(document)) for document, chunks in both]
            case "retrieval":
                found = [critical.retrieved(*pair, settings.most) for pair in both]
            case unknown:
                assert_never(unknown)
        return [self._case(*triple) for triple in zip(sources, parts, found, strict=True)]

    def _case(self, source: Source, parts: Sequence[Chunk], found: tuple[int, ...] | str) -> Case:
        document, settings = source.document, self._settings
        numbers = () if isinstance(found, str) else found
        parted = runs(document.text, [parts[number] for number in numbers])
        answering = None
        foreign = np.zeros(len(self._pool.pieces), bool)
        if settings.check != "none" and parted:
            answering = Answering.of(
                document.question,
                document.answer,
                [part.text for part in parted],
                self._pool.rarity,
                enough=settings.enough,
                alike=settings.alike,
            )
            foreign = self._pool.answering(answering)
        chosen = {*numbers}
        discarded = tuple(part for part in parts if part.number not in chosen)
        evidence = Evidence(
            document.id, document.group, document.question, parted, discarded, answering, foreign
        )
        language = settings.language
        chosen_language = language_of(document.question) if language == "auto" else language
        case = Case(source, chosen_language, evidence, Fates())
        reason = "" if source.candidates else "no_candidate"
        if not self._is_short:
            reason = reason or (found if isinstance(found, str) else "" if found else "nothing_found")
        _decide(case, "critical", reason)
        return case

    async def _check_sufficiency(self, cases: Sequence[Case]) -> None:
        settings = self._settings
        if self._is_short:
            return
        judged = settings.sufficiency == "judge"
        requests = [
            [critical.sufficiency_request(case.source.document, _texts(case))] if judged else []
            for case in cases
        ]
        for case, said in zip(cases, await ask_all(self._checker, requests), strict=True):
            reason = self._uncheckable(case)
            if not reason and judged:
                verdict = critical.suffices(said[0])
                reason = verdict if isinstance(verdict, str) else "" if verdict else "insufficient"
            elif not reason and settings.sufficiency == "words":
                document = case.source.document
                gold = gold_of(document.question, document.answer, self._pool.rarity)
                held = gold.held("\n".join(_texts(case)))
                reason = "" if held >= settings.enough else "insufficient"
            _decide(case, "sufficiency", reason)

    def _uncheckable(self, case: Case) -> str:
        """Why distractors cannot be checked for the answer; empty where they can, or need not be."""
        settings = self._settings
        checked = (settings.check, settings.sufficiency) != ("none", "none")
        if checked and not case.source.document.answer.strip():
            return "no_gold_answer"
        common = case.evidence.foreign_answering.mean() if self._pool.pieces else 0.0
        return "answer_too_common" if settings.check != "none" and common > _COMMON else ""


def _decide(case: Case, step: str, reason: str) -> None:
    case.open = not reason
    if reason:
        case.fates.drop(step, reason)
    else:
        case.fates.keep(step)


def _texts(case: Case) -> list[str]:
    return [chunk.text for chunk in case.evidence.critical]
