"""Stage 1: answers are judged on the critical chunks alone, and the judgment is learned on the padded context.

Paper, section 3. A strong judge is reliable on a short context; the rubric that it reads, the row leaves out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from longrm.clients import Completion, Request
from longrm.data.tokenizing import Tokenizer
from longrm.judging.answers import answer_of
from longrm.judging.pointwise import Pointwise
from longrm.runs.folder import RunFolder
from longrm.runs.progress import Progress, silent
from longrm.synthesis import critical
from longrm.synthesis.chunks import Answering, Chunk, cut, gold_of, runs, touching
from longrm.synthesis.documents import Document
from longrm.synthesis.domains import DOMAINS, Language, language_of
from longrm.synthesis.lengthening import Evidence, Lengthener, Long
from longrm.synthesis.padding import Pool, closest
from longrm.synthesis.pipeline import Asked, Fates, Made, Output, Pipeline, Provenance, Tally, prompt_hash
from longrm.synthesis.records import Candidate, DemonstrationRow, Source, to_row
from longrm.synthesis.short_to_long_settings import ShortToLong
from longrm.synthesis.tags import draw_tag
from longrm.types import Message, Outcome, Query, Span
from longrm.worlds.draws import Draws

_CHECKS = 3  # rounds in which a judge may find an answer in the padding before the row is given up
_COMMON = 0.5  # an answer that more of the pool "holds" than this cannot be looked for by its words


@dataclass
class _Row:
    """One candidate on its way."""

    candidate: Candidate
    key: tuple[object, ...]
    tag: str
    short: tuple[Message, ...]
    score: int = -1
    judgment: str = ""
    long: Long | None = None
    length: int = 0
    unfit: str = ""
    banned: list[str] = field(default_factory=list)


@dataclass
class _Case:
    """One document on its way; `rows` are those of its candidates that are still in."""

    source: Source
    language: Language
    evidence: Evidence
    fates: Fates
    open: bool = True
    rows: list[_Row] = field(default_factory=list)


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
        self._settings, self._pool, self._judge = settings, pool, judge
        self._finder = finder or judge
        self._domain = DOMAINS[settings.domain]
        self._scores = Pointwise()
        self._lengthener = Lengthener(
            self._domain,
            tokenizer,
            pool,
            own_share=settings.own,
            tolerance=settings.tolerance,
        )

    async def work(self, sources: Sequence[Source]) -> list[Made]:
        """What becomes of some sources, in the same order; no other source changes it."""
        cases = await self._found(sources)
        await self._check_sufficiency([case for case in cases if case.open])
        await self._judge_candidates([case for case in cases if case.open])
        await self._lengthen([case for case in cases if case.open])
        return [self._made(case) for case in cases]

    async def _found(self, sources: Sequence[Source]) -> list[_Case]:
        """Cuts the documents and finds their critical chunks."""
        settings = self._settings
        short = self._domain.layout == "short"
        parts: list[Sequence[Chunk]] = [
            () if short else cut(source.document.text, settings.chunk) for source in sources
        ]
        found: list[tuple[int, ...] | str]
        if short:
            found = [()] * len(sources)
        elif settings.find == "model":
            requests = [
                critical.attribution_requests(source.document, chunks, settings.window)
                for source, chunks in zip(sources, parts, strict=True)
            ]
            answers = await _ask_all(self._finder, requests)
            found = [critical.attributed(*pair) for pair in zip(answers, parts, strict=True)]
        elif settings.find == "given":
            found = [
                touching(chunks, critical.given(source.document))
                for source, chunks in zip(sources, parts, strict=True)
            ]
        else:
            found = [
                critical.retrieved(source.document, chunks, settings.most)
                for source, chunks in zip(sources, parts, strict=True)
            ]
        return [self._case(*triple) for triple in zip(sources, parts, found, strict=True)]

    def _case(self, source: Source, parts: Sequence[Chunk], found: tuple[int, ...] | str) -> _Case:
        document, settings = source.document, self._settings
        numbers = () if isinstance(found, str) else found
        chosen = {*numbers}
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
        discarded = tuple(part for part in parts if part.number not in chosen)
        evidence = Evidence(
            document.id, document.group, document.question, parted, discarded, answering, foreign
        )
        language = settings.language
        chosen_language = language_of(document.question) if language == "auto" else language
        case = _Case(source, chosen_language, evidence, Fates())
        reason = "" if source.candidates else "no_candidate"
        if self._domain.layout != "short":
            reason = reason or (found if isinstance(found, str) else "" if found else "nothing_found")
        _decide(case, "critical", reason)
        return case

    async def _check_sufficiency(self, cases: Sequence[_Case]) -> None:
        settings = self._settings
        if self._domain.layout == "short":
            return
        judged = settings.sufficiency == "judge"
        answers = await _ask_all(
            self._judge,
            [
                [critical.sufficiency_request(case.source.document, _texts(case))] if judged else []
                for case in cases
            ],
        )
        for case, said in zip(cases, answers, strict=True):
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

    def _uncheckable(self, case: _Case) -> str:
        """Why distractors cannot be checked for the answer; empty where they can, or need not be."""
        settings = self._settings
        if (settings.check, settings.sufficiency) != (
            "none",
            "none",
        ) and not case.source.document.answer.strip():
            return "no_gold_answer"
        common = case.evidence.foreign_answering.mean() if self._pool.pieces else 0.0
        return "answer_too_common" if settings.check != "none" and common > _COMMON else ""

    async def _judge_candidates(self, cases: Sequence[_Case]) -> None:
        for case in cases:
            case.rows = [self._row(case, number) for number in range(len(case.source.candidates))]
        answers = await _ask_all(
            self._judge,
            [[Request(row.short, self._settings.max_tokens) for row in case.rows] for case in cases],
        )
        for case, said in zip(cases, answers, strict=True):
            kept = []
            for row, answer in zip(case.rows, said, strict=True):
                reason = self._read(case, row, answer)
                if reason:
                    case.fates.drop("judgment", reason)
                else:
                    case.fates.keep("judgment")
                    kept.append(row)
            case.rows = kept

    def _row(self, case: _Case, number: int) -> _Row:
        document, candidate = case.source.document, case.source.candidates[number]
        key = (self._settings.seed, self._domain.name, document.id, number)
        tag = ""
        if self._domain.layout in ("document", "segment"):
            foreign = (piece.text for piece in self._pool.pieces)
            texts = [document.text, document.question, candidate.text, *foreign]
            tag = draw_tag(texts, Draws(*key, "tag"))
        context = "" if self._domain.layout == "short" else self._lengthener.short_context(case.evidence, tag)
        short = self._lengthener.prompt(
            case.evidence, candidate.text, case.language, tag, context, rubric=True
        )
        return _Row(candidate, key, tag, short)

    def _read(self, case: _Case, row: _Row, answer: Completion) -> str:
        """Takes a judgment over into its row; tells why there is none."""
        if answer.outcome is not Outcome.ANSWERED:
            return answer.outcome.value
        response = ({"role": "assistant", "content": row.candidate.text},)
        query = Query(case.source.document.id, row.short, (response,))
        reading = self._scores.parse(answer.text, query)
        if reading is None:
            return Outcome.UNPARSED.value
        if reading.contradicted:
            return "contradicted"
        score = reading.values[0]
        if score != int(score):
            return "not_whole"
        row.score, row.judgment = int(score), answer_of(answer.text).strip()
        return ""

    async def _lengthen(self, cases: Sequence[_Case]) -> None:
        """Pads all rows, and those again in whose padding a judge found an answer."""
        if self._domain.layout == "short":
            for case in cases:
                for row in case.rows:
                    row.long = self._kept_short(case, row)
            return
        pending = [(case, row) for case in cases for row in case.rows]
        for case, row in pending:
            self._pad(case, row)
        if self._settings.check == "judge":
            for _ in range(_CHECKS):
                pending = await self._answered_in_padding(pending)
                for case, row in pending:
                    self._pad(case, row)
            for _, row in await self._answered_in_padding(pending):
                row.long, row.unfit = None, "answered_in_padding"

    async def _answered_in_padding(self, rows: Sequence[tuple[_Case, _Row]]) -> list[tuple[_Case, _Row]]:
        """Asks about the chunks that come closest; the rows in which one answers, or may answer, the question."""
        asked: list[list[str]] = []
        for case, row in rows:
            texts = [piece.text for piece in row.long.padding] if row.long else []
            assert case.evidence.answering is not None
            near = closest(case.evidence.answering, texts, self._settings.closest)
            asked.append([texts[at] for at in near])
        requests = [
            [critical.sufficiency_request(case.source.document, [text]) for text in texts]
            for (case, _), texts in zip(rows, asked, strict=True)
        ]
        answers = await _ask_all(self._judge, requests)
        found = []
        for (case, row), texts, said in zip(rows, asked, answers, strict=True):
            bad = [text for text, one in zip(texts, said, strict=True) if critical.suffices(one) is not False]
            if bad:
                row.banned += bad
                found.append((case, row))
        return found

    def _pad(self, case: _Case, row: _Row) -> None:
        """Pads to the length that was drawn, or to one of the others where the evidence needs more room."""
        lengths = Draws(*row.key, "length").order(self._settings.lengths)
        for length in lengths:
            found = self._lengthener.lengthen(
                case.evidence, row.candidate.text, case.language, row.tag, length, row.key, row.banned
            )
            if isinstance(found, Long):
                row.long, row.length = found, length
                return
            row.long, row.unfit = None, found

    def _kept_short(self, case: _Case, row: _Row) -> Long:
        messages = self._lengthener.prompt(
            case.evidence, row.candidate.text, case.language, "", "", rubric=False
        )
        return Long.short(messages, self._lengthener.tokens(messages))

    def _made(self, case: _Case) -> Made:
        rows = []
        for row in case.rows:
            if row.long is None:
                case.fates.drop("padding", row.unfit)
                continue
            case.fates.keep("padding")
            case.fates.keep("distractors", len(row.long.padding))
            left_out = row.long.refused + len(row.banned) + int(case.evidence.foreign_answering.sum())
            if left_out:
                case.fates.drop("distractors", "answers_question", left_out)
            rows.append(to_row(self._demonstration(case, row, row.long)))
        return Made(case.source.document.id, tuple(rows), case.fates.steps)

    def _demonstration(self, case: _Case, row: _Row, long: Long) -> DemonstrationRow:
        document = case.source.document
        foreign = dict.fromkeys(piece.document for piece in long.padding[long.own :])
        short = self._domain.layout == "short"
        return DemonstrationRow(
            id=f"{document.id}#{row.key[-1]}",
            prompt=long.messages,
            completion=row.judgment,
            document=document.id,
            domain=self._domain.name,
            language=case.language,
            model=row.candidate.model,
            perturbation=row.candidate.perturbation,
            judge=self._judge.name,
            score=row.score,
            length=None if short else row.length,
            tokens=long.tokens,
            short_tokens=self._lengthener.tokens(row.short),
            found_by="" if short else self._settings.find,
            evidence=tuple(Span(len(long.messages) - 1, *span) for span in long.evidence),
            depths=long.laid.depths,
            tag=row.tag,
            padding=tuple(foreign),
            own_chunks=long.own,
        )


def gather_pool(documents: Iterable[Document], tokenizer: Tokenizer, settings: ShortToLong) -> Pool:
    """Draws the foreign chunks in one pass over the documents."""
    return Pool.gather(
        ((document.group, document.id, document.text) for document in documents),
        tokenizer,
        chunk=settings.chunk,
        most_documents=settings.pool_documents,
        per_document=settings.pool_chunks,
        seed=settings.seed,
    )


def prompt_hashes(settings: ShortToLong) -> dict[str, str]:
    """Hashes of every text that models are asked with, by name."""
    hashes = {f"domain.{settings.domain}": prompt_hash(*DOMAINS[settings.domain].texts())}
    return hashes | {name: prompt_hash(text) for name, text in critical.PROMPTS.items()}


async def synthesize(
    folder: RunFolder,
    inputs: Iterable[Source],
    synthesizer: Synthesizer,
    provenance: Provenance,
    output: Output,
    *,
    total: int = 0,
    progress: Progress = silent,
) -> Tally:
    """Makes stage-1 rows in a run folder, or continues there; arguments as `Pipeline.run` takes them."""
    pipeline = Pipeline[Source](lambda source: source.document.id, synthesizer.work)
    return await pipeline.run(folder, inputs, provenance, output, total=total, progress=progress)


def _decide(case: _Case, step: str, reason: str) -> None:
    case.open = not reason
    if reason:
        case.fates.drop(step, reason)
    else:
        case.fates.keep(step)


def _texts(case: _Case) -> list[str]:
    return [chunk.text for chunk in case.evidence.critical]


async def _ask_all(asked: Asked, groups: Sequence[Sequence[Request]]) -> list[list[Completion]]:
    """Asks all at once, and hands the answers back in their groups."""
    flat = [request for group in groups for request in group]
    answers = iter(await asked.ask(flat) if flat else [])
    return [[next(answers) for _ in group] for group in groups]
