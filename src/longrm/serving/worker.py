"""What owns the model: on a thread of its own it takes what waits, reads what goes together, and hands out scores."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn, TypeVar, assert_never

from longrm.errors import DataError, LongRMError
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.trials import latin_square, points, together, trial_of
from longrm.serving.asked import Asked, Failure, Scored
from longrm.serving.batching import BatchingModel, OpenQuery, WholeQueries
from longrm.serving.model_thread import ModelThread, settle
from longrm.serving.rendered_texts import QueryMaker
from longrm.types import Judgment, Outcome, Query

_log = logging.getLogger(__name__)

_Told = TypeVar("_Told")

_CONSIDERED = 256
"""How many waiting queries are looked at when the next are chosen: the oldest."""


@dataclass(eq=False)
class _Job:
    """What was asked about one prompt, in as many orders as its model must see."""

    asked: Asked
    answer: "Future[Scored]"
    begun: float
    orders: list[tuple[int, ...]] = field(default_factory=list)
    judgments: dict[int, Judgment] = field(default_factory=dict)
    size: int = 0
    started: float | None = None


@dataclass(frozen=True, slots=True)
class _Shown:
    """One order of a job."""

    job: _Job
    number: int
    opened: OpenQuery


class Worker:
    """Answers questions to one model on one thread.

    Args:
        model: The model; no one else may use it meanwhile.
        waiting: How many prompts may wait.
        thread: The thread, which ends with the worker; by default a new one.
        clock: Tells the time in seconds.
    """

    def __init__(
        self,
        model: RewardModel,
        waiting: int,
        thread: ModelThread | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        batching = isinstance(model, BatchingModel)
        self._model = model
        self._reader: Any = model if batching else WholeQueries(model)
        tokenizer = model.tokenizer if isinstance(model, BatchingModel) else None
        self._queries = QueryMaker(tokenizer)
        self._own_words = (tokenizer and tokenizer.chat_template) or ""
        self._most = waiting
        self._clock = clock
        self._inbox: deque[_Job] = deque()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._waiting: list[_Shown] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._reading = 0
        self._thread = thread
        self._end: Future[Any] | None = None

    def start(self) -> None:
        """Begins to work."""
        thread = self._thread or ModelThread()
        self._end = thread.submit(self._run)
        thread.close()

    def stop(self, seconds: float | None = None) -> None:
        """Refuses what waits and is not being read, and ends the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._end is not None:
            wait([self._end], seconds)

    @property
    def alive(self) -> bool:
        """Whether the thread works."""
        return self._end is not None and not self._end.done()

    @property
    def running(self) -> int:
        """Queries that the model reads now."""
        return self._reading

    @property
    def waiting(self) -> int:
        """Queries that wait for the model."""
        return len(self._inbox) + len(self._waiting) - self._reading

    def submit(self, several: Sequence[Asked]) -> "list[Future[Scored]]":
        """Asks; a future that is cancelled before the model began is not read.

        Raises:
            Failure: Too many wait already, or the server stops: nothing was asked.
        """
        jobs = [_Job(asked, Future(), self._clock()) for asked in several]
        with self._wake:
            if self._stopping or not self.alive:
                _stopping()
            waiting = self.waiting
            if waiting and waiting + len(jobs) > self._most:
                raise Failure("full", f"{waiting} prompts wait already; try again later")
            self._inbox.extend(jobs)
            self._wake.notify()
        return [job.answer for job in jobs]

    def call(self, function: Callable[[RewardModel], _Told]) -> "Future[_Told]":
        """What a function says of the model, between two readings.

        Raises:
            Failure: The server stops.
        """
        told: Future[_Told] = Future()
        with self._wake:
            if self._stopping or not self.alive:
                _stopping()
            self._calls.append((told, partial(function, self._model)))
            self._wake.notify()
        return told

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._inbox or self._waiting or self._calls or self._stopping)
                if self._stopping:
                    break
                # No more is opened than may go together: the first must not wait until all are tokenized.
                room = max(0, _CONSIDERED - len(self._waiting))
                taken = [self._inbox.popleft() for _ in range(min(room, len(self._inbox)))]
            while self._calls:
                settle(*self._calls.popleft())
            for job in taken:
                self._guarded([job], self._open, job)
            self._waiting = [one for one in self._waiting if not one.job.answer.done()]
            if self._waiting:
                considered = self._waiting[:_CONSIDERED]
                self._guarded([one.job for one in considered], self._read_next, considered)
        for job in [*self._inbox, *(one.job for one in self._waiting)]:
            _answer(job, Failure("stopping", "the server is stopping"))
        for told, _ in self._calls:
            settle(told, _stopping)

    def _guarded(self, jobs: Sequence[_Job], work: Callable[..., None], *arguments: Any) -> None:
        """Works; an error that nobody foresaw is the answer to these jobs, and to no others."""
        try:
            work(*arguments)
        except BaseException as error:  # tokenizers panics with one that is no Exception
            if isinstance(error, LongRMError):
                _log.warning("the model gave no scores: %s", error)
            else:
                _log.exception("the model gave no scores")
            for job in jobs:
                _answer(job, Failure("internal", "the model gave no scores; the log of the server says why"))

    def _open(self, job: _Job) -> None:
        if job.answer.done():
            return
        try:
            query = self._queries.query(job.asked)
        except DataError as error:
            _answer(job, Failure("invalid", str(error)))
            return
        plain = tuple(range(job.asked.count))
        in_all = self._model.sees_order and not job.asked.one_order
        job.orders = list(latin_square(plain)) if in_all else [plain]
        for number, order in enumerate(job.orders):
            self._show(job, number, _in_order(query, order, number))

    def _show(self, job: _Job, number: int, query: Query) -> None:
        opened = self._reader.open(query, job.asked.cut, job.asked.salt)
        if isinstance(opened, Judgment):
            self._judged(job, number, opened)
        else:
            job.size = max(job.size, opened.size)
            self._waiting.append(_Shown(job, number, opened))

    def _read_next(self, considered: Sequence[_Shown]) -> None:
        chosen = [considered[at] for at in self._reader.choose([one.opened for one in considered])]
        now = self._clock()
        for one in chosen:
            one.job.started = now if one.job.started is None else one.job.started
        self._reading = len(chosen)
        self._guarded([one.job for one in chosen], self._read, chosen)
        taken = set(map(id, chosen))
        with self._wake:
            self._waiting = [one for one in self._waiting if id(one) not in taken]
            self._reading = 0

    def _read(self, chosen: Sequence[_Shown]) -> None:
        judged = self._reader.read([one.opened for one in chosen])
        for one, judgment in zip(chosen, judged, strict=True):
            self._judged(one.job, one.number, judgment)

    def _judged(self, job: _Job, number: int, judgment: Judgment) -> None:
        job.judgments[number] = judgment
        if len(job.judgments) == len(job.orders):
            _answer(job, self._scored(job))

    def _scored(self, job: _Job) -> Scored:
        judgments = [job.judgments[number] for number in range(len(job.orders))]
        first, now = judgments[0], self._clock()
        scores, failure = _scores(judgments, job.orders, self._own_words)
        return Scored(
            scores,
            explanation="\n\n".join(filter(None, (one.explanation for one in judgments))),
            prompt_tokens=first.prompt_tokens or 0,
            cached_tokens=min(one.cached_tokens for one in judgments),
            total_tokens=job.size or first.prompt_tokens or 0,
            seconds=now - job.begun,
            waited=(now if job.started is None else job.started) - job.begun,
            cut=first.cut,
            failure=failure,
        )


def _stopping() -> NoReturn:
    raise Failure("stopping", "the server is stopping")


def _in_order(query: Query, order: Sequence[int], trial: int) -> Query:
    return replace(query, responses=tuple(query.responses[index] for index in order), trial=trial)


def _answer(job: _Job, answer: Scored | Failure) -> None:
    # The client may have gone away, or another order of the same job failed.
    with suppress(InvalidStateError):
        if isinstance(answer, Failure):
            job.answer.set_exception(answer)
        else:
            job.answer.set_result(answer)


def _scores(
    judgments: Sequence[Judgment], orders: Sequence[tuple[int, ...]], own_words: str
) -> tuple[tuple[float | None, ...], Failure | None]:
    """The scores of the responses as they were asked, and why some are missing."""
    none: tuple[float | None, ...] = (None,) * len(orders[0])
    failed = next((one for one in judgments if one.outcome is not Outcome.ANSWERED), None)
    if failed is not None:
        return none, _failure(failed, own_words)
    if len(judgments) == 1 and judgments[0].scores:
        scores = tuple(score if math.isfinite(score) else None for score in judgments[0].scores)
    else:
        whole = together([trial_of(one, order) for one, order in zip(judgments, orders, strict=True)])
        scores = points(whole) or none
    return scores, Failure("unscored", "a score is not a finite number") if None in scores else None


def _failure(judgment: Judgment, own_words: str) -> Failure:
    """Why there is no judgment, without a word of what was asked.

    Details say more behind a colon or a semicolon, which is told where the model's chat template has it word for word.
    """
    what, _, reason = judgment.detail.partition(": ")
    known = reason.strip() and reason in own_words
    why = judgment.detail if known else what.partition("; ")[0]
    match judgment.outcome:
        case Outcome.TOO_LONG:
            return Failure("too_long", f"{why}, more than the model reads")
        case Outcome.ERROR:
            return Failure("unscored", f"the model could not be asked: {why}")
        case Outcome.UNPARSED | Outcome.REFUSED | Outcome.TRUNCATED as outcome:
            return Failure("unscored", f"the model gave no verdict ({outcome})")
        case Outcome.ANSWERED as outcome:
            raise AssertionError(outcome)
        case unknown:
            assert_never(unknown)
