"""From one document and its candidates to rows: judged on the short context, learned on the long one.

Paper, section 3. What the judge of short-to-long synthesis and the panel of a vote have in common; they differ in
how an answer gets its label.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any, Protocol, assert_never

from longrm.data.native import to_native_row as comparison_row
from longrm.data.tokenizing import Tokenizer
from longrm.rng import Draws
from longrm.synthesis.inputs.candidates import CandidateAnswer, SynthesisInput
from longrm.synthesis.inputs.documents import Document
from longrm.synthesis.inputs.policy_prompts import plain_content
from longrm.synthesis.judge import judge_request, judging_messages
from longrm.synthesis.labels.consensus import ConsensusJudgment
from longrm.synthesis.long_context.distractors import DistractorPool
from longrm.synthesis.long_context.evidence_search import PROMPTS, Evidence, EvidenceFinder
from longrm.synthesis.long_context.padding import PaddedPrompt, PromptPadder, UnpaddedPrompt
from longrm.synthesis.model_requests import AsyncModel, JudgeResponse, TaskRequest
from longrm.synthesis.pipeline import prompt_hash
from longrm.synthesis.prompt_tags import draw_tag, wrapped
from longrm.synthesis.rubrics import DOMAINS, check_language
from longrm.synthesis.short_to_long_settings import ShortToLongSettings
from longrm.synthesis.stats import Dropped, InputOutcome, StepCounts, Steps, VoteRecord
from longrm.types import Comparison, Message, Span, message_text

PaddedPrompts = dict[tuple[object, ...], PaddedPrompt]
"""The prompts of one input's rows, by their keys."""

_SEEDS = 2**31  # servers take 31 bits
_ROUNDING = 1e-9  # gaps of scores are no more exact


@dataclass(frozen=True, slots=True)
class UnlabeledAnswer:
    """A candidate that is to be judged, its number among its document's, and the prompt of its row."""

    candidate: CandidateAnswer
    number: int
    prompt: UnpaddedPrompt


@dataclass(frozen=True, slots=True)
class Label:
    """What was found of one answer.

    `score` is in points, 0 to 10: the judge's, or the consensus of several; None where there is no label. A judge
    leaves what it wrote (`judgment`); a panel its consensus, None where there is nothing to reject, the sizes of its
    clusters and its scores (`vote`).
    """

    score: float | None
    steps: Steps
    judgment: str = ""
    consensus: ConsensusJudgment | None = None
    cluster_sizes: tuple[int, ...] = ()
    vote: VoteRecord | None = None


@dataclass(frozen=True, slots=True)
class LabeledAnswer:
    """An answer with its label, and what its judge was asked."""

    answer: UnlabeledAnswer
    request: TaskRequest
    label: Label

    @property
    def score(self) -> float:
        """The label's score, which there must be."""
        assert self.label.score is not None, "only answers with a label go on"
        return self.label.score


class Labeler(Protocol):
    """How answers get their labels.

    The scores of a pair must differ by `min_gap` points; every pair has the `pair_columns`.
    """

    min_gap: float
    pair_columns: Mapping[str, Any]

    async def label(self, source: SynthesisInput, answer: UnlabeledAnswer, request: TaskRequest) -> Label:
        """Asks about one answer, alone."""
        ...

    def row(
        self, source: SynthesisInput, labeled: LabeledAnswer, prompt: PaddedPrompt, columns: dict[str, Any]
    ) -> dict[str, Any]:
        """The row of one judgment."""
        ...


class Labeling:
    """Turns inputs into rows.

    The labeler labels answers, the checker says whether passages suffice where a judge does, and the retriever names
    critical chunks where a model does; all three may be one model.
    """

    def __init__(
        self,
        settings: ShortToLongSettings,
        tokenizer: Tokenizer,
        pool: DistractorPool,
        labeler: Labeler,
        checker: AsyncModel,
        retriever: AsyncModel,
    ) -> None:
        self._settings, self._pool, self._labeler = settings, pool, labeler
        self._domain = DOMAINS[settings.domain]
        self._finder = EvidenceFinder(settings, pool, checker, retriever)
        self._padder = PromptPadder(settings, tokenizer, pool, checker)

    async def make_rows(self, source: SynthesisInput) -> InputOutcome:
        """What becomes of one input; no other input changes it."""
        counts = StepCounts()
        evidence: Evidence | Dropped = Dropped("critical", "no_candidate")
        if source.candidates:
            evidence = await self._finder.find(source.document, counts)
        if isinstance(evidence, Dropped):
            counts.drop(evidence)
            return InputOutcome(source.id, (), counts.steps)
        answers = self._answers(source, counts)
        padded: PaddedPrompts = {}
        if self._settings.judge_reads == "long":
            padded = await self._pad(evidence, answers, counts)
            answers = [answer for answer in answers if answer.prompt.key in padded]
        labeled = await self._label(source, evidence, answers, padded)
        for one in labeled:
            counts.add(one.label.steps)
        votes = tuple(one.label.vote for one in labeled if one.label.vote is not None)
        labeled = [one for one in labeled if one.label.score is not None]
        pairs: list[tuple[LabeledAnswer, LabeledAnswer]] = []
        if self._settings.rows == "pairs":
            numbers = pair_up([one.score for one in labeled], self._labeler.min_gap, counts)
            pairs = [(labeled[better], labeled[worse]) for better, worse in numbers]
            labeled = [labeled[number] for number in sorted({*chain(*numbers)})]
        if self._settings.judge_reads == "short":  # what is not kept needs no long context
            padded = await self._pad(evidence, [one.answer for one in labeled], counts)
        match self._settings.rows:
            case "pairs":
                rows = [comparison_row(self._comparison(source, pair, padded)) for pair in pairs if padded]
            case "judgments":
                kept = [one for one in labeled if one.answer.prompt.key in padded]
                rows = [
                    self._labeler.row(
                        source, one, padded[one.answer.prompt.key], self._columns(source, one, padded)
                    )
                    for one in kept
                ]
            case unknown:
                assert_never(unknown)
        return InputOutcome(source.id, tuple(rows), counts.steps, votes)

    def _answers(self, source: SynthesisInput, counts: StepCounts) -> list[UnlabeledAnswer]:
        """What is to be judged; what several models wrote in the same words stands once."""
        shared = self._shared_prompt(source) if self._settings.rows == "pairs" else None
        found: dict[str, UnlabeledAnswer] = {}
        for number, candidate in enumerate(source.candidates):
            text = candidate.text.strip()
            if text in found:
                counts.drop(Dropped("answers", "same_text"))
                continue
            counts.keep("answers")
            prompt = shared or self._own_prompt(source.document, number, candidate)
            found[text] = UnlabeledAnswer(candidate, number, prompt)
        return [*found.values()]

    def _own_prompt(self, document: Document, number: int, candidate: CandidateAnswer) -> UnpaddedPrompt:
        """The prompt of a judgment: what the judge reads, but for the rubric."""
        key = (self._settings.seed, self._domain.name, document.id, number)
        tag = self._tag(document, [candidate.text], key)
        language = self._settings.language_for(document.question)

        def render(context: str) -> tuple[Message, ...]:
            task = JudgeResponse(context, document.question, candidate.text, language)
            return judging_messages(self._domain, task, tag, rubric=False)

        return UnpaddedPrompt(key, tag, render)

    def _shared_prompt(self, source: SynthesisInput) -> UnpaddedPrompt:
        """The prompt of all pairs of one document."""
        question = source.document.question
        key = (self._settings.seed, self._domain.name, source.document.id)
        tag = self._tag(source.document, [candidate.text for candidate in source.candidates], key)
        about = self._domain.about(self._settings.language_for(question), tag) if tag else ""

        def render(context: str) -> tuple[Message, ...]:
            return ({"role": "user", "content": plain_content(context, question, about)},)

        return UnpaddedPrompt(key, tag, render)

    def _tag(self, document: Document, responses: Sequence[str], key: tuple[object, ...]) -> str:
        if self._domain.layout not in ("document", "segment"):
            return ""
        distractors = (chunk.text for chunk in self._pool.chunks)
        return draw_tag([document.text, document.question, *responses, *distractors], Draws(*key, "tag"))

    async def _pad(
        self, evidence: Evidence, answers: Sequence[UnlabeledAnswer], counts: StepCounts
    ) -> PaddedPrompts:
        """Pads the prompts of some answers, by their keys; what became of them and of the chunks is counted."""
        prompts = {answer.prompt.key: answer.prompt for answer in answers}
        found = await asyncio.gather(*(self._padder.pad(evidence, prompt) for prompt in prompts.values()))
        padded: PaddedPrompts = {}
        for key, one in zip(prompts, found, strict=True):
            if isinstance(one, Dropped):
                counts.drop(one)
                continue
            counts.keep("padding")
            counts.keep("distractors", len(one.padding))
            if one.left_out:
                counts.drop(Dropped("distractors", "answers_question"), one.left_out)
            padded[key] = one
        unfit = int(evidence.unfit.sum())
        if prompts and len(evidence.unfit):
            counts.keep("pool", len(evidence.unfit) - unfit)
        if prompts and unfit:
            counts.drop(Dropped("pool", "answers_question"), unfit)
        return padded

    async def _label(
        self,
        source: SynthesisInput,
        evidence: Evidence,
        answers: Sequence[UnlabeledAnswer],
        padded: PaddedPrompts,
    ) -> list[LabeledAnswer]:
        requests = [self._request(source.document, evidence, answer, padded) for answer in answers]
        labels = await asyncio.gather(
            *(self._labeler.label(source, *pair) for pair in zip(answers, requests, strict=True))
        )
        return [LabeledAnswer(*one) for one in zip(answers, requests, labels, strict=True)]

    def _request(
        self,
        document: Document,
        evidence: Evidence,
        answer: UnlabeledAnswer,
        padded: PaddedPrompts,
    ) -> TaskRequest:
        """Asks a judge about one answer, alone, with the rubric."""
        settings, prompt = self._settings, answer.prompt
        match settings.judge_reads:
            case _ if self._domain.layout == "short":
                context = ""
            case "long":
                context = padded[prompt.key].context.text
            case "short":
                context = wrapped(prompt.tag, evidence.text)
            case unknown:
                assert_never(unknown)
        language = settings.language_for(document.question)
        return judge_request(
            self._domain,
            JudgeResponse(context, document.question, answer.candidate.text, language),
            prompt.tag,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            seed=Draws(settings.seed, document.id, answer.number, "judging").below(_SEEDS),
        )

    def _columns(
        self,
        source: SynthesisInput,
        labeled: LabeledAnswer,
        padded: PaddedPrompts,
    ) -> dict[str, Any]:
        """How the context of a row was made.

        `tokens` is the prompt's length as the target tokenizer counts it, its chat template included, and
        `short_tokens` that of what the judge read; `length` is the target length, None where nothing pads. `depths`
        are the shares of the padding before each critical chunk. `padding` names the documents that foreign chunks
        come from; `own_chunks` counts the discarded chunks of the document itself.
        """
        document, key = source.document, labeled.answer.prompt.key
        prompt, is_short = padded[key], self._domain.layout == "short"
        foreign = dict.fromkeys(chunk.document for chunk in prompt.padding[prompt.own :])
        return {
            "document": document.id,
            "domain": self._domain.name,
            "language": self._settings.language_for(document.question),
            "length": prompt.length,
            "tokens": prompt.tokens,
            "short_tokens": self._padder.tokens(labeled.request.messages),
            "found_by": "" if is_short else self._settings.evidence_from,
            "evidence": [
                {"message": len(prompt.messages) - 1, "start": start, "end": end}
                for start, end in prompt.evidence
            ],
            "depths": prompt.context.depths,
            "tag": labeled.answer.prompt.tag,
            "padding": tuple(foreign),
            "own_chunks": prompt.own,
        }

    def _comparison(
        self,
        source: SynthesisInput,
        pair: tuple[LabeledAnswer, LabeledAnswer],
        padded: PaddedPrompts,
    ) -> Comparison:
        """A pair over the one long context of its document, in a drawn order."""
        document, numbers = source.document, sorted(one.answer.number for one in pair)
        listed = [*Draws(self._settings.seed, document.id, *numbers, "listing").order(pair)]
        prompt, scores = padded[pair[0].answer.prompt.key], [one.score for one in listed]
        columns = self._columns(source, pair[0], padded)
        columns.pop("evidence")  # it has a field of its own
        columns |= {
            "task": document.task or None,
            "models": [one.answer.candidate.model for one in listed],
            "perturbations": [one.answer.candidate.perturbation for one in listed],
            "conf": [one.label.cluster_sizes for one in listed] if pair[0].label.cluster_sizes else None,
            **self._labeler.pair_columns,
            "judge_scores": scores,
            "points_apart": abs(scores[0] - scores[1]),
        }
        last = len(prompt.messages) - 1
        end = len(message_text(prompt.messages[last]))
        return Comparison(
            id=f"{document.id}#{numbers[0]}-{numbers[1]}",
            group=document.group,
            prompt=prompt.messages,
            responses=tuple(({"role": "assistant", "content": one.answer.candidate.text},) for one in listed),
            ranks=(1, 2) if scores[0] > scores[1] else (2, 1),
            metadata={name: value for name, value in columns.items() if value is not None},
            context=() if prompt.span is None else (Span(last, *prompt.span),),
            question=Span(last, end - len(document.question), end),
            evidence=tuple(Span(last, *span) for span in prompt.evidence),
        )


def gather_pool(
    inputs: Iterable[SynthesisInput], tokenizer: Tokenizer, settings: ShortToLongSettings
) -> DistractorPool:
    """Draws the distractors in one pass over the inputs, which are counted, and whose languages are checked.

    Raises:
        ConfigError: The domain has no rubric in the language of a question.
    """

    def documents() -> Iterator[Document]:
        for document in (one.document for one in inputs):
            language = settings.language_for(document.question)
            check_language(settings.domain, language, f"the question of document '{document.id}'")
            yield document

    return DistractorPool.gather(
        documents(),
        tokenizer,
        chunk_size=settings.chunk_size,
        pool_documents=settings.pool_documents,
        pool_chunks=settings.pool_chunks,
        seed=settings.seed,
    )


def prompt_hashes(settings: ShortToLongSettings) -> Mapping[str, str]:
    """Hashes of every text that models are asked with, by name."""
    hashes = {f"domain.{settings.domain}": prompt_hash(*DOMAINS[settings.domain].texts())}
    return hashes | {name: prompt_hash(text) for name, text in PROMPTS.items()}


def pair_up(scores: Sequence[float], min_gap: float, counts: StepCounts) -> list[tuple[int, int]]:
    """Every two answers of which scores tell the better one, by their numbers, the better first; counts the others."""
    found = []
    for one, other in combinations(range(len(scores)), 2):
        if abs(scores[one] - scores[other]) < min_gap - _ROUNDING:
            counts.drop(Dropped("pairs", "tie" if scores[one] == scores[other] else "too_close"))
        else:
            counts.keep("pairs")
            found.append((one, other) if scores[one] > scores[other] else (other, one))
    return found
