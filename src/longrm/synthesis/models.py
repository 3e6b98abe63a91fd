"""The models that write and judge: their settings, how requests reach them, and what they cost."""

import asyncio
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar

from pydantic import Field

from longrm.clients import Completion, Request, TextGenerator
from longrm.clients.remote_settings import ModelName, Remote
from longrm.config import OPERATIONAL, Config, IdentifiedBy
from longrm.errors import RunError
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.trials import to_scores
from longrm.runs.logs import Log
from longrm.runs.workers import interrupt
from longrm.types import Outcome, Query, Trial

SPENDING = "spending.jsonl"

TaskName = Literal[
    "",
    "judge",
    "sufficiency",
    "attribution",
    "answer",
    "question",
    "criteria",
    "compare",
    "checklist",
    "rationale",
    "verify",
]
"""What a model is asked to do: score a response; say whether passages lead to the gold answer; name the passages that
it needs; answer a question; write a question; write criteria; compare two responses by one criterion; write criteria
that a prompt demands; write the reasons for a verdict; judge with another judge's analysis."""

BatchItem = TypeVar("BatchItem")
BatchReply = TypeVar("BatchReply")
Answer = TypeVar("Answer")

_SECONDS_TO_END = 5.0
"""How long a cancelled call is waited for: an operator of a large model on a CPU takes seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest(Request):
    """A request with the task behind its prompt, and the prompt's parts by name, which a simulated model reads."""

    task: TaskName = ""
    parts: Mapping[str, Any] = field(default_factory=dict)


class AsyncModel(Protocol):
    """A judge or writer as recipes see it."""

    name: str  # in rows and manifests

    async def ask(self, requests: Sequence[TaskRequest]) -> list[Completion]:
        """Answers every request on its own, in the same order."""
        ...


async def ask(model: AsyncModel, *requests: TaskRequest) -> list[Completion]:
    """Asks a model, and stops the run if it could not be reached."""
    answers = await model.ask(requests) if requests else []
    check_answered(model.name, answers)
    return answers


def check_answered(name: str, answers: Iterable[Completion | Trial]) -> None:
    """Raises `RunError` if an outcome is `ERROR`; other answers are in the cache."""
    # It must not be counted as dropped: the ledger would record its input as done, and the repeated command would
    # never ask again.
    failed = next((answer for answer in answers if answer.outcome is Outcome.ERROR), None)
    if failed is not None:
        raise RunError(f"{name} could not be asked ({failed.detail}); run the same command again")


def failure_of(reply: Completion) -> str:
    """Why a reply cannot be used, for the counts of a step: its outcome; empty if the model answered."""
    return "" if reply.outcome is Outcome.ANSWERED else reply.outcome.value


def _served_name(model: str) -> str:
    """The name of a served model without its URL, which may change between runs; other models as they are."""
    return f"openai:#{model.rpartition('#')[2]}" if model.startswith("openai:") else model


class ModelSettings(Config):
    """A model to ask.

    Attributes:
        model: `openai:URL#NAME` for an OpenAI-compatible endpoint, a folder or Hub id of a causal language model, or
            `simulated:RATES`, which knows the gold answers and errs at given rates, such as `simulated:0.1` or
            `simulated:error=0.1,misformat=0.05,disagreement=0.1,per_doubling=0.02`.
        name: Its name in rows and manifest; by default `model` without the URL.
        remote: How an endpoint is reached. Answers are cached in the run folder unless `remote.cache` names a file.
        price: What a million tokens of the `prompt` and of the `completion` cost, in your currency.
    """

    model: Annotated[ModelName, IdentifiedBy(_served_name)]
    name: str = ""
    remote: Remote = Remote()
    price: Annotated[dict[Literal["prompt", "completion"], Annotated[float, Field(ge=0)]], OPERATIONAL] = (
        Field(default_factory=dict)
    )

    @property
    def label(self) -> str:
        """Its name in rows and manifest."""
        return self.name or _served_name(self.model).removeprefix("openai:#")


@dataclass(frozen=True, slots=True)
class PaidAnswer:
    """One answer that was paid for (a line of `spending.jsonl`); cached answers have none.

    Tokens are None if the server does not report them.
    """

    model: str
    prompt_tokens: int | None
    completion_tokens: int | None


class Spending:
    """Adds up what the models of a run cost, over all processes that worked on it."""

    def __init__(self, log: Log[PaidAnswer], prices: Mapping[str, Mapping[Any, float]]) -> None:
        self._log, self._prices = log, prices
        self._lock = threading.Lock()  # clients report from their own threads
        self.accounts: dict[str, dict[str, Any]] = {}
        for paid in log:
            self._add(paid)

    def pay(self, model: str, completion: Completion) -> None:
        """Records an answer; may be called from any thread."""
        paid = PaidAnswer(model, completion.prompt_tokens, completion.completion_tokens)
        with self._lock:
            self._log.append(paid)
            self._add(paid)

    def note(self) -> str:
        """The total for the progress bar; empty if no endpoint was asked."""
        total = Counter[str]()
        with self._lock:
            for account in self.accounts.values():
                total.update(account)
        if not total:
            return ""
        tokens, cost = total["prompt_tokens"] + total["completion_tokens"], total["cost"]
        return f"{total['answers']:,} answers, {tokens:,} tokens" + (f", {cost:.2f} spent" if cost else "")

    def to_dict(self) -> dict[str, Any]:
        """For the manifest, by model."""
        return {
            name: {**account, "cost": round(account["cost"], 6)} for name, account in self.accounts.items()
        }

    def _add(self, paid: PaidAnswer) -> None:
        empty = {"answers": 0, "prompt_tokens": 0, "completion_tokens": 0, "cost": 0.0}
        account = self.accounts.setdefault(paid.model, empty)
        account["answers"] += 1
        spent = 0.0
        for kind, tokens in (("prompt", paid.prompt_tokens), ("completion", paid.completion_tokens)):
            account[f"{kind}_tokens"] += tokens or 0
            spent += (tokens or 0) * self._prices.get(paid.model, {}).get(kind, 0.0)
        account["cost"] += spent / 1e6


class BatchedCalls(Generic[BatchItem, BatchReply]):
    """Joins concurrent calls for many inputs into one batch; one batch runs at a time.

    Recipes are written for one input, and a model still gets the requests of all inputs in progress at once.
    """

    def __init__(self, call: Callable[[list[BatchItem]], Awaitable[Sequence[BatchReply]]]) -> None:
        self._call = call
        self._waiting: list[tuple[Sequence[BatchItem], asyncio.Future[list[BatchReply]]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def __call__(self, items: Sequence[BatchItem]) -> list[BatchReply]:
        """Waits for the batch that contains these items."""
        replies: asyncio.Future[list[BatchReply]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, replies))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return await replies

    async def _send(self) -> None:
        try:
            while self._waiting:
                # Let every input that is ready to ask do so before the batch is closed: batches are then as large as
                # can be, and the same in every run.
                known = 0
                while known < len(self._waiting):
                    known = len(self._waiting)
                    await asyncio.sleep(0)
                batch, self._waiting = self._waiting, []
                try:
                    answers = iter(await self._call([item for items, _ in batch for item in items]))
                except Exception as error:
                    for _, replies in batch:
                        if not replies.done():
                            replies.set_exception(error)
                    continue
                for items, replies in batch:
                    own = [next(answers) for _ in items]
                    if not replies.done():  # its input may have been cancelled
                        replies.set_result(own)
        finally:
            self._sending = None


async def in_thread(call: Callable[[], Answer]) -> Answer:
    """Runs a blocking call of a model in a thread, and interrupts it when this task is cancelled, as by Ctrl-C.

    `asyncio.to_thread` would let it finish first, which may take hours.
    """
    answer: Future[Answer] = Future()

    def run() -> None:
        with suppress(InvalidStateError):  # cancelled
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

    # A daemon, so that a call that does not end does not keep the process alive.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        return await asyncio.wrap_future(answer)
    except asyncio.CancelledError:
        interrupt(thread)
        end = time.monotonic() + _SECONDS_TO_END
        while thread.is_alive() and time.monotonic() < end:
            await asyncio.sleep(0.02)
        raise


def batched_scores(reward_model: RewardModel) -> Callable[[Query], Awaitable[tuple[float, ...]]]:
    """Scores the queries of all inputs in progress together, in a thread: a number per response, or none."""

    async def judge(queries: list[Query]) -> list[Trial]:
        return await in_thread(partial(reward_model.judge_in_all_orders, queries))

    calls = BatchedCalls(judge)

    async def score(query: Query) -> tuple[float, ...]:
        trials = await calls([query])
        check_answered(reward_model.name, trials)
        return to_scores(trials[0])

    return score


class ServedModel:
    """A model behind a blocking writer, which is called in its own thread."""

    def __init__(self, name: str, writer: TextGenerator) -> None:
        self.name = name
        self._writer = writer
        self._batched = BatchedCalls(self._write)

    async def ask(self, requests: Sequence[Request]) -> list[Completion]:
        """Answers every request on its own, in the same order; equal ones are sent once."""
        return await self._batched(requests) if requests else []

    async def _write(self, requests: Sequence[Request]) -> list[Completion]:
        keys = [_request_key(request) for request in requests]
        unique = dict(zip(keys, requests, strict=True))
        answers = await in_thread(partial(self._writer.generate, [*unique.values()]))
        found = dict(zip(unique, answers, strict=True))
        return [found[key] for key in keys]


def _request_key(request: Request) -> bytes:
    # The fields of `Request` and no others: the model does not see the task and parts of a `TaskRequest`.
    content = {part.name: getattr(request, part.name) for part in fields(Request)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
