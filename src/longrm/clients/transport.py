"""One request to a server and its reply, bounded in time and in size."""

import asyncio
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

import httpx

from longrm.clients.addresses import endpoint
from longrm.clients.redaction import SHORT, redactor
from longrm.clients.remote_settings import Remote
from longrm.errors import ConfigError

_CONNECT_TIMEOUT = 20.0  # seconds
_VARIABLES = "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE, SSL_CERT_DIR"
_COMPRESSED = ("gzip", "x-gzip", "deflate")


class RetryableError(Exception):
    """Why a request may be sent again.

    Attributes:
        wait: Seconds that the server asks to wait.
        lost: Whether there was no connection at all.
    """

    def __init__(self, reason: str, *, wait: float = 0.0, lost: bool = False) -> None:
        super().__init__(reason)
        self.wait = wait
        self.lost = lost


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered, whole.

    Attributes:
        status: Of HTTP.
        retry_after: What that header says, if it is there.
        body: Decoded.
    """

    status: int
    retry_after: str | None
    body: bytes


class Endpoint:
    """A server, and all that is needed to ask it once.

    Attributes:
        url: Where requests go.
        redact: Makes what the server says fit for messages and logs: the key is hidden in it.
    """

    def __init__(self, url: str, settings: Remote) -> None:
        """Prepares the headers; nothing is sent yet.

        Args:
            url: As `endpoint` takes it.
            settings: How requests are sent.

        Raises:
            ConfigError: The URL is none or holds a key, or the key cannot be sent.
        """
        key = _read_key(settings.api_key_env)
        self.url = endpoint(url)
        if len(key) >= SHORT and key in unquote(self.url):
            raise ConfigError(
                f"the URL holds the key of {settings.api_key_env}, which would be logged; leave it out of the URL"
            )
        self.redact = redactor(key)
        self._seconds, self._most = settings.timeout, settings.max_answer_bytes
        self._headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",  # answers are short, and nothing has to be unpacked
            **({"Authorization": f"Bearer {key}"} if key else {}),
        }

    def open(self) -> httpx.AsyncClient:
        """The connections to the server, as a context manager.

        Every request opens a new connection: what a server sends after an answer, such as the same answer once
        more, would else be read as the answer to the next request.

        Raises:
            ConfigError: Variables of the environment ask for what cannot be.
        """
        try:
            return httpx.AsyncClient(
                headers=self._headers,
                # Connecting ends a little before the whole does, so that it is known which of them took too long.
                timeout=httpx.Timeout(None, connect=min(0.9 * self._seconds, _CONNECT_TIMEOUT)),
                limits=httpx.Limits(max_keepalive_connections=0),
                follow_redirects=False,  # the key is for this server alone
            )
        except (ValueError, ImportError, OSError) as error:
            raise ConfigError(
                f"no connection can be made as the environment asks ({_VARIABLES}): {self.redact(str(error))}"
            ) from None

    async def post(self, http: httpx.AsyncClient, body: bytes) -> Reply:
        """Sends a request once.

        Raises:
            PassingError: There is no whole answer, or none that can be read; sending it again may help.
        """
        try:
            async with (
                asyncio.timeout(self._seconds),
                http.stream("POST", self.url, content=body) as response,
            ):
                return Reply(
                    response.status_code, response.headers.get("Retry-After"), await self._body(response)
                )
        except TimeoutError:
            raise RetryableError(f"no answer within {self._seconds:g} seconds") from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise RetryableError(self.redact(str(error)) or "no connection in time", lost=True) from None
        except httpx.RequestError as error:
            raise RetryableError(
                f"the connection broke: {self.redact(str(error)) or type(error).__name__}"
            ) from None
        except (OverflowError, UnicodeError, ExceptionGroup):  # what connects checks no port of a proxy
            raise RetryableError(
                f"no proxy is there as the environment asks ({_VARIABLES})", lost=True
            ) from None

    async def _body(self, response: httpx.Response) -> bytes:
        """The body of an answer, read as it arrives and never beyond the limit.

        Raises:
            PassingError: It is too large, or cannot be decoded.
        """
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower() or "identity"
        decoder = _Decoder(encoding, self.redact)
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += decoder.decode(chunk, self._most + 1 - len(body))
            if len(body) > self._most:
                raise RetryableError(
                    f"the server's answer is longer than {self._most:,} bytes (remote.max_answer_bytes)"
                )
        decoder.finish()
        return bytes(body)


class _Decoder:
    """Undoes the encoding of a body, however few bytes decode to however many."""

    def __init__(self, encoding: str, redact: Callable[[str], str]) -> None:
        if encoding != "identity" and encoding not in _COMPRESSED:
            raise RetryableError(
                f"the server's answer is encoded as '{redact(encoding)}', which was not asked for"
            )
        self._encoding = encoding
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32) if encoding in _COMPRESSED else None

    def decode(self, chunk: bytes, most: int) -> bytes:
        """The decoded bytes of a part of the body, but no more bytes than `most` where it was compressed."""
        if self._inflate is None:
            return chunk
        try:
            return self._inflate.decompress(chunk, most)
        except zlib.error as error:
            raise RetryableError(f"the server's answer is no {self._encoding}: {error}") from None

    def finish(self) -> None:
        """Makes sure that nothing is missing at the end."""
        if self._inflate is not None and not self._inflate.eof:
            raise RetryableError(f"the server's answer breaks off within its {self._encoding}")


def _read_key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the key in {variable} has characters that cannot be sent; set it again")
    return key
