"""What both stages of training data share: the short context that is judged, and the long one that is learned.

Paper, section 3. Critical chunks are found and must suffice; contexts are padded around them to their lengths.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, assert_never

from longrm.clients import Request
from longrm.data.tokenizing import Tokenizer
from longrm.rng import Draws
from longrm.synthesis import critical
from longrm.synthesis.asking import ask_all
from longrm.synthesis.cases import Answer, Case, Context
from longrm.synthesis.comparing import apart, comparison, plain_prompt
from longrm.synthesis.documents import Document
from longrm.synthesis.domains import DOMAINS, SCORE, Language
from longrm.synthesis.finding import Finding
from longrm.synthesis.lengthening import Lengthener, Long
from longrm.synthesis.padding import Pool, closest
from longrm.synthesis.pipeline import Asked, prompt_hash
from longrm.synthesis.records import Candidate, Source
from longrm.synthesis.short_to_long_settings import ShortToLong
from longrm.synthesis.tags import draw_tag
from longrm.types import Comparison, Message, Span

_CHECKS = 3  # rounds in which a judge may find an answer in the padding before the row is given up
_SEEDS = 2**31  # servers take 31 bits


class Casework:
    """Prepares what is judged, and lengthens what is kept.

    Args:
        settings: How.
        tokenizer: The target tokenizer.
        pool: Chunks of other documents.
        checker: Says whether passages suffice to answer, where a judge does.
        finder: Names critical chunks, where a model does.
    """

    def __init__(
        self, settings: ShortToLong, tokenizer: Tokenizer, pool: Pool, checker: Asked, finder: Asked
    ) -> None:
        self._settings, self._pool, self._checker = settings, pool, checker
        self._finding = Finding(settings, pool, checker, finder)
        self._domain = DOMAINS[settings.domain]
        self._is_short = self._domain.layout == "short"
        self._lengthener = Lengthener(
            self._domain, tokenizer, pool, own_share=settings.own, tolerance=settings.tolerance
        )

    def asked(self, case: Case, answer: Answer) -> Request:
        """Asks a judge about one answer, alone, with the rubric."""
        settings, context = self._settings, answer.context
        match settings.judge_reads:
            case _ if self._is_short:
                text = ""
            case "long":
                text = context.made.laid.text
            case "short":
                text = self._lengthener.short_context(case.evidence, context.tag)
            case unknown:
                assert_never(unknown)
        drawn = Draws(settings.seed, case.source.document.id, answer.number, "judging").below(_SEEDS)
        messages = self._judging(
            case.source.document, case.language, answer.candidate, context.tag, text, rubric=True
        )
        return Request(messages, settings.max_tokens, settings.temperature, drawn, SCORE)

    async def work_on(
        self, sources: Sequence[Source], judge: Callable[[Sequence[Case]], Awaitable[None]], least_gap: float
    ) -> list[Case]:
        """Has the answers of some sources judged and their contexts lengthened.

        Args:
            sources: The sources.
            judge: Asks about the answers of some cases and drops those that it can say nothing about.
            least_gap: Points by which the scores of a pair must differ.
        """
        cases = await self._finding.opened(sources)
        for case in cases:
            if case.open:
                case.answers = self._answers(case)
        judged_long = self._settings.judge_reads == "long"
        if judged_long:
            await self._lengthen(cases)
        await judge(cases)
        if self._settings.rows == "pairs":
            for case in cases:
                _pair(case, least_gap)
        if not judged_long:  # what is not kept needs no long context
            await self._lengthen(cases)
        return cases

    async def _lengthen(self, cases: Sequence[Case]) -> None:
        """Pads the contexts of all answers, and those again in whose padding a judge found an answer.

        Answers whose context does not come to any of the lengths are dropped.
        """
        pending = [(case, context) for case in cases for context in case.contexts]
        for case, context in pending:
            self._pad(case, context)
        if self._settings.check == "judge" and not self._is_short:
            for _ in range(_CHECKS):
                pending = await self._answered_in_padding(pending)
                for case, context in pending:
                    self._pad(case, context)
            for _, context in await self._answered_in_padding(pending):
                context.long, context.unfit = None, "answered_in_padding"
        for case in cases:
            _count_padding(case)

    def compared(self, case: Case, metadata: Mapping[str, Any]) -> Iterator[Comparison]:
        """The pairs of a case over its one long context, in a drawn order each: none tells which is better."""
        document = case.source.document
        for pair in case.pairs:
            numbers = sorted(answer.number for answer in pair)
            listed = [*Draws(self._settings.seed, document.id, *numbers, "listing").order(pair)]
            long, told = pair[0].context.made, self.told(case, pair[0])
            told.pop("evidence")  # it has a field of its own
            told |= {
                "task": document.task or None,
                "models": [answer.candidate.model for answer in listed],
                "perturbations": [answer.candidate.perturbation for answer in listed],
                "conf": [answer.conf for answer in listed] if pair[0].conf else None,
            }
            yield comparison(
                f"{document.id}#{numbers[0]}-{numbers[1]}",
                document.group,
                long.messages,
                [answer.candidate.text for answer in listed],
                [answer.score for answer in listed if answer.score is not None],
                {**told, **metadata},
                context=long.context,
                question=document.question,
                evidence=long.evidence,
            )

    def told(self, case: Case, answer: Answer) -> dict[str, Any]:
        """What rows of all kinds tell of how their contexts were made."""
        context, document = answer.context, case.source.document
        long = context.made
        foreign = dict.fromkeys(piece.document for piece in long.padding[long.own :])
        return {
            "document": document.id,
            "domain": self._domain.name,
            "language": case.language,
            "length": None if self._is_short else context.length,
            "tokens": long.tokens,
            "short_tokens": self._lengthener.tokens(self.asked(case, answer).messages),
            "found_by": "" if self._is_short else self._settings.find,
            "evidence": tuple(Span(len(long.messages) - 1, *span) for span in long.evidence),
            "depths": long.laid.depths,
            "tag": context.tag,
            "padding": tuple(foreign),
            "own_chunks": long.own,
        }

    def _answers(self, case: Case) -> list[Answer]:
        """What is to be judged; what several models wrote in the same words stands once."""
        shared = self._shared_context(case) if self._settings.rows == "pairs" else None
        found: dict[str, Answer] = {}
        for number, candidate in enumerate(case.source.candidates):
            text = candidate.text.strip()
            if text in found:
                case.fates.drop("answers", "same_text")
                continue
            case.fates.keep("answers")
            found[text] = Answer(candidate, number, shared or self._own_context(case, number, candidate))
        return [*found.values()]

    def _own_context(self, case: Case, number: int, candidate: Candidate) -> Context:
        key = (self._settings.seed, self._domain.name, case.source.document.id, number)
        tag = self._tag(case, [candidate.text], key)
        judging = partial(self._judging, case.source.document, case.language, candidate, tag, rubric=False)

        return Context(key, tag, judging)

    def _shared_context(self, case: Case) -> Context:
        key = (self._settings.seed, self._domain.name, case.source.document.id)
        tag = self._tag(case, [candidate.text for candidate in case.source.candidates], key)
        about = self._domain.about(case.language, tag) if tag else ""
        question = case.source.document.question
        return Context(key, tag, lambda context: plain_prompt(context, question, about))

    def _tag(self, case: Case, responses: Iterable[str], key: tuple[object, ...]) -> str:
        if self._domain.layout not in ("document", "segment"):
            return ""
        document, foreign = case.source.document, (piece.text for piece in self._pool.pieces)
        return draw_tag([document.text, document.question, *responses, *foreign], Draws(*key, "tag"))

    def _judging(
        self,
        document: Document,
        language: Language,
        candidate: Candidate,
        tag: str,
        context: str,
        *,
        rubric: bool,
    ) -> tuple[Message, ...]:
        # Takes no case: contexts keep this call, and a case that held itself so would outlive its batch.
        question = document.question
        text = self._domain.prompt(language, context, question, candidate.text, tag=tag, rubric=rubric)
        return ({"role": "user", "content": text},)

    async def _answered_in_padding(
        self, pending: Sequence[tuple[Case, Context]]
    ) -> list[tuple[Case, Context]]:
        """Asks about the chunks that come closest; the contexts in which one answers, or may answer."""
        asked: list[list[str]] = []
        for case, context in pending:
            texts = [piece.text for piece in context.long.padding] if context.long else []
            assert case.evidence.answering is not None
            near = closest(case.evidence.answering, texts, self._settings.closest)
            asked.append([texts[at] for at in near])
        requests = [
            [critical.sufficiency_request(case.source.document, [text]) for text in texts]
            for (case, _), texts in zip(pending, asked, strict=True)
        ]
        answers = await ask_all(self._checker, requests)
        found = []
        for (case, context), texts, said in zip(pending, asked, answers, strict=True):
            bad = [text for text, one in zip(texts, said, strict=True) if critical.suffices(one) is not False]
            if bad:
                context.banned += bad
                found.append((case, context))
        return found

    def _pad(self, case: Case, context: Context) -> None:
        """Pads to the first length of a drawn order that the evidence leaves room in."""
        if self._is_short:
            messages = context.render("")
            context.long = Long.short(messages, self._lengthener.tokens(messages))
            return
        for length in Draws(*context.key, "length").order(self._settings.lengths):
            found = self._lengthener.lengthen(
                case.evidence, context.render, context.tag, length, context.key, context.banned
            )
            if isinstance(found, Long):
                context.long, context.length = found, length
                return
            context.long, context.unfit = None, found
            if found != "too_long":
                return


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


def prompt_hashes(settings: ShortToLong) -> Mapping[str, str]:
    """Hashes of every text that models are asked with, by name."""
    hashes = {f"domain.{settings.domain}": prompt_hash(*DOMAINS[settings.domain].texts())}
    return hashes | {name: prompt_hash(text) for name, text in critical.PROMPTS.items()}


def _count_padding(case: Case) -> None:
    """Tells what became of the contexts and of the chunks around them, and drops the answers without a context."""
    for context in case.contexts:
        if context.long is None:
            case.fates.drop("padding", context.unfit)
            continue
        case.fates.keep("padding")
        case.fates.keep("distractors", len(context.long.padding))
        left_out = context.long.refused + len(context.banned)
        if left_out:
            case.fates.drop("distractors", "answers_question", left_out)
    answering = case.evidence.foreign_answering
    if case.contexts and len(answering):
        case.fates.keep("pool", int((~answering).sum()))
        if answering.any():
            case.fates.drop("pool", "answers_question", int(answering.sum()))
    case.answers = [answer for answer in case.answers if answer.context.long is not None]
    case.pairs = [pair for pair in case.pairs if pair[0].context.long is not None]


def _pair(case: Case, least_gap: float) -> None:
    """Pairs answers whose scores tell which is better; those in no pair are dropped."""
    scores = [answer.score for answer in case.answers if answer.score is not None]
    found = apart(scores, least_gap, case.fates)
    used = {number for pair in found for number in pair}
    case.pairs = [(case.answers[better], case.answers[worse]) for better, worse in found]
    case.answers = [answer for number, answer in enumerate(case.answers) if number in used]
