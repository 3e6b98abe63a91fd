"""What every request must pass before it is looked at: the key."""

import hmac
from base64 import b64decode
from binascii import Error
from collections.abc import Mapping

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from longrm.serving.asked import Failure, as_error

OPEN_PATHS = frozenset({"/", "/health", "/ready"})
"""What is answered without a key."""


class KeyGuard:
    """Answers 401 to whoever does not know the key, whatever the path.

    The key is the token of `Authorization: Bearer KEY`, or the password of `Authorization: Basic`, which clients that
    know of no key send where the address they are given is `http://any:KEY@host:port/path`.
    """

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app = app
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request pass, or answers it."""
        if scope["type"] == "http" and self._key is not None:
            given = {name.lower(): value for name, value in scope["headers"]}.get(b"authorization")
            free = given is None and scope["path"] in OPEN_PATHS
            if not free and not hmac.compare_digest(_key_of(given), self._key):
                failure = Failure(
                    "unauthorized", "the key is missing or wrong: send Authorization: Bearer KEY"
                )
                headers: Mapping[str, str] = {"WWW-Authenticate": "Bearer"}
                await JSONResponse(as_error(failure), failure.status, headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _key_of(header: bytes | None) -> bytes:
    kind, _, value = (header or b"").partition(b" ")
    match kind.lower():
        case b"bearer":
            return value.strip()
        case b"basic":
            try:
                return b64decode(value, validate=True).partition(b":")[2]
            except Error:
                return b""
        case _:
            return b""
