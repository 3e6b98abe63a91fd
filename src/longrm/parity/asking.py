"""Asks a server for scores: alone and several at once, for the first time and again."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import httpx

from longrm.clients import replies
from longrm.clients.remote_settings import Remote
from longrm.clients.retrying import RetryingEndpoint
from longrm.clients.transport import Reply, RetryableError
from longrm.errors import ModelError, RunError
from longrm.parity.servers import SERVERS, AskedText, ServedScore
from longrm.reading import cut

_GREETING = AskedText(
    ({"role": "user", "content": "Hello."},), ({"role": "assistant", "content": "Hello."},), (1, 2, 3)
)
_REFUSES_ONE = frozenset({*replies.REQUEST_STATUSES, 424})
_IS_NOT_THERE = frozenset({404, 405, 501})


@dataclass(frozen=True, slots=True)
class AskedPass:
    """One way in which a server is asked about every text.

    Attributes:
        name: What it is called.
        together: Whether several requests are under way at once.
    """

    name: str
    together: bool


PASSES = (
    AskedPass("alone, cold", together=False),
    AskedPass("alone, warm", together=False),
    AskedPass("batched, cold", together=True),
    AskedPass("batched, warm", together=True),
)
"""The order in which they are asked: what was asked once, with the same salt, is warm the next time."""


@dataclass(frozen=True, slots=True)
class NoScore:
    """Why a server has no score for a text, in one line."""

    reason: str


Told = ServedScore | NoScore


class ScoringServer:
    """A server that is asked for one score a request, as trainers do.

    Args:
        url: Where it is: without a path, or with the one below which its routes are.
        settings: How requests are sent; `concurrency` is how many are under way at once in a batched pass.
        name: The model's name on the server, for those that want one; by default none is sent.
        sleep: Waits between attempts.
    """

    def __init__(
        self,
        url: str,
        settings: Remote,
        name: str | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._settings = settings
        self._fields = settings.extra | ({} if name is None else {"model": name})
        advice = "check the URL" if name is None else f"check the URL and the model's name '{name}'"
        self._endpoints = {
            kind: RetryingEndpoint(url, settings, one.path, root="", advice=advice, sleep=sleep)
            for kind, one in SERVERS.items()
        }

    def recognize(self, kinds: Iterable[str] = SERVERS) -> str:
        """The first of some kinds of servers that answers as it should about a text of three tokens.

        Raises:
            ModelError: None does, or the server cannot be reached or refuses the key.
            RunError: It fails at every attempt.
        """
        refused = []
        for kind in kinds:
            (told,) = asyncio.run(self._ask_all(kind, [(_GREETING, "greeting")], 1, lambda: None))
            if isinstance(told, ServedScore):
                return kind
            refused.append(f"{self._endpoints[kind].url} as {kind} has it: {cut(told.reason, 100)}")
        raise ModelError(
            f"no route of a server that is known answers ({'; '.join(refused)}); check the URL, and that the server "
            "serves a model with a scalar head"
        )

    def scores(
        self, kind: str, texts: Sequence[AskedText], one: AskedPass, salt: str, on_answer: Callable[[], None]
    ) -> list[Told]:
        """Asks about every text, one request each.

        Args:
            kind: A key of `SERVERS`.
            texts: What is asked about.
            one: How.
            salt: Of this run. Where the server takes salts, each text of a pass alone is kept apart from all others,
                so that a cold request is cold; texts of a batched pass share what they have in common.
            on_answer: Is called after every answer.

        Raises:
            ModelError: The server cannot be reached, or refuses all requests alike.
            RunError: It went away.
        """
        salted = [
            (text, f"{salt}-batched" if one.together else f"{salt}-{index}")
            for index, text in enumerate(texts)
        ]
        workers = self._settings.concurrency if one.together else 1
        return asyncio.run(self._ask_all(kind, salted, workers, on_answer))

    async def _ask_all(
        self,
        kind: str,
        salted: Sequence[tuple[AskedText, str]],
        workers: int,
        on_answer: Callable[[], None],
    ) -> list[Told]:
        done: dict[int, Told] = {}
        pending = iter(enumerate(salted))

        async def work(http: httpx.AsyncClient, pending: Iterator[tuple[int, tuple[AskedText, str]]]) -> None:
            for index, (text, salt) in pending:
                done[index] = await self._ask(http, kind, text, salt)
                on_answer()

        try:
            async with self._endpoints[kind].open() as http, asyncio.TaskGroup() as group:
                for _ in range(min(workers, len(salted))):
                    group.create_task(work(http, pending))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [done[index] for index in range(len(salted))]

    async def _ask(self, http: httpx.AsyncClient, kind: str, text: AskedText, salt: str) -> Told:
        endpoint = self._endpoints[kind]
        body = json.dumps(SERVERS[kind].body(text, salt) | self._fields).encode()
        try:
            told: Told | None = await endpoint.ask(
                http, body, lambda reply: _read(reply, kind, endpoint.redact)
            )
        except RetryableError as fault:
            raise RunError(
                f"{endpoint.url}: {fault}; given up after {self._settings.retries + 1} tries"
            ) from None
        assert told is not None, "no budget is kept"
        return told


def _read(reply: Reply, kind: str, redact: replies.Redact) -> Told | None:
    """What a reply says of one text; None where it speaks of all."""
    if reply.status in _IS_NOT_THERE or reply.status in _REFUSES_ONE:
        return NoScore(f"answered {reply.status}: {redact(replies.error_text(reply.body))}")
    if reply.status != 200:
        return None
    try:
        told = SERVERS[kind].read(json.loads(reply.body))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return NoScore(f"no answer of a {kind} server: {redact(reply.body.decode(errors='replace'))}")
    if len(told.scores) == 1 and not math.isfinite(told.scores[0]):
        return NoScore("its score is not finite")
    return told
