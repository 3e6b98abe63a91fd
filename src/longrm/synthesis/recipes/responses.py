"""`longrm synthesize responses`: models answer questions about perturbed or partial contexts.

The answers are candidates of graded quality (paper, section 2), or the best and the worst make a pair. With
sampling = "bandit" the writer sees a few chunks, chosen by the rewards of earlier answers. Every perturbation is a pure
function of the view (what a model sees of a document), random draws and passages of other documents, and records its
name and parameters in `View.done`.
"""

import asyncio
import hashlib
import heapq
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from longrm.benchmarks.answer_metrics import share_of_gold
from longrm.clients import Completion
from longrm.config import Config
from longrm.data.chunking import approximate_tokens, chunk_spans
from longrm.data.formats import to_native_row
from longrm.errors import ConfigError, nearest
from longrm.reading import is_number
from longrm.reward_models import RewardModel
from longrm.reward_models.lexical import index
from longrm.rng import Rng
from longrm.runs.progress import Progress, no_progress
from longrm.synthesis.bandit import BanditSettings, ChunkBandit, check_rates_answers, reward_of
from longrm.synthesis.documents import Candidate, Document, policy_prompt
from longrm.synthesis.models import AsyncModel, ModelSettings, TaskRequest, ask, batched_scores, failure_of
from longrm.synthesis.pipeline import KEPT, InputOutcome, Steps, open_run
from longrm.synthesis.settings import DocumentRecipe
from longrm.types import Comparison, Query, as_messages

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
            parts.append("Examples of questions with good answers:\n\n" + "\n\n".join(self.exemplars))
        passages = (f"[{passage.label}] {passage.text.strip()}" for passage in self.passages)
        parts.append("Read these numbered passages.\n\n" + "\n\n".join(passages))
        if self.hints:
            parts.append("A partial solution:\n" + "\n".join(self.hints))
        return "\n\n".join(parts)

    @property
    def content(self) -> str:
        """The whole prompt."""
        return (
            f"{self.shown}\n\nAnswer the question using only the passages. If it asks for sources, cite passages by "
            f"number, such as [2].\n\nQuestion: {self.question}"
        )

    @property
    def digest(self) -> str:
        """Identifies the prompt in rows."""
        prompt = json.dumps(as_messages(self.content, "user"), ensure_ascii=False)
        return hashlib.sha256(prompt.encode(errors="surrogatepass")).hexdigest()[:16]


def drop_clues(view: View, rng: Rng, foreign: Sequence[str], *, p: float = 0.5) -> View:
    """Drops every passage that contains the answer with probability p."""
    kept = tuple(part for part in view.passages if not part.clue or rng.fraction() >= p)
    return _done(view, "drop_clues", {"p": p, "dropped": len(view.passages) - len(kept)}, passages=kept)


def cut_source(view: View, rng: Rng, foreign: Sequence[str], *, share: float) -> View:
    """Cuts at most this share of the context's tokens off its end, in whole passages."""
    sizes = [approximate_tokens(part.text) for part in view.passages]
    kept, left = len(sizes), share * sum(sizes)
    while kept and sizes[kept - 1] <= left:
        kept -= 1
        left -= sizes[kept]
    parameters = {"share": share, "cut_tokens": sum(sizes[kept:]), "of_tokens": sum(sizes)}
    return _done(view, "cut_source", parameters, passages=view.passages[:kept])


def truncate(view: View, rng: Rng, foreign: Sequence[str], *, low: int = 4096, high: int = 32768) -> View:
    """Keeps the beginning of the context: whole passages within a drawn number of `low` to `high` tokens."""
    room = left = int(low) + rng.below(int(high - low) + 1)
    kept = 0
    for part in view.passages:
        left -= approximate_tokens(part.text)
        if left < 0:
            break
        kept += 1
    parameters = {"room_tokens": room, "dropped": len(view.passages) - kept}
    return _done(view, "truncate", parameters, passages=view.passages[:kept])


def inject_distractors(
    view: View, rng: Rng, foreign: Sequence[str], *, low: int = 4096, high: int = 8192
) -> View:
    """Inserts passages of other documents, of `low` to `high` drawn tokens together, at drawn places.

    Passages are never cut, so up to one passage less is inserted, or all if there are too few.
    """
    aim = int(low) + rng.below(int(high - low) + 1)
    passages, injected = list(view.passages), 0
    label = max((part.label for part in passages), default=0)
    for text in rng.order(foreign):
        tokens = approximate_tokens(text)
        if injected + tokens > aim:
            continue
        injected += tokens
        label += 1
        passages.insert(rng.below(len(passages) + 1), Passage(text, label))
    parameters = {"aim_tokens": aim, "injected_tokens": injected}
    return _done(view, "inject_distractors", parameters, passages=tuple(passages))


def remove_exemplars(view: View, rng: Rng, foreign: Sequence[str], *, keep: int = 0) -> View:
    """Removes all exemplars but the first `keep`."""
    kept = view.exemplars[: int(keep)]
    return _done(view, "remove_exemplars", {"removed": len(view.exemplars) - len(kept)}, exemplars=kept)


def noisy_citations(view: View, rng: Rng, foreign: Sequence[str], *, share: float = 0.5) -> View:
    """Swaps the numbers of this share of the passages, at least two; exemplars cite the wrong ones too."""
    count = len(view.passages)
    hit = list(range(count))
    rng.shuffle(hit)
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


def corrupt_steps(view: View, rng: Rng, foreign: Sequence[str], *, share: float = 0.5) -> View:
    """Shows the steps with a wrong result in this share, at least one, of those that contain a number."""
    numbered = [at for at, step in enumerate(view.steps) if _NUMBER.search(step)]
    rng.shuffle(numbered)
    hit = {*numbered[: max(1, round(share * len(numbered)))]} if share > 0 else set()
    hints = tuple(_with_wrong_number(step, rng) if at in hit else step for at, step in enumerate(view.steps))
    return _done(view, "corrupt_steps", {"share": share, "corrupted": len(hit)}, hints=hints)


def expose_steps(view: View, rng: Rng, foreign: Sequence[str]) -> View:
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
        sampling: "plans" perturbs the context; with "bandit", writers see the chunks that led to good answers before.
        plans: With sampling = "plans": every model answers every question once under each.
        bandit: The settings of sampling = "bandit".
        max_tokens: The most tokens of an answer; a longer one is dropped and counted as truncated.
    """

    writers: tuple[ModelSettings, ...] = Field(min_length=1)
    sampling: Literal["plans", "bandit"] = "plans"
    plans: tuple[ResponsePlan, ...] = (ResponsePlan(),)
    bandit: BanditSettings = BanditSettings()
    max_tokens: int = Field(512, ge=1)

    @model_validator(mode="after")
    def _only_its_own_settings(self) -> Self:
        tables = {"plans": "[[plans]]", "bandit": "[bandit]"}
        for name in tables.keys() & self.model_fields_set - {self.sampling}:
            raise ValueError(
                f"{tables[name]} is only valid with sampling = '{name}', and sampling is '{self.sampling}': remove "
                f"{tables[name]}, or set sampling = '{name}'"
            )
        return self


RECIPE = ResponsesRecipe


def synthesize(recipe: ResponsesRecipe, out: Path, *, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes candidates into the run folder `out`, continuing what is there."""
    models = {f"writer {number}": writer for number, writer in enumerate(recipe.writers, start=1)}
    example = View((Passage("", 1),), "", exemplars=("",), hints=("",))  # has all words of the prompt
    prompts = {"answering": (str(as_messages(example.content, "user")),)}
    sources, bandit = [recipe.documents.provenance()], recipe.bandit
    name = bandit.reward_model or ""
    with open_run("responses", recipe, out, models, sources, prompts, name) as run:
        writers = [*run.models.values()]
        if recipe.sampling == "plans":
            pool, total = gather_passages(recipe.documents.read(), recipe.seed)
            make = partial(make_rows, recipe, writers, pool)
        else:
            reward_model = (
                run.load_reward_model(name, bandit.model_args, bandit.judge, bandit.remote) if name else None
            )
            total = sum(1 for _ in recipe.documents.read())
            make = partial(make_rows_by_bandit, recipe, bandit, writers, rater(reward_model))
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
    whole = view_of(document, passages_of(document.text, document.answer))
    views = []
    for number, plan in enumerate(recipe.plans):
        rng, view = Rng("perturbation", recipe.seed, document.id, number), whole
        for name, settings in map(_name_and_settings, plan.perturbations):
            view = PERTURBATIONS[name](view, rng, foreign, **settings)
        views.append(view)

    def request(model: str, number: int) -> TaskRequest:
        seed = _seed(recipe.seed, document.id, number, model)
        return request_of(recipe, document, views[number], recipe.plans[number].temperature, seed)

    numbers = range(len(recipe.plans))
    answered = await asyncio.gather(
        *(ask(model, *(request(model.name, number) for number in numbers)) for model in models)
    )
    rows, steps = [], Steps()
    for model, answers in zip(models, answered, strict=True):
        for plan, view, answer in zip(recipe.plans, views, answers, strict=True):
            text = answer.text.strip()
            reason = _unusable(answer)
            steps.reply("written", reason, answer.text)
            if reason:
                continue
            metadata = {
                "perturbations": list(view.done),
                "temperature": plan.temperature,
                "prompt_hash": view.digest,
            }
            candidate = Candidate(document.id, model.name, text, plan.label, metadata=metadata)
            rows.append(candidate.to_row())
    return InputOutcome(document.id, rows, steps)


def view_of(document: Document, passages: tuple[Passage, ...]) -> View:
    """A document's question about some of its passages."""
    exemplars, steps = (tuple(document.metadata.get(name) or ()) for name in ("exemplars", "steps"))
    return View(passages, document.question, exemplars, steps)


def request_of(
    recipe: ResponsesRecipe, document: Document, view: View, temperature: float, seed: int
) -> TaskRequest:
    """Asks a model to answer from a view."""
    return TaskRequest(
        as_messages(view.content, "user"),
        recipe.max_tokens,
        temperature,
        seed,
        task="answer",
        parts={"document": document.id, "shown": view.shown, "question": view.question},
    )


def _unusable(answer: Completion) -> str:
    """Why an answer is no candidate; empty if it is one."""
    return failure_of(answer) or ("" if answer.text.strip() else "empty")


# ---- The bandit ----

Rater = Callable[[Document, str], Awaitable[float | None]]
"""Scores an answer to a document's question: higher is better, None without a score."""


def rater(reward_model: RewardModel | None) -> tuple[Rater, str]:
    """A rater, and the scale of its scores; without a model it is the document's metric, from 0 to 1."""
    if reward_model is None:
        return _rate_by_metric, "share"
    check_rates_answers(reward_model)
    score = batched_scores(reward_model)

    async def rate(document: Document, text: str) -> float | None:
        prompt = policy_prompt(document)
        responses = (as_messages(text, "assistant"),)
        scores = await score(Query(document.id, prompt.messages, responses, prompt.context, prompt.question))
        return scores[0] if scores else None

    return rate, reward_model.scale


async def _rate_by_metric(document: Document, text: str) -> float | None:
    share = share_of_gold(document.metric or "token_f1", document.answer)
    return None if share is None else min(1.0, share(text))


async def make_rows_by_bandit(
    recipe: ResponsesRecipe,
    settings: BanditSettings,
    models: Sequence[AsyncModel],
    rating: tuple[Rater, str],
    document: Document,
) -> InputOutcome:
    """Every model answers round by round from chosen chunks; an answer without a score earns its chunks nothing."""
    steps, (rate, scale) = Steps(), rating
    if settings.reward_model is None:
        rateable = await rate(document, document.answer) is not None
        steps["documents", KEPT if rateable else "no gold answer that a metric can rate by"] += 1
        if not rateable:
            return InputOutcome(document.id, (), steps)
    lexicon = index((document.text,), settings.chunk_size)
    passages = [
        Passage(document.text[chunk.start : chunk.end], number)
        for number, chunk in enumerate(lexicon.chunks, start=1)
    ]
    # The authors take the similarity with an answer that a model wrote from the gold one; this takes no request.
    relevance = lexicon.scores(f"{document.question} {document.answer}")
    priors = (relevance / (relevance.max(initial=0) or 1)).tolist()

    async def answers_of(model: AsyncModel) -> tuple[list[tuple[str, str]], list[Candidate]]:
        bandit, scores, replies = ChunkBandit(priors), list[float](), list[tuple[str, str]]()
        kept: dict[str, Candidate] = {}  # by text
        for number in range(settings.rounds):
            arms = bandit.select(settings.chunks)
            view = view_of(document, tuple(passages[arm] for arm in arms))
            seed = _seed(recipe.seed, document.id, "round", number, model.name)
            (answer,) = await ask(model, request_of(recipe, document, view, settings.temperature, seed))
            text = answer.text.strip()
            reason = _unusable(answer)
            score = None if reason else await rate(document, text)
            if score is None:
                reason = reason or "unjudged"
                bandit.update(arms, 0.0)
            else:
                bandit.update(arms, reward_of(score, scores, scale))
                scores.append(score)
                reason = "repeated" if text in kept else ""
            replies.append((reason, answer.text))
            if reason:
                continue
            metadata = {
                "round": number + 1,
                "chunks": [passages[arm].label for arm in arms],
                "temperature": settings.temperature,
                "prompt_hash": view.digest,
            }
            kept[text] = Candidate(document.id, model.name, text, "bandit", score, metadata=metadata)
        return replies, [*kept.values()]

    candidates: list[Candidate] = []
    for replies, kept in await asyncio.gather(*map(answers_of, models)):
        for reason, text in replies:
            steps.reply("written", reason, text)
        candidates += kept
    if settings.rows == "candidates":
        return InputOutcome(document.id, [one.to_row() for one in candidates], steps)
    pair = best_and_worst_answer(candidates, recipe.seed)
    steps["pairs", KEPT if pair else "tie" if candidates else "no_answer"] += 1
    return InputOutcome(document.id, [pair_row(document, *pair)] if pair else (), steps)


def best_and_worst_answer(candidates: Sequence[Candidate], seed: int) -> tuple[Candidate, Candidate] | None:
    """The candidates with the highest and the lowest score, drawn from equal ones; None if all scores are equal."""
    scores = [one.score or 0.0 for one in candidates]
    if not scores or max(scores) == min(scores):
        return None
    rng = Rng("pair", seed, candidates[0].document)
    best, worst = (
        rng.choice([one for one, score in zip(candidates, scores, strict=True) if score == end])
        for end in (max(scores), min(scores))
    )
    return best, worst


def pair_row(document: Document, best: Candidate, worst: Candidate) -> dict[str, Any]:
    """Two answers as a comparison about the whole context."""
    prompt, answers = policy_prompt(document), (best, worst)
    pair = tuple(as_messages(one.text, "assistant") for one in answers)
    metadata = {
        **prompt.metadata,
        "models": [one.model for one in answers],
        "answer_scores": [one.score for one in answers],
        "chunks": [one.metadata["chunks"] for one in answers],
    }
    comparison = Comparison(
        prompt.id, prompt.group, prompt.messages, pair, (1, 2), metadata, prompt.context, prompt.question
    )
    return to_native_row(comparison)


def _done(view: View, name: str, parameters: Mapping[str, Any], **changes: Any) -> View:
    return replace(view, done=(*view.done, {"name": name, **parameters}), **changes)


def _with_wrong_number(step: str, rng: Rng) -> str:
    """Changes the last number of a step, which is its result."""
    *_, number = _NUMBER.finditer(step)
    whole, point, rest = number[0].partition(".")
    off = 1 + rng.below(9)
    other = int(whole) - off if int(whole) > off and rng.fraction() < 0.5 else int(whole) + off
    return f"{step[: number.start()]}{other}{point}{rest}{step[number.end() :]}"


def _name_and_settings(perturbation: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    settings = dict(perturbation)
    return str(settings.pop("name", "")), settings


def _seed(*key: object) -> int:
    return Rng("candidate", *key).below(_SEEDS)
