"""A real HTTP server on loopback, whose answers a test writes."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from longrm.clients import Request


@dataclass
class Reply:
    """What the server sends: a status, a body (JSON unless bytes) and headers."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Seen:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    peer: Any = None

    @property
    def text(self) -> str:
        return self.body["messages"][-1]["content"]


@dataclass
class Server:
    """Answers with what `script` makes of the request and of how many came before it."""

    url: str = ""
    script: Callable[[Seen, int], Reply] = lambda seen, number: echo(seen)
    seen: list[Seen] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def echo(seen: Seen, **message: Any) -> Reply:
    return said(f"echo of {seen.text}", **message)


def said(
    text: str | None, finish: str = "stop", usage: tuple[int, int] | None = (10, 5), **message: Any
) -> Reply:
    body: dict[str, Any] = {
        "choices": [{"message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}]
    }
    if usage:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return Reply(body)


def requests(count: int, temperature: float = 0.0) -> list[Request]:
    return [
        Request(({"role": "user", "content": f"question {index}"},), 16, temperature, seed=index)
        for index in range(count)
    ]


@pytest.fixture(autouse=True)
def naps(monkeypatch) -> list[float]:
    """The pauses before retries, in seconds; none of them is waited for."""
    taken: list[float] = []

    async def sleep(seconds: float) -> None:
        taken.append(seconds)

    # The openai client sleeps through anyio.
    monkeypatch.setattr("anyio.sleep", sleep)
    return taken


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            seen = Seen(self.path, dict(self.headers), body, self.client_address)
            with state.lock:
                state.seen.append(seen)
                number = len(state.seen)
            reply = state.script(seen, number)
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST  # noqa: N815 - http.server's name

        def log_message(self, *_):
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_):  # clients that left
            pass

    with Quiet(("127.0.0.1", 0), Handler) as http:
        state.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield state
        finally:
            http.shutdown()
            thread.join()


@pytest.fixture
def closed_port() -> int:
    """A port of loopback where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
