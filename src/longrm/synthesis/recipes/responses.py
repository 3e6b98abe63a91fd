"""`longrm synthesize responses`: models answer questions about perturbed contexts.

The answers are candidates of graded quality (paper, section 2).
"""

import asyncio
import hashlib
import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from longrm.config import Config
from longrm.rng import Draws
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.documents import Candidate, Document
from longrm.synthesis.models import AsyncModel, ModelSettings, TaskRequest, ask
from longrm.synthesis.perturbations import (
    PERTURBATIONS,
    Passage,
    View,
    check_perturbation,
    contains_answer,
    passages_of,
)
from longrm.synthesis.pipeline import KEPT, InputOutcome, Steps, open_run
from longrm.synthesis.settings import DocumentRecipe
from longrm.types import Message, Outcome

PASSAGE_SIZE = 200  # approximate tokens of a numbered passage
POOL_PASSAGES = 2000  # passages of other documents to distract with, held in memory
_SEEDS = 2**31 - 1  # the largest seed that every server takes: signed 32 bits


class ResponsePlan(Config):
    """How a candidate is made.

    Attributes:
        perturbations: Applied in this order, each a table with `name` and settings; none shows the whole document.
        temperature: Of the sampling.
    """

    perturbations: tuple[Mapping[str, str | float], ...] = ()
    temperature: float = Field(0.0, ge=0)

    @field_validator("perturbations")
    @classmethod
    def _are_known(cls, given: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
        for one in given:
            check_perturbation(*_name_and_settings(one))
        return given

    @property
    def label(self) -> str:
        """The names of the perturbations, joined by "+"."""
        return "+".join(_name_and_settings(one)[0] for one in self.perturbations)


class ResponsesRecipe(DocumentRecipe):
    """Settings of `longrm synthesize responses`.

    Attributes:
        writers: The models that answer, at least one.
        plans: Every model answers every question once under each.
        max_tokens: The most tokens of an answer; a longer one is dropped and counted as truncated.
    """

    writers: tuple[ModelSettings, ...] = Field(min_length=1)
    plans: tuple[ResponsePlan, ...] = (ResponsePlan(),)
    max_tokens: int = Field(512, ge=1)


RECIPE = ResponsesRecipe


def synthesize(recipe: ResponsesRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes candidates into the run folder `out`, continuing what is there."""
    models = {f"writer {number}": writer for number, writer in enumerate(recipe.writers, start=1)}
    example = View((Passage("", 1),), "", exemplars=("",), hints=("",))  # has all words of the prompt
    prompts = {"answering": (str(_messages(example)),)}
    sources = [recipe.documents.provenance()]
    with open_run("responses", recipe, out, models, sources, prompts) as run:
        pool, total = gather_passages(recipe.documents.read(), recipe.seed)
        make = partial(make_rows, recipe, [*run.models.values()], pool)
        return run.write(recipe.documents.read(), make, total=total, progress=progress)


def gather_passages(documents: Iterable[Document], seed: int) -> tuple[list[tuple[str, str]], int]:
    """An even draw of passages of all documents, as (group, text), and the number of documents.

    Every passage has a random number, and those with the smallest ones are kept.
    """
    drawn: list[tuple[int, str, str]] = []  # a heap; its first entry is the next to be dropped
    last, total = "", 0
    for document in documents:
        total += 1
        if document.group == last:
            continue
        last = document.group
        for passage in passages_of(document.text, PASSAGE_SIZE):
            entry = (-_seed("pool", seed, last, passage.label), last, passage.text)
            if len(drawn) < POOL_PASSAGES:
                heapq.heappush(drawn, entry)
            else:
                heapq.heappushpop(drawn, entry)
    return sorted({(group, text) for _, group, text in drawn}), total


async def make_rows(
    recipe: ResponsesRecipe,
    models: Sequence[AsyncModel],
    pool: Sequence[tuple[str, str]],
    document: Document,
) -> InputOutcome:
    """Asks every model about a document under every plan.

    All draws depend only on the seed, the document and the plan: under one plan all models see the same perturbed
    context, and their candidates differ only by the model.
    """
    steps = Steps()
    views = _views(recipe, pool, document)

    def request(model: str, number: int) -> TaskRequest:
        view = views[number]
        return TaskRequest(
            _messages(view),
            recipe.max_tokens,
            recipe.plans[number].temperature,
            _seed(recipe.seed, document.id, number, model),
            task="answer",
            parts={"document": document.id, "shown": view.shown, "question": view.question},
        )

    numbers = range(len(recipe.plans))
    answered = await asyncio.gather(
        *(ask(model, *(request(model.name, number) for number in numbers)) for model in models)
    )
    rows = []
    for model, answers in zip(models, answered, strict=True):
        for plan, view, answer in zip(recipe.plans, views, answers, strict=True):
            text = answer.text.strip()
            if answer.outcome is not Outcome.ANSWERED or not text:
                failed = answer.outcome is not Outcome.ANSWERED
                steps["written", answer.outcome.value if failed else "empty"] += 1
                continue
            steps["written", KEPT] += 1
            prompt = json.dumps(_messages(view), ensure_ascii=False).encode(errors="surrogatepass")
            metadata = {
                "perturbations": list(view.done),
                "temperature": plan.temperature,
                "prompt_hash": hashlib.sha256(prompt).hexdigest()[:16],
            }
            candidate = Candidate(document.id, model.name, text, plan.label, metadata=metadata)
            rows.append(candidate.to_row())
    return InputOutcome(document.id, rows, steps)


def _views(recipe: ResponsesRecipe, pool: Sequence[tuple[str, str]], document: Document) -> list[View]:
    """What models see of a document under each plan; `exemplars` and `steps` come from its metadata."""
    seed = recipe.seed
    whole = View(
        passages_of(document.text, PASSAGE_SIZE, contains_answer(document)),
        document.question,
        tuple(document.metadata.get("exemplars") or ()),
        tuple(document.metadata.get("steps") or ()),
    )
    foreign = [text for group, text in pool if group != document.group]
    views = []
    for number, plan in enumerate(recipe.plans):
        draws, view = Draws("perturbation", seed, document.id, number), whole
        for name, settings in map(_name_and_settings, plan.perturbations):
            view = PERTURBATIONS[name](view, draws, foreign, **settings)
        views.append(view)
    return views


def _messages(view: View) -> tuple[Message, ...]:
    return ({"role": "user", "content": view.content},)


def _name_and_settings(perturbation: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    settings = dict(perturbation)
    return str(settings.pop("name", "")), settings


def _seed(*key: object) -> int:
    return Draws("candidate", *key).below(_SEEDS)
