"""Models answer questions about what they are shown of documents: candidates of graded quality (paper, section 2)."""

import asyncio
import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator

from longrm.clients import Completion, Request
from longrm.config import Config
from longrm.data.chunking import size_of
from longrm.rng import Draws
from longrm.synthesis.asking import check_asked
from longrm.synthesis.documents import Document
from longrm.synthesis.fates import Fates, Made
from longrm.synthesis.pipeline import Asked
from longrm.synthesis.records import Candidate, to_row
from longrm.synthesis.responses import (
    Material,
    Shown,
    check_perturbation,
    holds_answer,
    passages_of,
    perturb,
    prompt_of,
)
from longrm.types import Message, Outcome

# The largest seed that every server takes: signed 32 bits.
_SEEDS = 2**31 - 1


class Plan(Config):
    """How one candidate comes about.

    Attributes:
        perturbations: Applied in this order, each a table with its `name` and settings; none shows all there is.
        temperature: Of the sampling.
        max_tokens: The most that the model may write.
    """

    perturbations: tuple[Mapping[str, str | float], ...] = ()
    temperature: float = Field(0.0, ge=0)
    max_tokens: int = Field(512, ge=1)

    @field_validator("perturbations")
    @classmethod
    def _known(cls, given: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
        for one in given:
            name, settings = _named(one)
            check_perturbation(name, settings)
        return given

    @property
    def label(self) -> str:
        """The names of the perturbations, joined by "+"; empty where nothing is perturbed."""
        return "+".join(_named(one)[0] for one in self.perturbations)


class Responses(Config):
    """Which candidates are written.

    Attributes:
        plans: Every model answers every question once under each.
        passage: Words and marks of a numbered passage.
        pool: Passages of other texts that distractors are drawn from, held in memory.
        seed: Of all draws, the models' included.
    """

    plans: tuple[Plan, ...] = (Plan(),)
    passage: int = Field(200, ge=1)
    pool: int = Field(2000, ge=0)
    seed: int = 0


def _view(
    document: Document,
    shown: Shown,
    at: int,
    plan: Plan,
    seed: int,
    foreign: Sequence[str],
    count: Callable[[str], int],
) -> Shown:
    material = Material(Draws("perturbation", seed, document.id, at), foreign, count)
    for name, settings in map(_named, plan.perturbations):
        shown = perturb(shown, material, name, **settings)
    return shown


def shown_of(document: Document, passage: int) -> Shown:
    """All there is to show of a document: `exemplars` and `steps`, lists of texts, come from its metadata."""
    return Shown(
        passages_of(document.text, passage, holds_answer(document)),
        document.question,
        tuple(document.metadata.get("exemplars") or ()),
        tuple(document.metadata.get("steps") or ()),
    )


def pool_of(documents: Iterable[Document], settings: Responses) -> list[tuple[str, str]]:
    """Passages to distract with, each with the group it comes from: an even draw from all, bounded in memory."""
    drawn: list[tuple[int, str, str]] = []
    last = ""
    for document in documents:
        if document.group == last or not settings.pool:
            continue
        last = document.group
        for part in passages_of(document.text, settings.passage):
            entry = (-_seed("pool", settings.seed, last, part.label), last, part.text)
            if len(drawn) < settings.pool:
                heapq.heappush(drawn, entry)
            else:
                heapq.heappushpop(drawn, entry)
    return sorted({(group, text) for _, group, text in drawn})


class Answering:
    """The work of a pipeline over documents, whose rows are candidates.

    All draws depend on the seed, the document and the plan alone: under one plan all models see the same perturbed
    context, and their candidates differ by the model only.

    Args:
        settings: Which candidates are written.
        models: That write them, all at the same time.
        pool: As `pool_of` draws it; a document's own passages never distract from it.
        count: Tokens of a text.
    """

    def __init__(
        self,
        settings: Responses,
        models: Sequence[Asked],
        pool: Sequence[tuple[str, str]],
        count: Callable[[str], int] = size_of,
    ) -> None:
        self._settings, self._models, self._pool, self._count = settings, models, pool, count

    async def work(self, documents: Sequence[Document]) -> list[Made]:
        """Asks every model about every document under every plan, each alone.

        Raises:
            RunError: A model could not be asked. What was answered is in its cache.
        """
        views = [self._views(document) for document in documents]
        answers = await asyncio.gather(
            *(model.ask(self._requests(model, documents, views)) for model in self._models)
        )
        for model, said in zip(self._models, answers, strict=True):
            check_asked(model, said)
        by_model = [iter(answered) for answered in answers]
        made = []
        for document, own in zip(documents, views, strict=True):
            fates, rows = Fates(), []
            for model, answered in zip(self._models, by_model, strict=True):
                for plan, view in zip(self._settings.plans, own, strict=True):
                    found = _candidate(document, model.name, plan, view, next(answered), fates)
                    rows += [] if found is None else [to_row(found)]
            made.append(Made(document.id, tuple(rows), fates.steps))
        return made

    def _views(self, document: Document) -> list[Shown]:
        settings = self._settings
        foreign = [text for group, text in self._pool if group != document.group]
        shown = shown_of(document, settings.passage)
        return [
            _view(document, shown, at, plan, settings.seed, foreign, self._count)
            for at, plan in enumerate(settings.plans)
        ]

    def _requests(
        self, model: Asked, documents: Sequence[Document], views: Sequence[Sequence[Shown]]
    ) -> list[Request]:
        plans, seed = self._settings.plans, self._settings.seed
        return [
            Request(
                prompt_of(view), plan.max_tokens, plan.temperature, _seed(seed, document.id, at, model.name)
            )
            for document, own in zip(documents, views, strict=True)
            for at, (plan, view) in enumerate(zip(plans, own, strict=True))
        ]


def _candidate(
    document: Document, model: str, plan: Plan, view: Shown, answer: Completion, fates: Fates
) -> Candidate | None:
    """What a model wrote, as a candidate; None where nothing whole came, which is counted."""
    if answer.outcome is not Outcome.ANSWERED or not answer.text.strip():
        fates.drop("written", answer.outcome.value if answer.outcome is not Outcome.ANSWERED else "empty")
        return None
    fates.keep("written")
    metadata = {
        "perturbations": [{"name": name, **done} for name, done in view.done],
        "temperature": plan.temperature,
        "prompt_hash": _hash(prompt_of(view)),
    }
    return Candidate(document.id, model, answer.text.strip(), plan.label, metadata=metadata)


def _named(perturbation: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    settings = dict(perturbation)
    return str(settings.pop("name", "")), settings


def _seed(*key: object) -> int:
    return Draws("candidate", *key).below(_SEEDS)


def _hash(prompt: tuple[Message, ...]) -> str:
    return hashlib.sha256(json.dumps(prompt, ensure_ascii=False).encode(errors="surrogatepass")).hexdigest()[
        :16
    ]
