"""`longrm synthesize responses`: models answer questions about perturbed contexts.

The answers are candidates of graded quality (paper, section 2). Every perturbation is a pure function of the view (what
a model sees of a document), random draws and passages of other documents, and records its name and parameters in
`View.done`.
"""

import asyncio
import hashlib
import heapq
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from longrm.config import Config
from longrm.data.chunking import approximate_tokens, chunk_spans
from longrm.errors import ConfigError, nearest
from longrm.reading import is_number
from longrm.rng import Draws
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.documents import Candidate, Document
from longrm.synthesis.models import AsyncModel, ModelSettings, TaskRequest, ask, failure_of
from longrm.synthesis.pipeline import KEPT, InputOutcome, Steps, open_run
from longrm.synthesis.settings import DocumentRecipe
from longrm.types import as_messages

PASSAGE_SIZE = 200  # approximate tokens of a numbered passage
POOL_PASSAGES = 2000  # passages of other documents to distract with, held in memory
_SEEDS = 2**31 - 1  # the largest seed that every server takes: signed 32 bits
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_CITATION = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of the context, the number that cites it, and whether it contains the answer."""

    text: str
    label: int
    clue: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """What a model sees."""

    passages: tuple[Passage, ...]  # in reading order
    question: str  # the question
    exemplars: tuple[str, ...] = ()  # examples of answered questions
    steps: tuple[str, ...] = ()  # the way to the gold answer; shown only as `hints`, correct or not
    hints: tuple[str, ...] = ()  # see `steps`
    done: tuple[Mapping[str, Any], ...] = ()  # the perturbations so far, each with its parameters

    @property
    def shown(self) -> str:
        """The prompt before the question: exemplars, numbered passages and hints."""
        parts = []
        if self.exemplars:
            parts.append("Examples of questions that were answered well:\n\n" + "\n\n".join(self.exemplars))
        passages = (f"[{passage.label}] {passage.text.strip()}" for passage in self.passages)
        parts.append("Read these numbered passages.\n\n" + "\n\n".join(passages))
        if self.hints:
            parts.append("Somebody began to work it out:\n" + "\n".join(self.hints))
        return "\n\n".join(parts)

    @property
    def content(self) -> str:
        """The whole prompt."""
        return (
            f"{self.shown}\n\nAnswer the question from the passages alone. Where it asks for sources, cite passages by "
            f"number, such as [2].\n\nQuestion: {self.question}"
        )


def drop_clues(view: View, draws: Draws, foreign: Sequence[str], *, p: float = 0.5) -> View:
    """Drops every passage that contains the answer with probability p."""
    kept = tuple(part for part in view.passages if not part.clue or draws.fraction() >= p)
    return _done(view, "drop_clues", {"p": p, "dropped": len(view.passages) - len(kept)}, passages=kept)


def cut_source(view: View, draws: Draws, foreign: Sequence[str], *, share: float) -> View:
    """Cuts at most this share of the context's tokens off its end, in whole passages."""
    sizes = [approximate_tokens(part.text) for part in view.passages]
    kept, left = len(sizes), share * sum(sizes)
    while kept and sizes[kept - 1] <= left:
        kept -= 1
        left -= sizes[kept]
    parameters = {"share": share, "cut_tokens": sum(sizes[kept:]), "of_tokens": sum(sizes)}
    return _done(view, "cut_source", parameters, passages=view.passages[:kept])


def truncate(view: View, draws: Draws, foreign: Sequence[str], *, low: int = 4096, high: int = 32768) -> View:
    """Keeps the beginning of the context: whole passages within a drawn number of `low` to `high` tokens."""
    room = left = int(low) + draws.below(int(high - low) + 1)
    kept = 0
    for part in view.passages:
        left -= approximate_tokens(part.text)
        if left < 0:
            break
        kept += 1
    parameters = {"room_tokens": room, "dropped": len(view.passages) - kept}
    return _done(view, "truncate", parameters, passages=view.passages[:kept])


def inject_distractors(
    view: View, draws: Draws, foreign: Sequence[str], *, low: int = 4096, high: int = 8192
) -> View:
    """Inserts passages of other documents, of `low` to `high` drawn tokens together, at drawn places.

    Passages are never cut, so up to one passage less is inserted, or all if there are too few.
    """
    aim = int(low) + draws.below(int(high - low) + 1)
    passages, injected = list(view.passages), 0
    label = max((part.label for part in passages), default=0)
    for text in draws.order(foreign):
        tokens = approximate_tokens(text)
        if injected + tokens > aim:
            continue
        injected += tokens
        label += 1
        passages.insert(draws.below(len(passages) + 1), Passage(text, label))
    parameters = {"aim_tokens": aim, "injected_tokens": injected}
    return _done(view, "inject_distractors", parameters, passages=tuple(passages))


def remove_exemplars(view: View, draws: Draws, foreign: Sequence[str], *, keep: int = 0) -> View:
    """Removes all exemplars but the first `keep`."""
    kept = view.exemplars[: int(keep)]
    return _done(view, "remove_exemplars", {"removed": len(view.exemplars) - len(kept)}, exemplars=kept)


def noisy_citations(view: View, draws: Draws, foreign: Sequence[str], *, share: float = 0.5) -> View:
    """Swaps the numbers of this share of the passages, at least two; exemplars cite the wrong ones too."""
    count = len(view.passages)
    hit = list(range(count))
    draws.shuffle(hit)
    hit = sorted(hit[: max(2, round(share * count))]) if count > 1 and share > 0 else []
    # Rotated by one, so that none keeps its own number.
    labels = {at: view.passages[other].label for at, other in zip(hit, [*hit[1:], *hit[:1]], strict=True)}
    passages = tuple(replace(part, label=labels.get(at, part.label)) for at, part in enumerate(view.passages))
    moved = {str(view.passages[at].label): str(label) for at, label in labels.items()}
    exemplars = tuple(
        _CITATION.sub(lambda found: f"[{moved.get(found[1], found[1])}]", text) for text in view.exemplars
    )
    parameters = {"share": share, "moved": len(hit)}
    return _done(view, "noisy_citations", parameters, passages=passages, exemplars=exemplars)


def corrupt_steps(view: View, draws: Draws, foreign: Sequence[str], *, share: float = 0.5) -> View:
    """Shows the steps with a wrong result in this share, at least one, of those that contain a number."""
    numbered = [at for at, step in enumerate(view.steps) if _NUMBER.search(step)]
    draws.shuffle(numbered)
    hit = {*numbered[: max(1, round(share * len(numbered)))]} if share > 0 else set()
    hints = tuple(
        _with_wrong_number(step, draws) if at in hit else step for at, step in enumerate(view.steps)
    )
    return _done(view, "corrupt_steps", {"share": share, "corrupted": len(hit)}, hints=hints)


def expose_steps(view: View, draws: Draws, foreign: Sequence[str]) -> View:
    """Shows the steps as they are."""
    return _done(view, "expose_steps", {"steps": len(view.steps)}, hints=view.steps)


PERTURBATIONS: dict[str, Callable[..., View]] = {
    "drop_clues": drop_clues,
    "cut_source": cut_source,
    "truncate": truncate,
    "inject_distractors": inject_distractors,
    "remove_exemplars": remove_exemplars,
    "noisy_citations": noisy_citations,
    "corrupt_steps": corrupt_steps,
    "expose_steps": expose_steps,
}
"""The perturbations by name."""


def check_perturbation(name: str, settings: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for an unknown name or setting, a missing setting, or a value out of range."""
    if name not in PERTURBATIONS:
        raise ConfigError(f"no perturbation '{name}'; {nearest(name, PERTURBATIONS)}")
    try:
        bound = inspect.signature(PERTURBATIONS[name]).bind(None, None, None, **settings)
    except TypeError as error:
        raise ConfigError(f"perturbation '{name}': {error}") from error
    bound.apply_defaults()
    for key, value in bound.kwargs.items():
        share = key in ("p", "share")
        if not is_number(value) or value < 0 or (value > 1 if share else value != int(value)):
            wanted = "a number from 0 to 1" if share else "a whole number"
            raise ConfigError(f"perturbation '{name}': '{key}' must be {wanted}, got {value!r}")
    low, high = bound.kwargs.get("low", 1), bound.kwargs.get("high", 1)
    if not 0 < low <= high:
        raise ConfigError(f"perturbation '{name}': needs 0 < low <= high in tokens, got {low} and {high}")


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
    prompts = {"answering": (str(as_messages(example.content, "user")),)}
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
        for passage in passages_of(document.text):
            entry = (-_seed("pool", seed, last, passage.label), last, passage.text)
            if len(drawn) < POOL_PASSAGES:
                heapq.heappush(drawn, entry)
            else:
                heapq.heappushpop(drawn, entry)
    return sorted({(group, text) for _, group, text in drawn}), total


def passages_of(text: str, answer: str = "") -> tuple[Passage, ...]:
    """Cuts a context into numbered passages at the ends of sentences; those with the answer word for word are clues."""
    answer = answer.strip().lower()
    found = []
    for number, (low, high) in enumerate(chunk_spans(text, PASSAGE_SIZE), start=1):
        passage = text[low:high]
        found.append(Passage(passage, number, bool(answer) and answer in passage.lower()))
    return tuple(found)


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
    foreign = [text for group, text in pool if group != document.group]
    whole = View(
        passages_of(document.text, document.answer),
        document.question,
        tuple(document.metadata.get("exemplars") or ()),
        tuple(document.metadata.get("steps") or ()),
    )
    views = []
    for number, plan in enumerate(recipe.plans):
        draws, view = Draws("perturbation", recipe.seed, document.id, number), whole
        for name, settings in map(_name_and_settings, plan.perturbations):
            view = PERTURBATIONS[name](view, draws, foreign, **settings)
        views.append(view)

    def request(model: str, number: int) -> TaskRequest:
        view = views[number]
        return TaskRequest(
            as_messages(view.content, "user"),
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
    rows, steps = [], Steps()
    for model, answers in zip(models, answered, strict=True):
        for plan, view, answer in zip(recipe.plans, views, answers, strict=True):
            text = answer.text.strip()
            reason = failure_of(answer) or ("" if text else "empty")
            steps["written", reason or KEPT] += 1
            if reason:
                continue
            prompt = json.dumps(as_messages(view.content, "user"), ensure_ascii=False)
            metadata = {
                "perturbations": list(view.done),
                "temperature": plan.temperature,
                "prompt_hash": hashlib.sha256(prompt.encode(errors="surrogatepass")).hexdigest()[:16],
            }
            candidate = Candidate(document.id, model.name, text, plan.label, metadata=metadata)
            rows.append(candidate.to_row())
    return InputOutcome(document.id, rows, steps)


def _done(view: View, name: str, parameters: Mapping[str, Any], **changes: Any) -> View:
    return replace(view, done=(*view.done, {"name": name, **parameters}), **changes)


def _with_wrong_number(step: str, draws: Draws) -> str:
    """Changes the last number of a step, which is its result."""
    *_, number = _NUMBER.finditer(step)
    whole, point, rest = number[0].partition(".")
    off = 1 + draws.below(9)
    other = int(whole) - off if int(whole) > off and draws.fraction() < 0.5 else int(whole) + off
    return f"{step[: number.start()]}{other}{point}{rest}{step[number.end() :]}"


def _name_and_settings(perturbation: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    settings = dict(perturbation)
    return str(settings.pop("name", "")), settings


def _seed(*key: object) -> int:
    return Draws("candidate", *key).below(_SEEDS)
