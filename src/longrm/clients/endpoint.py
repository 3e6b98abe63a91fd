"""One URL of a server, reached through the openai client.

The openai client builds requests, retries them with growing delays and honors `Retry-After`. Servers are not trusted,
so what it lacks is added below it, in the HTTP client that it is given: a limit on the size of an answer and on its
total time, a budget of requests, answers that are validated before they count as received, and redacted messages.
"""

import asyncio
import base64
import html.entities
import json
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import unquote

import httpx2

from longrm.clients.remote_settings import Remote, endpoint_url
from longrm.errors import ConfigError, ModelError, RunError

if TYPE_CHECKING:
    from openai import AsyncOpenAI  # importing it takes 0.4 s, so it is imported on first use

_logger = logging.getLogger(__name__)
_LOG_INTERVAL = 10.0  # seconds between two lines about failed requests
_CONNECT_TIMEOUT = 20.0
# A server that shuts down may leave connections open and never answer (vLLM does). Without an answer for so many
# seconds, requests to `/health` check that it is there; so many that fail in a row end the requests in flight.
_HEALTH_INTERVAL, _HEALTH_FAILURES = 5.0, 3
_NO_QUOTA = "insufficient_quota"  # OpenAI's code of a 429 for which waiting does not help
MAX_ANSWER_BYTES = 2**24  # a million tokens of text fit; a server must not be able to fill the memory

_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

Ask = Callable[[bytes | None], Awaitable[_Answer]]
"""Posts a JSON body, or gets the URL without one, and returns the parsed answer.

It raises `RequestFailed` or `RequestRejected`; what concerns all requests ends `Endpoint.map`.
"""


class RequestFailed(Exception):  # noqa: N818 - not an error of the program
    """A request that was given up after all retries; other requests may succeed."""


class RequestRejected(Exception):  # noqa: N818 - likewise
    """A request that the server rejected with status 400, 413 or 422; `text` is the server's message, unredacted."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.status, self.body, self.text = status, body, error_text(body)


class _BudgetSpent(Exception):  # noqa: N818 - likewise
    """The budget does not allow another request."""


class Endpoint(Generic[_Answer]):
    """One URL of a server.

    Args:
        url: The server's URL.
        path: The path of the requests below that URL.
        settings: How requests are sent.
        parse: Parses the body of an answer with status 200. If it raises `ValueError`, the request is retried.
        root: Inserted before `path` if the server's URL has no path.
        advice: Ends the error message if the server refuses every request.

    Attributes:
        url: The full URL.
        redact: Makes the server's text safe for messages and logs; see `redactor`.
        requests: The number of requests sent so far, including retries.
        tokens: The number of tokens paid for so far, which callers add up.

    Raises:
        ConfigError: The URL is not valid or contains the key, or the key cannot be sent in a header.
    """

    def __init__(
        self,
        url: str,
        path: str,
        settings: Remote,
        parse: Callable[[bytes], _Answer],
        *,
        root: str = "/v1",
        advice: str = "check the URL",
    ) -> None:
        variable = settings.api_key_env
        self.key = os.environ.get(variable, "").strip()
        if not (self.key.isascii() and self.key.isprintable()):
            raise ConfigError(f"the key in {variable} contains characters that HTTP headers do not allow")
        self.url = endpoint_url(url, path, root)
        if len(self.key) >= SHORT_KEY and self.key in unquote(self.url):
            raise ConfigError(f"the URL contains the key of {variable}, which would be logged")
        self.redact = redactor(self.key)
        self.requests = self.tokens = 0
        self.settings, self.parse, self._advice = settings, parse, advice
        self.reached = False
        self._last_logged = -_LOG_INTERVAL

    def map(
        self,
        items: Sequence[_Item],
        work: Callable[[Ask[_Answer], _Item], Awaitable[_Result]],
        on_progress: Callable[[float], None] = lambda share: None,
    ) -> list[_Result]:
        """Calls `work` on every item, `remote.concurrency` at a time, with a function that sends its requests.

        May be called while an event loop is running.

        Returns:
            The results, in order.

        Raises:
            ModelError: The server cannot be reached, or refuses every request.
            RunError: The budget is spent, or the server was reached before and no longer is.
        """
        done: dict[int, _Result] = {}
        pending = iter(enumerate(items))

        async def take(ask: Ask[_Answer]) -> None:
            for index, item in pending:
                try:
                    done[index] = await work(ask, item)
                except _BudgetSpent:
                    return  # requests in flight are completed
                on_progress(len(done) / len(items))

        async def main() -> None:
            from openai import AsyncOpenAI

            try:
                async with _BoundedClient(self) as http, asyncio.TaskGroup() as group:
                    # AsyncOpenAI requires a key; `_BoundedClient` sends the real one, or none.
                    client = AsyncOpenAI(
                        api_key="-",
                        base_url=self.url,
                        timeout=http.timeout,
                        max_retries=self.settings.retries,
                        http_client=http,
                    )
                    ask = partial(self._ask, client)
                    count = min(self.settings.concurrency, len(items))
                    workers = [group.create_task(take(ask)) for _ in range(count)]
                    watching = group.create_task(http.watch())
                    await asyncio.gather(*workers)
                    watching.cancel()
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None

        _run_async(main)
        if len(done) < len(items):
            cache = self.settings.cache
            raise RunError(
                f"the budget is spent: {self.requests} requests and {self.tokens} tokens; rerun the command to "
                f"continue with a new one ({f'answers so far are in {cache}' if cache else 'no remote.cache is set'})"
            )
        return [done[index] for index in range(len(items))]

    def within_budget(self) -> bool:
        """Whether the budget allows another request."""
        most_requests, most_tokens = self.settings.max_requests, self.settings.max_total_tokens
        return (most_requests is None or self.requests < most_requests) and (
            most_tokens is None or self.tokens < most_tokens
        )

    async def _ask(self, client: "AsyncOpenAI", body: bytes | None) -> _Answer:
        from openai import APIConnectionError, APIStatusError

        try:
            if body is None:
                response = await client.get(self.url, cast_to=httpx2.Response)
            else:
                # Bytes instead of `body=`: the client's own JSON cannot encode lone surrogates in a prompt.
                headers = {"Content-Type": "application/json"}
                response = await client.post(
                    self.url, cast_to=httpx2.Response, content=body, options={"headers": headers}
                )
        except APIStatusError as error:
            status, text = error.status_code, error_text(error.response.content)
            message = f"the server answered {status}: {self.redact(text)}"
            if status in (400, 413, 422):
                raise RequestRejected(status, error.response.content) from None
            if (status in (408, 409, 429) or status >= 500) and _NO_QUOTA not in text:
                raise RequestFailed(message) from None
            advice = "check your account" if status in (402, 429) else self._advice
            if status in (401, 403):
                advice = f"check the key in {self.settings.api_key_env}"
            raise ModelError(f"{self.url}: {message}; {advice}") from None
        except APIConnectionError as error:
            reason = self.reason(error.__cause__)
            if isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout):
                raise RunError(f"lost {self.url}: {reason}; rerun the command to continue") from None
            raise RequestFailed(reason) from None
        answer: _Answer = response.extensions["answer"]
        return answer

    def reason(self, error: BaseException | None) -> str:
        """An error of a connection, for messages and logs."""
        return self.redact(str(error)) or f"the connection failed ({type(error).__name__})"

    def log_failure(self, reason: str) -> None:
        """Logs a failed attempt, but not every one: without any line a failing server looks like a slow one."""
        if time.monotonic() - self._last_logged >= _LOG_INTERVAL:
            self._last_logged = time.monotonic()
            _logger.info("%s: %s; retrying", self.url, reason)


class _BoundedClient(httpx2.AsyncClient):
    """An HTTP client that reads whole answers within the bounds of an endpoint. It belongs to one event loop."""

    def __init__(self, endpoint: Endpoint[Any]) -> None:
        connect = min(0.9 * endpoint.settings.timeout, _CONNECT_TIMEOUT)
        try:
            super().__init__(
                timeout=httpx2.Timeout(None, connect=connect),  # the rest is limited by `send`
                # A new connection for each request: bytes that a faulty server sends after an answer must not be read
                # as the answer to the next request.
                limits=httpx2.Limits(max_keepalive_connections=0),
                follow_redirects=False,  # the key is for this server only
            )
        except (ValueError, ImportError, OSError) as error:  # proxies and certificates of the environment
            raise ConfigError(
                f"cannot open connections: {endpoint.redact(str(error))}; check HTTP_PROXY and the like"
            ) from error
        self._endpoint = endpoint
        self._deadlines: set[asyncio.Timeout] = set()  # of the attempts in flight
        self._answered = time.monotonic()  # when the last answer arrived
        self._healthy = False  # whether `/health` has been seen to answer
        self._gone = ""  # why it does not any more

    async def watch(self) -> None:
        """Ends attempts in flight once the server is gone; they are retried as after any lost connection."""
        failures = 0
        while True:
            await asyncio.sleep(_HEALTH_INTERVAL)
            silent = self._deadlines and time.monotonic() - self._answered >= _HEALTH_INTERVAL
            self._gone = await self._problem() if silent else ""
            failures = failures + 1 if self._gone else 0
            if failures >= _HEALTH_FAILURES:
                for deadline in self._deadlines:
                    if not deadline.expired():
                        deadline.reschedule(0.0)

    async def _problem(self) -> str:
        """Why the server is gone; empty if it answers, and also if it is slow to, as busy ones are."""
        url = httpx2.URL(self._endpoint.url).copy_with(path="/health", query=None)
        request = httpx2.Request("GET", url, headers={"Accept": "*/*"})
        try:
            async with asyncio.timeout(_HEALTH_INTERVAL):
                response = await super().send(request, stream=True)
                await response.aclose()
        except httpx2.ConnectError as error:
            return self._endpoint.reason(error)
        except (httpx2.HTTPError, TimeoutError):
            return ""
        if response.status_code not in (502, 503, 504):
            self._healthy = True
        elif self._healthy:  # else it may be a gateway that knows no such path
            return f"{url} answers {response.status_code}"
        return ""

    async def send(self, request: httpx2.Request, **_: Any) -> httpx2.Response:
        """Sends one attempt. Errors of httpx2 are retried by the openai client; others are not caught there."""
        endpoint, seconds = self._endpoint, self._endpoint.settings.timeout
        if not endpoint.within_budget():
            raise _BudgetSpent
        endpoint.requests += 1
        # Only these headers: the openai client adds the operating system and, from the environment, an organization.
        names = [name for name in ("Host", "Content-Type", "Content-Length") if name in request.headers]
        headers = {name: request.headers[name] for name in names}
        # "identity": nothing to unpack, so no bombs.
        headers |= {"Accept": "application/json", "Accept-Encoding": "identity"}
        if endpoint.key:
            headers["Authorization"] = f"Bearer {endpoint.key}"
        request.headers = httpx2.Headers(headers)
        deadline = asyncio.timeout(seconds)
        try:
            async with deadline:
                self._deadlines.add(deadline)
                response = await super().send(request, stream=True)
                body = await _read_bounded(response)
            # The only header of the answer that the openai client needs.
            headers = {name: value for name, value in response.headers.items() if name == "retry-after"}
            answer = None
            if response.is_success:
                answer = endpoint.parse(body)
            elif _NO_QUOTA in error_text(body):
                headers["X-Should-Retry"] = "false"  # understood by the openai client
            elif response.status_code >= 500 or response.status_code in (408, 409, 429):
                endpoint.log_failure(f"status {response.status_code}: {endpoint.redact(error_text(body))}")
        except TimeoutError:
            late = (
                f"the server is gone: {self._gone}" if self._gone else f"no answer within {seconds:g} seconds"
            )
            error: httpx2.RequestError = httpx2.ReadTimeout(late)
        except ValueError as problem:  # of `parse`
            error = httpx2.DecodingError(str(problem))
        except httpx2.RequestError as problem:
            if not endpoint.reached and isinstance(problem, httpx2.ConnectError | httpx2.ConnectTimeout):
                # Retries would only delay the message that the URL is wrong.
                raise ModelError(
                    f"cannot reach {endpoint.url}: {endpoint.reason(problem)}; is the server running?"
                ) from None
            error = problem
        else:
            endpoint.reached, self._answered = True, time.monotonic()
            return httpx2.Response(
                response.status_code,
                headers=headers,
                content=body,
                request=request,
                extensions={"answer": answer},
            )
        finally:
            self._deadlines.discard(deadline)
        endpoint.reached = True
        endpoint.log_failure(endpoint.reason(error))
        raise error


async def _read_bounded(response: httpx2.Response) -> bytes:
    body = bytearray()
    try:
        if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
            raise httpx2.DecodingError(
                "the server's answer is compressed, although the request excludes that"
            )
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise httpx2.DecodingError(f"the server's answer is longer than {MAX_ANSWER_BYTES:,} bytes")
    finally:
        await response.aclose()
    return bytes(body)


def error_text(body: bytes) -> str:
    """A server's error message with its code, or the whole body if it has another form."""
    text = body.decode(errors="replace")
    try:
        reply = json.loads(text)
    except (ValueError, RecursionError):
        return text
    error = reply.get("error", reply) if isinstance(reply, Mapping) else reply
    if isinstance(error, str):
        return error
    if not isinstance(error, Mapping):
        return text
    message = error.get("message") or error.get("detail")
    message = message if isinstance(message, str) else text
    return f"{message} ({error['code']})" if isinstance(error.get("code"), str) else message


def _run_async(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a coroutine in an event loop of its own thread, because the caller's thread may be running a loop.

    An interrupt cancels the coroutine.
    """
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:
        running = portal.start_task_soon(main)
        # The system may deliver a signal to any thread, and Python handles it in the main thread: wake up now and then,
        # or an interrupt would wait for the answers.
        while not wait([running], timeout=0.1).done:
            pass
        running.result()


SHORT_KEY = 8
"""A shorter key is hidden only as a separate word: `A` is in every text."""


def redactor(key: str) -> Callable[[str], str]:
    """Makes the function that prepares a server's text for messages and logs: one printable line of bounded length.

    `***` replaces the key, in every form in which servers are known to repeat it: plain, escaped for JSON (also twice),
    URLs or HTML, or in base64. Without a key nothing is replaced. Completions never pass through it.
    """
    secret = re.compile("|".join(_key_patterns(" ".join(key.split())))) if key else None
    read, margin = 4000, max(64, 16 * len(key))  # no form of a key is longer than the margin

    def redact(text: str) -> str:
        line = "".join(c for c in text[: read + margin] if c.isprintable() or c.isspace())
        line = " ".join(line.split())
        if secret is not None:
            line = secret.sub("***", line)
        if len(text) > read + margin:
            line = line[:-margin]  # may end in the first part of a key
        return line if len(line) <= 300 else f"{line[:300]} ..."

    return redact


def _key_patterns(key: str) -> Iterator[str]:
    """Regular expressions for the forms of a key."""
    escaped = "".join(map(_character_pattern, key))
    if len(key) < SHORT_KEY:
        yield rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])"
        return
    yield escaped
    # In base64 the same bytes have three forms, depending on their offset in the encoded text modulo 3. The characters
    # at both ends mix in bits of the neighbors, so only those in between are matched.
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + key.encode()).decode()
        inner = encoded[-(-8 * before // 6) : 8 * (before + len(key)) // 6]
        yield "".join({"+": "[+-]", "/": r"(?:\\?/|_)"}.get(letter, letter) for letter in inner)


def _character_pattern(character: str) -> str:
    """A regular expression for one character of a key, however it is escaped."""
    code = ord(character)
    forms = [
        rf"\\{{0,8}}{re.escape(character)}",
        rf"\\{{1,8}}(?:u00|x)(?i:{code:02x})",
        rf"%(?:25){{0,3}}(?i:{code:02x})",
        rf"&#0{{0,5}}{code};",
        rf"&#[xX]0{{0,5}}(?i:{code:x});",
    ]
    if code in html.entities.codepoint2name:
        forms.append(f"&{html.entities.codepoint2name[code]};")
    return f"(?:{'|'.join(forms)})"
