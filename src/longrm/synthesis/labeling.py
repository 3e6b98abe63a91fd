"""From a document and its candidates to rows: judged on the short context, learned on the long one (paper, section 3).

`short-to-long` and `vote` share this; they differ in how an answer gets its label and in the rows of judgments.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from longrm.clients import Completion, Request
from longrm.data.formats import to_native_row
from longrm.data.tokenizing import Tokenizer
from longrm.judging.answers import answer_of
from longrm.judging.pointwise import Pointwise
from longrm.rng import Rng
from longrm.synthesis.chunks import DistractorPool
from longrm.synthesis.documents import Candidate, Document, plain_content
from longrm.synthesis.domains import (
    DOMAINS,
    SCORE_LINE,
    Domain,
    draw_tag,
    language_of,
    tag_hint,
    wrapped,
)
from longrm.synthesis.long_context import PROMPTS, Evidence, PaddedPrompt, UnpaddedPrompt, find_evidence, pad
from longrm.synthesis.models import AsyncModel, TaskRequest, failure_of
from longrm.synthesis.pipeline import KEPT, InputOutcome, Steps
from longrm.synthesis.settings import LabelingRecipe
from longrm.synthesis.voting import Vote, VoteCount
from longrm.types import Comparison, Message, Outcome, Query, Span, as_messages, message_text

_POINTWISE = Pointwise()


def judge_request(
    domain: Domain,
    document: Document,
    context: str,
    response: str,
    *,
    tag: str = "",
    max_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> TaskRequest:
    """Asks a judge to score one response to a document's question on its own, with the rubric."""
    language = language_of(document.question)
    text = domain.prompt(language, context, document.question, response, tag=tag, rubric=True)
    parts = {"document": document.id, "context": context, "response": response, "language": language}
    return TaskRequest(
        as_messages(text, "user"),
        max_tokens,
        temperature,
        seed,
        SCORE_LINE,
        task="judge",
        parts=parts | {"question": document.question},
    )


def read_judgment(judge: str, completion: Completion, request: Request, response: str) -> Vote:
    """A judge's vote on one response. Only a complete reply has a score, and only whole points count."""
    text = answer_of(completion.text).strip()
    if reason := failure_of(completion):
        return Vote(judge, None, text, reason=reason)
    query = Query("", request.messages, (as_messages(response, "assistant"),))
    verdict = _POINTWISE.parse(completion.text, query)
    if verdict is None:
        return Vote(judge, None, text, reason=Outcome.UNPARSED.value)
    score = verdict.values[0]
    if score != int(score):
        return Vote(judge, None, text, reason="not_whole")
    return Vote(judge, score, text, verdict.contradicted)


@dataclass(eq=False)
class Answer:
    """A candidate on its way to a row."""

    candidate: Candidate
    number: int  # its place among the document's candidates
    prompt: UnpaddedPrompt  # the prompt of its row before padding
    request: TaskRequest  # what its judges are asked
    score: float | None = None  # its label in points from 0 to 10; None if it has none
    judgment: str = ""  # the text of the judge; empty for a panel
    count: VoteCount | None = None  # the votes of a panel


class Labeling(ABC):
    """Turns documents with candidates into rows. `model` names critical chunks and checks them, if settings say so."""

    def __init__(
        self, recipe: LabelingRecipe, tokenizer: Tokenizer, pool: DistractorPool, model: AsyncModel
    ) -> None:
        self.recipe = recipe
        self._tokenizer, self._pool, self._model = tokenizer, pool, model
        self._domain = DOMAINS[recipe.domain]

    @abstractmethod
    async def label(self, answer: Answer) -> Steps:
        """Asks the judges about one answer, stores its label in it, and returns the counts."""

    @abstractmethod
    def row(self, document: Document, answer: Answer, prompt: PaddedPrompt) -> dict[str, Any]:
        """The row of one judgment."""

    @abstractmethod
    def pair_columns(self, pair: Sequence[Answer]) -> Mapping[str, Any]:
        """The columns about the judges of a pair."""

    def votes(self, document: Document, answers: Sequence[Answer]) -> list[Any]:
        """What to log about the labels of a document."""
        return []

    async def make_rows(self, document: Document) -> InputOutcome:
        """Makes the rows of one document; no other document changes them."""
        recipe, steps = self.recipe, Steps()
        if not document.candidates:
            steps["critical", "no_candidate"] += 1
            return InputOutcome(document.id, (), steps)
        evidence = await find_evidence(document, recipe, self._pool, self._model, steps)
        if evidence is None:
            return InputOutcome(document.id, (), steps)

        prompts = self._prompts(document, steps)
        padded: dict[tuple[object, ...], PaddedPrompt] = {}  # by the keys of the unpadded prompts
        if recipe.judge_reads == "long":
            padded = await self._pad(evidence, prompts.values(), steps)
        answers = []
        for number, prompt in prompts.items():
            if recipe.judge_reads == "short":
                context = "" if self._domain.layout == "short" else wrapped(prompt.tag, evidence.text)
            elif prompt.key in padded:
                context = padded[prompt.key].context.text
            else:
                continue
            candidate = document.candidates[number]
            request = judge_request(
                self._domain,
                document,
                context,
                candidate.text,
                tag=prompt.tag,
                max_tokens=recipe.max_tokens,
                temperature=recipe.temperature,
                seed=Rng(recipe.seed, document.id, number, "judging").below(2**31),  # servers take 31 bits
            )
            answers.append(Answer(candidate, number, prompt, request))
        # Counted in the order of the answers: which one is labeled first may differ between runs.
        for counted in await asyncio.gather(*map(self.label, answers)):
            steps.update(counted)
            steps.unusable += counted.unusable

        needed = labeled = [answer for answer in answers if answer.score is not None]
        pairs: list[tuple[Answer, Answer]] = []
        if recipe.rows == "pairs":
            pairs = pair_up(labeled, steps)
            needed = [better for better, _ in pairs]  # all answers to a document share one prompt
        if recipe.judge_reads == "short":  # only now: dropped answers need no long context
            padded = await self._pad(evidence, [answer.prompt for answer in needed], steps)
        if recipe.rows == "pairs":
            rows = [
                to_native_row(self._pair(document, better, worse, padded[better.prompt.key]))
                for better, worse in pairs
                if better.prompt.key in padded
            ]
        else:
            rows = [
                self.row(document, answer, padded[answer.prompt.key])
                for answer in labeled
                if answer.prompt.key in padded
            ]
        return InputOutcome(document.id, rows, steps, self.votes(document, answers))

    def _prompts(self, document: Document, steps: Steps) -> dict[int, UnpaddedPrompt]:
        """The prompts of the answers to judge, by number; what several models wrote in the same words counts once."""
        shared = self._prompt(document) if self.recipe.rows == "pairs" else None
        found: dict[int, UnpaddedPrompt] = {}
        known: set[str] = set()
        for number, candidate in enumerate(document.candidates):
            text = candidate.text.strip()
            steps["answers", "same_text" if text in known else KEPT] += 1
            if text not in known:
                known.add(text)
                found[number] = shared or self._prompt(document, number)
        return found

    def _prompt(self, document: Document, number: int | None = None) -> UnpaddedPrompt:
        """The prompt of a judgment of one answer, without the rubric, or of all pairs of a document."""
        key: tuple[object, ...] = (self.recipe.seed, self._domain.name, document.id)
        candidates = document.candidates
        if number is not None:
            key, candidates = (*key, number), candidates[number : number + 1]
        tag, language = "", language_of(document.question)
        if self._domain.layout in ("document", "segment"):
            texts = [candidate.text for candidate in candidates]
            distractors = (chunk.text for chunk in self._pool.chunks)
            tag = draw_tag([document.text, document.question, *texts, *distractors], Rng(*key, "tag"))

        def render(context: str) -> tuple[Message, ...]:
            if number is None:
                text = plain_content(context, document.question, tag_hint(language, tag) if tag else "")
            else:
                response = candidates[0].text
                text = self._domain.prompt(
                    language, context, document.question, response, tag=tag, rubric=False
                )
            return as_messages(text, "user")

        return UnpaddedPrompt(key, tag, render)

    async def _pad(
        self, evidence: Evidence, unpadded: Iterable[UnpaddedPrompt], steps: Steps
    ) -> dict[tuple[object, ...], PaddedPrompt]:
        """Pads different prompts, and counts them and the chunks."""
        prompts = {prompt.key: prompt for prompt in unpadded}
        found = await asyncio.gather(
            *(
                pad(evidence, prompt, self.recipe, self._tokenizer, self._pool, self._model)
                for prompt in prompts.values()
            )
        )
        padded = {}
        for key, one in zip(prompts, found, strict=True):
            if isinstance(one, str):
                steps["padding", one] += 1
                continue
            padded[key] = one
            steps["padding", KEPT] += 1
            steps["distractors", KEPT] += len(one.padding)
            if one.left_out:
                steps["distractors", "answers_question"] += one.left_out
        if prompts and len(evidence.unfit):
            unfit = int(evidence.unfit.sum())
            steps["pool", KEPT] += len(evidence.unfit) - unfit
            if unfit:
                steps["pool", "answers_question"] += unfit
        return padded

    def columns(self, document: Document, answer: Answer, prompt: PaddedPrompt) -> dict[str, Any]:
        """How the context of a row was made.

        `tokens` is the prompt's length with the chat template, `short_tokens` that of what the judge read, `length` the
        target, None without padding. `depths` are the shares of the padding before each critical chunk. `padding` names
        the documents of foreign chunks; `own_chunks` counts the document's own.
        """
        is_short = self._domain.layout == "short"
        foreign = dict.fromkeys(chunk.document for chunk in prompt.padding[prompt.own :])
        return {
            "document": document.id,
            "domain": self._domain.name,
            "language": language_of(document.question),
            "length": prompt.length,
            "tokens": prompt.tokens,
            "short_tokens": len(self._tokenizer.prompt_ids(answer.request.messages)),
            "found_by": "" if is_short else self.recipe.evidence_from,
            "evidence": [
                {"message": len(prompt.messages) - 1, "start": start, "end": end}
                for start, end in prompt.evidence
            ],
            "depths": prompt.context.depths,
            "tag": answer.prompt.tag,
            "padding": tuple(foreign),
            "own_chunks": prompt.own,
        }

    def _pair(self, document: Document, better: Answer, worse: Answer, prompt: PaddedPrompt) -> Comparison:
        """A pair over the long context of its document, in a drawn order."""
        numbers = sorted((better.number, worse.number))
        listed = [*Rng(self.recipe.seed, document.id, *numbers, "listing").order((better, worse))]
        scores = [answer.score or 0.0 for answer in listed]
        columns = self.columns(document, better, prompt)
        del columns["evidence"]  # a comparison has a field for it
        columns |= {
            "task": document.task or None,
            "models": [answer.candidate.model for answer in listed],
            "perturbations": [answer.candidate.perturbation for answer in listed],
            **self.pair_columns(listed),
            "judge_scores": scores,
            "points_apart": abs(scores[0] - scores[1]),
        }
        last = len(prompt.messages) - 1
        end = len(message_text(prompt.messages[last]))
        context = prompt.context.text
        return Comparison(
            id=f"{document.id}#{numbers[0]}-{numbers[1]}",
            group=document.group,
            prompt=prompt.messages,
            responses=tuple(as_messages(answer.candidate.text, "assistant") for answer in listed),
            ranks=(1, 2) if listed[0] is better else (2, 1),
            metadata={name: value for name, value in columns.items() if value is not None},
            context=(Span(last, prompt.start, prompt.start + len(context)),) if context else (),
            question=Span(last, end - len(document.question), end),
            evidence=tuple(Span(last, *span) for span in prompt.evidence),
        )


def gather_pool(recipe: LabelingRecipe, tokenizer: Tokenizer) -> DistractorPool:
    """Draws the distractors in one pass over the documents, and checks that the domain has their languages."""

    def documents() -> Iterator[Document]:
        for document in recipe.read():
            needed_by = f"the question of document '{document.id}'"
            DOMAINS[recipe.domain].check_language(language_of(document.question), needed_by)
            yield document

    return DistractorPool.gather(documents(), tokenizer, recipe.chunk_size, recipe.seed)


def labeling_prompts(recipe: LabelingRecipe) -> dict[str, Sequence[str]]:
    """The texts of all prompts, by name."""
    return {f"domain.{recipe.domain}": DOMAINS[recipe.domain].texts(), **PROMPTS}


def pair_up(answers: Sequence[Answer], steps: Steps) -> list[tuple[Answer, Answer]]:
    """All pairs of labeled answers with different scores, the better one first; counts these and the ties."""
    found = []
    for one, other in combinations(answers, 2):
        lead = (one.score or 0.0) - (other.score or 0.0)
        steps["pairs", KEPT if lead else "tie"] += 1
        if lead:
            found.append((one, other) if lead > 0 else (other, one))
    return found
