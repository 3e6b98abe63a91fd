"""Distillation: a policy answers, a reward model scores, and the best answer becomes a demonstration.

The paper's section 6.2: two rollouts a prompt, and training on the better one. A reward model that reads a short
part of the prompt only (`ShortSighted`) is the baseline that a long-context one must beat.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from longrm.clients import Completion, Request
from longrm.config import Config
from longrm.data import read, read_demonstrations
from longrm.data.fields import FieldError, group_of, messages_of, name_of, plain, required
from longrm.data.files import Raw, find_files, raw_rows
from longrm.data.formats import recognize
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.judging import fit
from longrm.reading import located
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.trials import points
from longrm.rng import seed_of
from longrm.runs.records import Trial
from longrm.synthesis.asking import ask_all, check_asked
from longrm.synthesis.comparing import OPENING, plain_prompt
from longrm.synthesis.documents import Document
from longrm.synthesis.fates import Fates, Made
from longrm.synthesis.pipeline import Asked
from longrm.types import Judgment, Message, Outcome, Query, Span, as_messages, message_text, text_of

Reads = Literal["first", "last", "ends"]

_PROMPTS = ("prompt", "prompt_template", "chat_template")
_CUTS: dict[Reads, Literal["right", "left", "middle"]] = {"first": "right", "last": "left", "ends": "middle"}


class Distilling(Config):
    """How a policy is asked, and which of its answers are kept.

    Attributes:
        rollouts: Answers drawn for each prompt.
        max_tokens: The most tokens of an answer; one that reaches them is left out.
        temperature: 0 would give the same answer every time.
        seed: Of the draws; every prompt and rollout has its own.
        ties: Where the best scores tie, or all answers are the same: "drop" the prompt, or keep the "first" drawn.
    """

    rollouts: int = Field(2, ge=2, le=10_000)
    max_tokens: int = Field(1024, ge=1)
    temperature: float = Field(1.0, gt=0)
    seed: int = 0
    ties: Literal["drop", "first"] = "drop"


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt for the policy.

    Attributes:
        id: Unique in its run.
        group: The document or context that this prompt shares with others.
        prompt: What the policy reads.
        context: Where the long context stands in the prompt, if known.
        question: Where the question stands in it, if known.
        metadata: More columns of the row.
    """

    id: str
    group: str
    prompt: tuple[Message, ...]
    context: tuple[Span, ...] = ()
    question: Span | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def task_of(document: Document) -> Task:
    """A document's question, asked about the whole text."""
    prompt = plain_prompt(document.text, document.question)
    text, start = message_text(prompt[0]), len(OPENING)
    told = {"task": document.task, "source": document.metadata.get("source")}
    return Task(
        document.id,
        document.group,
        prompt,
        (Span(0, start, start + len(document.text)),),
        Span(0, len(text) - len(document.question), len(text)),
        {name: value for name, value in told.items() if value},
    )


def read_tasks(path: str | Path) -> Iterator[Task]:
    """Reads the prompts of comparisons, of demonstrations, or of rows that hold nothing else.

    Raises:
        DataError: There is nothing to read, or a row that cannot be read.
    """
    files = find_files(Path(path))
    first = next(raw_rows(files, repair=True), None)
    columns = set(first.value) if first is not None and first.value is not None else set()
    if columns & {"golden", "completion"} and not columns & {"chosen", "responses", "candidates"}:
        for row in read_demonstrations(path, repair=True):
            one = row.demonstration
            yield Task(one.id, _group(one.prompt), one.prompt, metadata=_told(one.metadata))
    elif recognize(columns):
        for found in read(path, repair=True):
            two = found.comparison
            yield Task(two.id, two.group, two.prompt, two.context, two.question, _told(two.metadata))
    else:
        yield from map(_of_prompt, raw_rows(files, repair=True))


def _of_prompt(raw: Raw) -> Task:
    """A row that holds a prompt alone."""
    value = raw.checked()
    try:
        name, given = required(value, *_PROMPTS)
        prompt = messages_of(given, name, "user")
        identity = name_of(value, "id") if value.get("id") is not None else f"row-{raw.number}"
    except FieldError as fault:
        raise DataError(located(raw.place, fault)) from fault
    return Task(identity, _group(prompt), prompt, metadata=_told(value))


def _group(prompt: tuple[Message, ...]) -> str:
    return group_of({}, prompt, (), None)


def _told(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What of a row's metadata its demonstration keeps."""
    names = ("task", "source", "length")
    return {name: plain(metadata[name]) for name in names if metadata.get(name) is not None}


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of some answers is the best.

    Attributes:
        best: Its index; None where nothing tells, or a tie is dropped.
        scores: One an answer, higher is better; empty where none could be read.
        reason: Why none is the best: "unjudged" or "tie".
    """

    best: int | None
    scores: tuple[float, ...] = ()
    reason: str = ""


def rollout_requests(task: Task, settings: Distilling) -> list[Request]:
    """The requests for a task's answers, each with a seed of its own."""
    return [
        Request(
            task.prompt,
            settings.max_tokens,
            settings.temperature,
            seed_of("rollout", settings.seed, task.id, number),
        )
        for number in range(settings.rollouts)
    ]


def distinct_answers(completions: Sequence[Completion], fates: Fates) -> list[str]:
    """The answers that can be compared, each once; why others cannot is counted."""
    found: list[str] = []
    for completion in completions:
        text = completion.text.strip()
        if completion.outcome is not Outcome.ANSWERED:
            fates.drop("rollouts", str(completion.outcome))
        elif not text:
            fates.drop("rollouts", "empty")
        elif text in found:
            fates.drop("rollouts", "repeated")
        else:
            fates.keep("rollouts")
            found.append(text)
    return found


def choose(
    reward_model: RewardModel, asked: Sequence[tuple[Task, Sequence[str]]], settings: Distilling
) -> list[Choice]:
    """The best of every task's answers by a reward model, in all orders where it sees them.

    A single answer is the best one by the rule for ties: the reward model is not asked.

    Raises:
        RunError: The reward model could not be asked.
    """
    compared = [(task, answers) for task, answers in asked if len(answers) > 1]
    queries = [
        Query(task.id, task.prompt, _responses(answers), task.context, task.question)
        for task, answers in compared
    ]
    trials = reward_model.judge_in_all_orders(queries) if queries else []
    check_asked(reward_model, trials)
    judged = iter(trials)
    return [
        _best(next(judged), settings) if len(answers) > 1 else _tie((), settings) for task, answers in asked
    ]


def demonstration(
    task: Task, answers: Sequence[str], choice: Choice, policy: str, reward_model: str
) -> dict[str, Any]:
    """A row that `longrm train sft` reads: the prompt and its best answer, and how it was found."""
    assert choice.best is not None, "there is no best answer to imitate"
    return {
        **task.metadata,
        "id": task.id,
        "group": task.group,
        "prompt": [dict(message) for message in task.prompt],
        **({"question": _question(task)} if task.question is not None else {}),
        "completion": answers[choice.best],
        "model": policy,
        "reward_model": reward_model,
        "rollout_scores": list(choice.scores),
        "best": choice.best,
    }


def _question(task: Task) -> str:
    assert task.question is not None, "nobody knows where it stands"
    text = message_text(task.prompt[task.question.message])
    return text[task.question.start : task.question.end]


class Distillation:
    """The work of a distilling pipeline: tasks in, demonstrations out.

    Args:
        policy: What answers.
        reward_model: What scores the answers.
        settings: How both are used.
    """

    def __init__(self, policy: Asked, reward_model: RewardModel, settings: Distilling) -> None:
        self._policy, self._reward_model, self._settings = policy, reward_model, settings

    async def work(self, tasks: Sequence[Task]) -> list[Made]:
        """Answers all tasks, scores the answers and keeps the best.

        Raises:
            RunError: The policy or the reward model could not be asked. What was answered is in the cache.
        """
        requests = [rollout_requests(task, self._settings) for task in tasks]
        rollouts = await ask_all(self._policy, requests)
        fates = [Fates() for _ in tasks]
        asked = [
            (task, distinct_answers(own, counted))
            for task, own, counted in zip(tasks, rollouts, fates, strict=True)
        ]
        answered = [(task, answers) for task, answers in asked if answers]
        choices = iter(await asyncio.to_thread(choose, self._reward_model, answered, self._settings))
        return [
            self._made(task, answers, next(choices) if answers else Choice(None, (), "no_answer"), counted)
            for (task, answers), counted in zip(asked, fates, strict=True)
        ]

    def _made(self, task: Task, answers: Sequence[str], choice: Choice, fates: Fates) -> Made:
        if choice.best is None:
            fates.drop("best", choice.reason)
            return Made(task.id, (), fates.steps)
        fates.keep("best")
        row = demonstration(task, answers, choice, self._policy.name, self._reward_model.name)
        return Made(task.id, (row,), fates.steps)


class ShortSighted(RewardModel):
    """Asks another reward model about a prompt of which it reads so many tokens only: the short-context baseline.

    The question and the responses stay whole. Where the context is not known, all of the prompt but the question
    counts as context. What was cut stands in the judgment; what cannot be cut so short is `TOO_LONG`.

    Args:
        inner: What judges.
        tokenizer: Counts the prompt's tokens.
        tokens: How many tokens of the prompt are read, the question included.
        reads: The "first" ones, the "last" ones, or those at both "ends".
    """

    def __init__(self, inner: RewardModel, tokenizer: Tokenizer, tokens: int, reads: Reads = "last") -> None:
        assert tokens >= 1, "a model that reads nothing judges nothing"
        self.name = f"{reads}-{tokens}:{inner.name}"
        self.sees_order, self.samples, self.scale = inner.sees_order, inner.samples, inner.scale
        self._inner, self._tokenizer, self._tokens, self._reads = inner, tokenizer, tokens, reads

    def judge(self, queries: Sequence[Query]) -> list[Judgment]:
        """Cuts every query and passes on what the other model judges."""
        short = [self._short(query) for query in queries]
        judged = iter(self._inner.judge([found[0] for found in short if found is not None]))
        return [
            Judgment(Outcome.TOO_LONG, detail=f"what must stay is longer than {self._tokens} tokens")
            if found is None
            else replace(judgment := next(judged), cut=found[1] or judgment.cut)
            for found in short
        ]

    def orders(self, comparison: str) -> tuple[tuple[int, ...], ...]:
        """The presented orders that the other model must be asked in."""
        return self._inner.orders(comparison)

    def _short(self, query: Query) -> Any:
        whole = tuple(
            Span(number, 0, len(text)) for number, text in enumerate(map(message_text, query.prompt)) if text
        )
        known = query if query.context else replace(query, context=whole)
        return fit(known, self._size, self._tokens, self._tokenizer, _CUTS[self._reads])

    def _size(self, query: Query) -> int:
        return self._tokenizer.count(text_of(query.prompt))


def _best(trial: Trial, settings: Distilling) -> Choice:
    scores = points(trial)
    if not scores:
        return Choice(None, (), "unjudged")
    if scores.count(max(scores)) > 1:
        return _tie(scores, settings)
    return Choice(scores.index(max(scores)), scores)


def _tie(scores: tuple[float, ...], settings: Distilling) -> Choice:
    if settings.ties == "drop":
        return Choice(None, scores, "tie")
    return Choice(scores.index(max(scores)) if scores else 0, scores)


def _responses(answers: Sequence[str]) -> tuple[tuple[Message, ...], ...]:
    return tuple(as_messages(answer, "assistant") for answer in answers)
