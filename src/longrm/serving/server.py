"""Runs the server: listens, reports when it is ready, and on SIGTERM finishes the requests in progress."""

import asyncio
import math
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from longrm.errors import RunError
from longrm.reward_models import load
from longrm.serving import app, service
from longrm.serving.settings import ServeSettings

# asyncio accepts as many connections in one turn of its loop, before it closes any.
_BACKLOG = 64

# Files of the process other than connections, and connections that are being accepted or closed.
_OTHER_FILES = 128 + 5 * _BACKLOG

# After the drain time, the last answers (503) are sent for so many seconds; uvicorn then cancels them.
_ANSWER_SECONDS = 5

_PROBE_SECONDS = 0.5


def serve(settings: ServeSettings, ready: Callable[[str], None]) -> None:
    """Serves a model until SIGINT or SIGTERM; requests in progress are answered first.

    Args:
        settings: The settings of the server.
        ready: Called with the address once requests are accepted.

    Raises:
        ConfigError: The prefix cache is too small for the model.
        ModelError: The model cannot be loaded.
        RunError: The server cannot listen at the address.
    """
    host, port = settings.host, settings.port
    try:
        # Before the model is loaded, which may take minutes.
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise RunError(
            f"cannot listen at {host}, port {port}: {error.strerror}; choose another --host or --port"
        ) from None
    with listener:
        application = app.build_app(
            settings,
            lambda: load(
                settings.model, model_args=settings.model_args, judge=settings.judge, remote=settings.remote
            ),
        )

        class Protocol(BoundedProtocol):  # uvicorn takes no instance, so limits are class variables
            max_connections = _affordable_connections(app.MAX_CONNECTIONS)
            seconds = app.RECEIVE_SECONDS
            incomplete: ClassVar[dict[BoundedProtocol, asyncio.TimerHandle]] = {}

        config = uvicorn.Config(
            application,
            http=Protocol,
            ws="none",
            backlog=_BACKLOG,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=math.ceil(service.DRAIN_SECONDS) + _ANSWER_SECONDS,
        )
        host, port = listener.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        server = _Server(config, lambda: ready(url), application.state.service.stop)
        asyncio.run(server.serve(sockets=[listener]))


class _Server(uvicorn.Server):
    """Calls `ready` when it has started and `stopping` when it begins to stop, and exits with status 0."""

    def __init__(
        self, config: uvicorn.Config, ready: Callable[[], None], stopping: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._ready, self._stopping = ready, stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            try:
                yield
            finally:
                # uvicorn would raise them again, and an orderly end would look like a failure.
                self._captured_signals.clear()


class BoundedProtocol(H11Protocol):
    """Closes a connection whose request does not arrive in time.

    When all connections are in use, the one that has waited longest for its request makes room for a new one, so that
    idle connections do not keep clients out. If all requests are being answered, the new connection gets a 503.
    (uvicorn's own `limit_concurrency` counts idle connections and refuses new ones.)
    """

    max_connections: ClassVar[int]
    seconds: ClassVar[float]
    # The time-outs of connections whose request has not arrived, oldest first.
    incomplete: "ClassVar[dict[BoundedProtocol, asyncio.TimerHandle]]"

    def connection_made(self, transport: Any) -> None:
        """Makes room for a new connection or refuses it."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            oldest = next(iter(self.incomplete), None)
            if oldest is None:
                transport.write(
                    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
                    b"Content-Length: 0\r\n\r\n"
                )
                transport.close()
                return
            oldest._drop()
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the time-out."""
        self._stop_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Reads what has arrived; the time-out ends with the last byte of the request's body."""
        super().handle_events()
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._start_timer()
        else:
            self._stop_timer()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn returns None
        """Keeps a connection whose client sends no more but waits for its answer, as after shutdown(SHUT_WR)."""
        complete = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        if self.conn.our_state is not h11.SEND_RESPONSE or not complete:
            return False
        if self.conn.their_http_version != b"1.1":
            return False
        self.cycle.keep_alive = False
        self._probe()
        return True

    def _probe(self) -> None:
        # A client that has closed its socket looks the same until something is sent: its system then resets the
        # connection, and its request is cancelled. Clients must skip 100 Continue, asked for or not (RFC 9110).
        if self.conn.our_state is h11.SEND_RESPONSE and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.loop.call_later(_PROBE_SECONDS, self._probe)

    def _drop(self) -> None:
        self._stop_timer()
        self.connections.discard(self)
        self.transport.abort()

    def _start_timer(self) -> None:
        if self not in self.incomplete and not self.transport.is_closing():
            self.incomplete[self] = self.loop.call_later(self.seconds, self._drop)

    def _stop_timer(self) -> None:
        timer = self.incomplete.pop(self, None)
        if timer is not None:
            timer.cancel()


def _affordable_connections(wanted: int) -> int:
    """How many connections the limit of open files allows; it is raised as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(16, min(wanted, soft - _OTHER_FILES))
