"""From the body of a request to its response: limits, time-outs, clients that go away, and metrics."""

import asyncio
import logging
import math
import re
import time
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from longrm.reading import short_name
from longrm.serving.settings import ServeSettings
from longrm.serving.wire import Failure, Route, ScoreRequest, ScoreResult
from longrm.serving.worker import Worker

_log = logging.getLogger(__name__)

MAX_PROMPTS = 1024
"""Prompts of one request."""

MAX_RESPONSES = 256
"""Responses to one prompt."""

MAX_WAITING_BYTES = 2**28
"""Bytes of all requests in progress. As many again may be arriving."""

BODY_BYTES = 2**20, 2**25
"""Bytes of one body: at least and at most; between them 4 for each token of the context and of each response."""

DRAIN_SECONDS = 60.0
"""How long the server waits for requests in progress before it stops."""

# The responses to one prompt may fill so many contexts of the model: their tokens take many times their own memory.
_MAX_CONTEXTS = 16
_RETRY_AFTER: Mapping[str, int] = {"full": 1, "stopping": 5}


class ScoringService:
    """Answers requests in any wire format with the scores of one model.

    Attributes:
        name: The model's name in answers, without the folders of a path.
        draining: Whether the server is stopping and refuses new requests.
        registry: The metrics, under vLLM's names.
        body_bytes: The limit of one body.
    """

    def __init__(self, settings: ServeSettings, worker: Worker) -> None:
        self.name, self.worker, self.draining = short_name(settings.model), worker, False
        self._seconds = settings.limits.seconds
        context = worker.model.limit
        # Most texts have 4 bytes per token; one of 8 characters per token is rare.
        least, most = BODY_BYTES
        self.body_bytes = most if context is None else min(max(4 * context * MAX_RESPONSES, least), most)
        self._max_characters = math.inf if context is None else 8 * _MAX_CONTEXTS * context
        self._bytes_in_work = 0
        self._deadlines: set[asyncio.Timeout] = set()
        self._arriving: dict[asyncio.Timeout, int] = {}
        self.registry = CollectorRegistry()
        self._add_metrics(worker)

    def _add_metrics(self, worker: Worker) -> None:
        seconds = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
        tokens = (1, 16, 64, 256, 1024, 4096, 8192, 16384, 32768, 65536, 131072)
        own = self.registry
        self._read = Counter("longrm:prompt_tokens", "Tokens of prompts and responses.", registry=own)
        self._cached = Counter("longrm:prompt_tokens_cached", "Tokens that were cached.", registry=own)
        self._queries = Counter("longrm:prefix_cache_queries", "Tokens looked up in the cache.", registry=own)
        self._hits = Counter("longrm:prefix_cache_hits", "Tokens found in the cache.", registry=own)
        self._success = Counter("longrm:request_success", "Requests with scores.", registry=own)
        self._failures = Counter("longrm:request_failure", "Requests without.", ["kind"], registry=own)
        self._sizes = Histogram("longrm:request_prompt_tokens", "Tokens.", buckets=tokens, registry=own)
        self._latency, self._queue = (
            Histogram(f"longrm:{name}_seconds", text, buckets=seconds, registry=own)
            for name, text in (
                ("e2e_request_latency", "From request to answer."),
                ("request_queue_time", "Until the model starts."),
            )
        )
        gauges = {
            "num_requests_running": ("Prompts that the model reads now.", lambda: worker.running),
            "num_requests_waiting": ("Prompts that wait for the model.", lambda: worker.waiting),
        }
        cache = worker.model.prefix_cache
        if cache is not None:
            size = cache.block_bytes
            gauges["prefix_cache_bytes"] = ("Bytes in the cache.", lambda: len(cache.table) * size)
            gauges["prefix_cache_max_bytes"] = ("Size of the cache.", lambda: cache.table.blocks * size)
        for name, (text, value) in gauges.items():
            Gauge(f"longrm:{name}", text, registry=own).set_function(value)

    def stop(self) -> None:
        """Refuses new requests, and after `DRAIN_SECONDS` also those in progress."""
        self.draining = True
        end = asyncio.get_running_loop().time() + DRAIN_SECONDS
        for deadline in self._deadlines:
            if not deadline.expired():
                deadline.reschedule(min(deadline.when() or end, end))

    async def answer(self, request: Request, routes: Sequence[Route]) -> Response:
        """The response to a request, whose body has not been read; `routes` are those of its path."""
        start = time.monotonic()
        status, tokens, size = 200, 0, 0
        content: Any = None
        headers = None
        deadline = asyncio.timeout(self._seconds)
        try:
            async with deadline:
                self._deadlines.add(deadline)
                raw = await self._receive(request)
                if self._bytes_in_work and self._bytes_in_work + len(raw) > MAX_WAITING_BYTES:
                    raise Failure("full", "the requests in progress are too large in total; try again later")
                size = len(raw)
                self._bytes_in_work += size
                # In a thread, because a large body would keep the event loop from other clients.
                route, body, requests = await asyncio.to_thread(self._validated, raw, routes)
                results = await self._scores(request, requests)
                content = route.answer(body, results, self.name)
        except ClientDisconnect:
            status = 499  # only seen in the log
        except (Failure, TimeoutError) as error:
            failure = error if isinstance(error, Failure) else self._timed_out()
            status, content = failure.status, failure.body
            self._failures.labels(failure.kind).inc()
            if failure.kind in _RETRY_AFTER:
                headers = {"Retry-After": str(_RETRY_AFTER[failure.kind])}
        else:
            tokens = sum(result.total_tokens for result in results)
            cached = sum(result.cached_tokens for result in results)
            self._read.inc(tokens)
            self._cached.inc(cached)
            self._queries.inc(sum(result.prompt_tokens for result in results))
            self._hits.inc(cached)
            self._success.inc()
            self._sizes.observe(tokens)
            self._latency.observe(time.monotonic() - start)
            self._queue.observe(max(result.queue_seconds for result in results))
        finally:
            self._deadlines.discard(deadline)
            self._bytes_in_work -= size
        # Shown by --verbose. Nothing that the client sent: neither texts nor the query of the URL.
        _log.debug("%s %d %d tokens %.3f s", request.scope["path"], status, tokens, time.monotonic() - start)
        return JSONResponse(content, status, headers)

    def _timed_out(self) -> Failure:
        if self.draining:
            return Failure("stopping", "the server is stopping")
        return Failure("timeout", f"no scores within {self._seconds:g} seconds")

    async def _receive(self, request: Request) -> bytes:
        """The bytes of a body.

        If all bodies that are arriving are too large together, the one that started first is refused, so that clients
        that send slowly do not keep others out.
        """
        if self.draining:
            raise self._timed_out()
        if request.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
            raise Failure("encoded", "compressed bodies are not supported: send it without Content-Encoding")
        too_large = Failure("too_large", f"the body is larger than {self.body_bytes:,} bytes")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self.body_bytes:
            raise too_large
        raw = bytearray()
        try:
            async with asyncio.timeout(None) as turn:
                async for part in request.stream():
                    raw += part
                    if len(raw) > self.body_bytes:
                        raise too_large
                    if turn.when() is None:  # it has not been refused
                        self._arriving[turn] = len(raw)
                    while sum(self._arriving.values()) > max(MAX_WAITING_BYTES, len(raw)):
                        oldest = next(iter(self._arriving))
                        del self._arriving[oldest]
                        oldest.reschedule(0)
        except TimeoutError:
            raise Failure(
                "full", "the body arrived too slowly while others are waiting; try again later"
            ) from None
        finally:
            self._arriving.pop(turn, None)
        return bytes(raw)

    def _validated(self, raw: bytes, routes: Sequence[Route]) -> tuple[Route, BaseModel, list[ScoreRequest]]:
        try:
            value = from_json(raw.removeprefix(BOM_UTF8), allow_inf_nan=False)
        except ValueError:
            raise Failure("invalid", "the body is not JSON") from None
        fields = value.keys() if isinstance(value, dict) else set()
        route = next((one for one in routes if one.fields & fields), routes[0])
        try:
            body = route.body.model_validate(value)
        except ValidationError as error:
            raise _invalid(error) from None
        requests = route.requests(body)
        if not requests or not all(request.count for request in requests):
            raise Failure("invalid", "there is nothing to score: send at least one text or response")
        for count, most, what in (
            (len(requests), MAX_PROMPTS, "prompts"),
            (max(request.count for request in requests), MAX_RESPONSES, "responses to a prompt"),
            (max(map(_characters, requests)), self._max_characters, "characters of responses to a prompt"),
        ):
            if count > most:
                raise Failure("too_large", f"{count:,} {what}, more than {most:,}: send several requests")
        return route, body, requests

    async def _scores(self, request: Request, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        futures = self.worker.submit(requests)
        gone = asyncio.create_task(_disconnect(request))
        try:
            together = asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)
            ends: set[asyncio.Future[Any]] = {together, gone}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not together.done():
                raise ClientDisconnect
            return _checked(together.result())
        finally:
            # The model skips what it has not started when the client goes away or the time is over.
            gone.cancel()
            for future in futures:
                future.cancel()


def _characters(request: ScoreRequest) -> int:
    """Characters of all responses, with all fields of messages; token ids have none."""
    if isinstance(request.rendered, str):
        return len(request.rendered)
    return sum(
        len(text) if isinstance(text, str) else sum(len(str(message)) for message in text)
        for text in (request.responses[-1:] if request.steps else request.responses)
    )


async def _disconnect(request: Request) -> None:
    """Returns when the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


# What pydantic adds to the place of a value that may be of several types. No field of a body has such a name.
_UNION_MEMBER = re.compile(r"str|int|float|[A-Z]\w*|.*\[.*")


def _invalid(error: ValidationError) -> Failure:
    """What is wrong with a body. All that is repeated of it is the name of an unknown field, as printable ASCII.

    Of a value that may be of several types, the deepest errors are those of the type that the client meant.
    """
    found: dict[tuple[int | str, ...], list[str]] = {}
    for problem in error.errors(include_url=False, include_input=False):
        location = problem["loc"]
        unknown = location[-1:] if problem["type"] == "extra_forbidden" else ()
        known = location[: len(location) - len(unknown)]
        place = [part for part in known if not _UNION_MEMBER.fullmatch(str(part))]
        place += [re.sub("[^ -~]", "?", str(part)[:40]) for part in unknown]
        found.setdefault(tuple(place), []).append(problem["msg"].removeprefix("Value error, "))
    deepest = max(found, key=len)
    where = "".join(f"{part}." for part in deepest).removesuffix(".")
    message = ", or: ".join(dict.fromkeys(found[deepest]))
    return Failure("invalid", f"invalid body: {where and where + ': '}{message}"[:300])


def _checked(results: Sequence[ScoreResult | BaseException]) -> list[ScoreResult]:
    """The results of all prompts, if there are any scores.

    A failure that the client can avoid, such as a prompt that is too long, fails the whole request, so that a trainer
    notices it. A score that the model could not give is missing for its prompt alone, unless there is no other.
    """
    scored: list[ScoreResult] = []
    for index, result in enumerate(results):
        failure = result if isinstance(result, BaseException) else result.failure
        if isinstance(failure, Failure) and failure.kind != "unscored":
            where = f"prompt {index + 1} of {len(results)}: " if len(results) > 1 else ""
            raise Failure(failure.kind, f"{where}{failure.message}")
        if isinstance(result, BaseException):
            raise result
        scored.append(result)
    failures = [result.failure for result in scored if result.failure is not None]
    if failures and all(score is None for result in scored for score in result.scores):
        raise failures[0]
    return scored
