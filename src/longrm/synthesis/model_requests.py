"""What models are asked for: a prompt, and beside it the task with its parts; and how requests are put together."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from longrm.clients import Completion, Request
from longrm.errors import RunError
from longrm.synthesis.rubrics import Language
from longrm.types import Outcome, Trial

BatchItem = TypeVar("BatchItem")
BatchReply = TypeVar("BatchReply")


@dataclass(frozen=True, slots=True)
class JudgeResponse:
    """A judge scores one response to a question by the context, which is empty where there is none."""

    context: str
    question: str
    response: str
    language: Language


@dataclass(frozen=True, slots=True)
class CheckSufficiency:
    """A judge says whether passages alone lead to the gold answer."""

    passages: str
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class NamePassages:
    """A model names the passages, each given with its number, that the gold answer needs."""

    passages: tuple[tuple[int, str], ...]
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class AnswerQuestion:
    """A model answers a question by all that its prompt shows before it."""

    shown: str
    question: str


@dataclass(frozen=True, slots=True)
class WriteQuestion:
    """A model writes a question about a passage, its answer, and the sentences that prove it."""

    passage: str


@dataclass(frozen=True, slots=True)
class WriteCriteria:
    """A model writes at most so many criteria that tell a better response from a worse one."""

    better: str
    worse: str
    most: int


@dataclass(frozen=True, slots=True)
class CompareByCriterion:
    """A judge says which of two responses is better by one criterion alone, in the order in which they are shown."""

    criterion: str
    first: str
    second: str


Task = (
    WriteQuestion
    | JudgeResponse
    | CheckSufficiency
    | NamePassages
    | AnswerQuestion
    | WriteCriteria
    | CompareByCriterion
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest(Request):
    """A request that also says what its prompt is made of, which a simulated model goes by; None if unknown."""

    task: Task | None = None


class AsyncModel(Protocol):
    """What judges and writers are to a recipe; rows and manifests call it by its name."""

    name: str

    async def ask(self, requests: Sequence[TaskRequest]) -> list[Completion]:
        """Answers every request alone, in the same order."""
        ...


async def ask(model: AsyncModel, *requests: TaskRequest) -> list[Completion]:
    """Asks a model, and stops the run where it could not be asked."""
    answers = await model.ask(requests) if requests else []
    check_answered(model.name, answers)
    return answers


def check_answered(name: str, answers: Iterable[Completion | Trial]) -> None:
    """Stops the run where a model could not be asked: else a repeated run would never ask again.

    Raises:
        RunError: An answer's outcome is `ERROR`. What was answered is in the cache.
    """
    failed = next((answer for answer in answers if answer.outcome is Outcome.ERROR), None)
    if failed is not None:
        raise RunError(f"{name} could not be asked ({failed.detail}); run the same command again")


class BatchedCalls(Generic[BatchItem, BatchReply]):
    """Joins what many inputs ask for at the same time into one batch; one batch is under way at a time.

    So every recipe is written for one input, and a model is still asked about all of them at once.
    """

    def __init__(self, call: Callable[[list[BatchItem]], Awaitable[Sequence[BatchReply]]]) -> None:
        self._call = call
        self._waiting: list[tuple[Sequence[BatchItem], asyncio.Future[list[BatchReply]]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def __call__(self, asked: Sequence[BatchItem]) -> list[BatchReply]:
        """Waits for the batch that these requests are in."""
        answered: asyncio.Future[list[BatchReply]] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answered))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return await answered

    async def _send(self) -> None:
        try:
            while self._waiting:
                known = 0
                while known < len(self._waiting):  # lets the inputs that are ready to ask do so first
                    known = len(self._waiting)
                    await asyncio.sleep(0)
                batch, self._waiting = self._waiting, []
                await self._answer(batch)
        finally:
            self._sending = None

    async def _answer(
        self, batch: Sequence[tuple[Sequence[BatchItem], asyncio.Future[list[BatchReply]]]]
    ) -> None:
        try:
            answers = iter(await self._call([one for asked, _ in batch for one in asked]))
        except Exception as error:
            for _, answered in batch:
                if not answered.done():
                    answered.set_exception(error)
            return
        for asked, answered in batch:
            own = [next(answers) for _ in asked]
            if not answered.done():
                answered.set_result(own)
