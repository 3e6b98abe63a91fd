"""Models answer questions about what they are shown of documents: candidates of graded quality (paper, section 2)."""

import hashlib
import heapq
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, field_validator

from longrm.clients import Request
from longrm.config import Config
from longrm.data.chunking import size_of
from longrm.synthesis.documents import Document
from longrm.synthesis.pipeline import Asked, Fates, Made
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
from longrm.worlds.draws import Draws

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


@dataclass(frozen=True, slots=True)
class Written:
    """What came of one document: its candidates, and what became of the requests that gave none."""

    candidates: tuple[Candidate, ...]
    lost: Mapping[str, int] = field(default_factory=dict)


async def write_candidates(
    document: Document,
    shown: Shown,
    plans: Sequence[Plan],
    models: Sequence[Asked],
    *,
    seed: int,
    foreign: Sequence[str] = (),
    count: Callable[[str], int] = size_of,
) -> Written:
    """Asks every model under every plan, once; draws depend on the seed, the document and the plan alone.

    So all models see the same perturbed context under one plan, and their candidates differ by the model only.
    """
    found: list[Candidate] = []
    lost: dict[str, int] = {}
    views = [_view(document, shown, at, plan, seed, foreign, count) for at, plan in enumerate(plans)]
    for model in models:
        requests = [
            Request(
                prompt_of(view), plan.max_tokens, plan.temperature, _seed(seed, document.id, at, model.name)
            )
            for at, (plan, view) in enumerate(zip(plans, views, strict=True))
        ]
        for plan, view, answer in zip(plans, views, await model.ask(requests), strict=True):
            if answer.outcome is not Outcome.ANSWERED or not answer.text.strip():
                why = answer.outcome.value if answer.outcome is not Outcome.ANSWERED else "empty"
                lost[why] = lost.get(why, 0) + 1
                continue
            metadata = {
                "perturbations": [{"name": name, **done} for name, done in view.done],
                "temperature": plan.temperature,
                "prompt_hash": _hash(prompt_of(view)),
            }
            found.append(
                Candidate(document.id, model.name, answer.text.strip(), plan.label, metadata=metadata)
            )
    return Written(tuple(found), lost)


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
        tuple(map(str, document.metadata.get("exemplars") or ())),
        tuple(map(str, document.metadata.get("steps") or ())),
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


def responding(
    settings: Responses,
    models: Sequence[Asked],
    pool: Sequence[tuple[str, str]],
    count: Callable[[str], int] = size_of,
) -> Callable[[Sequence[Document]], Awaitable[list[Made]]]:
    """The work of a pipeline over documents, whose rows are candidates.

    Args:
        settings: Which candidates are written.
        models: That write them.
        pool: As `pool_of` draws it; a document's own passages never distract from it.
        count: Tokens of a text.
    """

    async def work(documents: Sequence[Document]) -> list[Made]:
        return [await one(document) for document in documents]

    async def one(document: Document) -> Made:
        foreign = [text for group, text in pool if group != document.group]
        shown = shown_of(document, settings.passage)
        written = await write_candidates(
            document, shown, settings.plans, models, seed=settings.seed, foreign=foreign, count=count
        )
        fates = Fates()
        fates.keep("written", len(written.candidates))
        for why, lost in sorted(written.lost.items()):
            fates.drop("written", why, lost)
        return Made(document.id, tuple(map(to_row, written.candidates)), fates.steps)

    return work


def _named(perturbation: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    settings = dict(perturbation)
    return str(settings.pop("name", "")), settings


def _seed(*key: object) -> int:
    return Draws("candidate", *key).below(_SEEDS)


def _hash(prompt: tuple[Message, ...]) -> str:
    return hashlib.sha256(json.dumps(prompt, ensure_ascii=False).encode(errors="surrogatepass")).hexdigest()[
        :16
    ]
