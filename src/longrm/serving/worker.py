"""The thread that owns the model: it batches waiting requests, and answers each with a `ScoreResult`."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from longrm.errors import DataError, LongRMError
from longrm.reward_models.protocol import RewardModel
from longrm.reward_models.trials import aggregate_trials, latin_square, to_scores, trial_of
from longrm.runs.workers import interrupt
from longrm.serving.rendered_texts import QueryMaker
from longrm.serving.wire import Failure, ScoreRequest, ScoreResult
from longrm.types import Judgment, Outcome

_log = logging.getLogger(__name__)

# The oldest waiting queries, from which the next batch is chosen. Looking at all of thousands would delay every batch.
_CANDIDATES = 256

_SECONDS_TO_FINISH = 1.0
"""How long `Worker.stop` lets the model work before it interrupts it; a forward pass mostly ends by itself."""


@dataclass(eq=False)
class _Job:
    """A request that waits, with one judgment for each order in which its responses are presented."""

    request: ScoreRequest
    result: "Future[ScoreResult]"
    submitted: float
    orders: Sequence[tuple[int, ...]] = ()
    judgments: dict[int, Judgment] = field(default_factory=dict)
    total_tokens: int = 0
    started: float | None = None


# A job, the number of one of its orders, and the query in that order, which the model has opened (tokenized).
_Waiting = tuple[_Job, int, Any]


class Worker:
    """Loads a model on its own thread, and answers requests there until `stop`.

    The model is loaded on the same thread because each thread that computes gets a team of OpenMP threads: if two
    teams have more threads than there are processors, short forward passes take half as long again.

    Args:
        load: Loads the model. Its errors are raised by this constructor.
        max_waiting: How many prompts may wait.

    Attributes:
        model: The model; only the thread may use it.
    """

    def __init__(self, load: Callable[[], RewardModel], max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._inbox: deque[_Job] = deque()
        self._waiting: list[_Waiting] = []
        self._changed = threading.Condition()
        self._stopping = False
        self.running = 0
        """Queries that the model reads now."""
        loaded: Future[RewardModel] = Future()
        # A daemon, so that a forward pass of minutes does not keep the process alive after the drain time.
        self._thread = threading.Thread(
            target=self._run, args=(load, loaded), name="longrm-model", daemon=True
        )
        self._thread.start()
        self.model = loaded.result()

    @property
    def alive(self) -> bool:
        """Whether the thread works."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Queries that wait for the model."""
        return len(self._inbox) + len(self._waiting) - self.running

    def submit(self, requests: Sequence[ScoreRequest]) -> "list[Future[ScoreResult]]":
        """Queues requests. Cancel a future to drop a request that the model has not started.

        Raises:
            Failure: Too many wait already, or the server stops; then nothing is queued.
        """
        jobs = [_Job(request, Future(), time.monotonic()) for request in requests]
        with self._changed:
            if self._stopping or not self.alive:
                raise Failure("stopping", "the server is stopping")
            waiting = self.waiting
            # A single request may be larger than the limit: it is served when nothing else waits.
            if waiting and waiting + len(jobs) > self._max_waiting:
                raise Failure("full", f"{waiting} prompts are waiting already; try again later")
            self._inbox.extend(jobs)
            self._changed.notify()
        return [job.result for job in jobs]

    def stop(self, seconds: float | None = None) -> None:
        """Refuses everything that the model has not finished, and waits for the thread to end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(_SECONDS_TO_FINISH)
        if self._thread.is_alive():
            interrupt(self._thread)
            self._thread.join(seconds)

    def _run(self, load: Callable[[], RewardModel], loaded: "Future[RewardModel]") -> None:
        try:
            model = load()
        except BaseException as error:
            loaded.set_exception(error)
            return
        # A `PackedRewardModel` chooses its batches. By attribute, so that a server of a remote model or a baseline
        # starts without torch.
        self._batching: Any = model if hasattr(model, "choose") else None
        tokenizer = None if self._batching is None else model.tokenizer
        self._template = (tokenizer and tokenizer.chat_template) or ""
        self._queries = QueryMaker(tokenizer)
        loaded.set_result(model)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._inbox or self._waiting or self._stopping)
                if self._stopping:
                    break
                # No more are opened than may be read together: the first must not wait until all are tokenized.
                room = max(0, _CANDIDATES - len(self._waiting))
                arrived = [self._inbox.popleft() for _ in range(min(room, len(self._inbox)))]
            for job in arrived:
                self._guard([job], self._open, model, job)
            # Cancelled requests, and other orders of a job that has failed.
            self._waiting = [entry for entry in self._waiting if not entry[0].result.done()]
            if self._waiting:
                candidates = self._waiting[:_CANDIDATES]
                self._guard([job for job, _, _ in candidates], self._read, model, candidates)
        for job in [*self._inbox, *(job for job, _, _ in self._waiting)]:
            _settle(job, Failure("stopping", "the server is stopping"))

    def _guard(self, jobs: Sequence[_Job], work: Callable[..., None], *arguments: Any) -> None:
        """Calls `work`; an unexpected error fails these jobs, and the thread continues with the others."""
        try:
            work(*arguments)
        except BaseException as error:  # a panic of the Rust tokenizers is not an `Exception`
            if isinstance(error, LongRMError):
                _log.warning("the model gave no scores: %s", error)
            elif not self._stopping:
                _log.exception("the model gave no scores")
            for job in jobs:
                _settle(job, Failure("internal", "the model gave no scores; see the log of the server"))

    def _open(self, model: RewardModel, job: _Job) -> None:
        """Tokenizes a job's query in each order that the model must see, and queues it."""
        if job.result.done():
            return
        try:
            query = self._queries.query(job.request)
        except DataError as error:
            _settle(job, Failure("invalid", str(error)))
            return
        plain = tuple(range(job.request.count))
        job.orders = latin_square(plain) if model.sees_order and not job.request.steps else (plain,)
        for number, order in enumerate(job.orders):
            responses = tuple(query.responses[index] for index in order)
            shown = replace(query, responses=responses, trial=number)
            if self._batching is not None:
                opened = self._batching.open(shown, job.request.cut, job.request.cache_salt)
            elif job.request.cut is None:
                opened = shown
            else:
                opened = Judgment(Outcome.ERROR, detail="this model does not support cut")
            if isinstance(opened, Judgment):
                self._judged(job, number, opened)
            else:
                job.total_tokens = max(job.total_tokens, getattr(opened, "size", 0))
                self._waiting.append((job, number, opened))

    def _read(self, model: RewardModel, candidates: Sequence[_Waiting]) -> None:
        """Judges the model's next batch. Models that do not choose one get everything that waits."""
        if self._batching is None:
            batch = list(candidates)
        else:
            batch = [candidates[at] for at in self._batching.choose([opened for _, _, opened in candidates])]
        now = time.monotonic()
        for job, _, _ in batch:
            job.started = now if job.started is None else job.started
        self.running = len(batch)

        def judge() -> None:
            opened = [one for _, _, one in batch]
            judgments = model.judge(opened) if self._batching is None else self._batching.read(opened)
            for (job, number, _), judgment in zip(batch, judgments, strict=True):
                self._judged(job, number, judgment)

        self._guard([job for job, _, _ in batch], judge)
        read = {id(entry) for entry in batch}
        with self._changed:
            self._waiting = [entry for entry in self._waiting if id(entry) not in read]
            self.running = 0

    def _judged(self, job: _Job, number: int, judgment: Judgment) -> None:
        """Stores the judgment of one order; the last one completes the job."""
        job.judgments[number] = judgment
        if len(job.judgments) < len(job.orders):
            return
        judgments = [job.judgments[order] for order in range(len(job.orders))]
        scores: tuple[float | None, ...] = (None,) * job.request.count
        failed = next((one for one in judgments if one.outcome is not Outcome.ANSWERED), None)
        if failed is not None:
            failure: Failure | None = _failure(failed, self._template)
        else:
            if len(judgments) == 1 and judgments[0].scores:
                # JSON has no NaN; a missing score of one response leaves those of the others.
                scores = tuple(score if math.isfinite(score) else None for score in judgments[0].scores)
            else:
                trials = [trial_of(one, order) for one, order in zip(judgments, job.orders, strict=True)]
                scores = to_scores(aggregate_trials(trials)) or scores
            failure = Failure("unscored", "a score is not a finite number") if None in scores else None
        first, now = judgments[0], time.monotonic()
        result = ScoreResult(
            scores,
            explanation="\n\n".join(filter(None, (one.explanation for one in judgments))),
            prompt_tokens=first.prompt_tokens or 0,
            cached_tokens=min(one.cached_tokens for one in judgments),
            total_tokens=job.total_tokens or first.prompt_tokens or 0,
            seconds=now - job.submitted,
            queue_seconds=(now if job.started is None else job.started) - job.submitted,
            cut=first.cut,
            failure=failure,
        )
        _settle(job, result)


def _failure(judgment: Judgment, template: str) -> Failure:
    """Why there is no judgment, without the texts of the request.

    A detail may quote the request after a colon. That part is only reported if it is in the model's own chat template,
    such as the reason of `raise_exception`.
    """
    detail, _, reason = judgment.detail.partition(": ")
    detail = judgment.detail if reason.strip() and reason in template else detail.partition("; ")[0]
    if judgment.outcome is Outcome.TOO_LONG:
        return Failure("too_long", f"{detail}, more than the model reads")
    if judgment.outcome is Outcome.ERROR:
        return Failure("unscored", f"the model could not be asked: {detail}")
    return Failure("unscored", f"the model gave no verdict ({judgment.outcome})")


def _settle(job: _Job, result: ScoreResult | Failure) -> None:
    # The client may have gone away, or another order of the same job may have failed.
    with suppress(InvalidStateError):
        if isinstance(result, Failure):
            job.result.set_exception(result)
        else:
            job.result.set_result(result)
