"""A server on loopback that fails in all the ways in which servers fail, as often as a test wants."""

import gzip
import hashlib
import json
import random
import re
import socket
import socketserver
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Kind = Callable[[socket.socket, bytes], None]
"""Sends something instead of an answer, given the body of the right one."""


def head(length: int | None, status: int = 200, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += [] if length is None else [f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode()


def whole(body: bytes, status: int = 200, **headers: str) -> bytes:
    return head(len(body), status, **headers) + body


def hang(connection: socket.socket) -> None:
    """Until the client has gone."""
    connection.settimeout(30)
    while connection.recv(4096):
        pass


def pour(piece: bytes) -> Callable[[socket.socket], None]:
    """Sends the piece again and again until the client has gone."""

    def after(connection: socket.socket) -> None:
        while True:
            connection.sendall(piece)

    return after


def drip(connection: socket.socket) -> None:
    connection.settimeout(0.02)
    while True:
        connection.sendall(b" ")
        try:
            if not connection.recv(4096):
                return
        except TimeoutError:
            pass


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def sends(
    make: Callable[[bytes], bytes], after: Callable[[socket.socket], None] = lambda connection: None
) -> Kind:
    def kind(connection: socket.socket, body: bytes) -> None:
        connection.sendall(make(body))
        after(connection)

    return kind


def fails(status: int, **headers: str) -> Kind:
    return sends(lambda body: whole(b'{"error": {"message": "later"}}', status, **headers))


def changed(**fields: object) -> Kind:
    """The right answer with other fields in its choice."""

    def make(body: bytes) -> bytes:
        answer = json.loads(body)
        answer["choices"][0] |= fields
        return whole(json.dumps(answer).encode())

    return sends(make)


def instead(body: bytes, **headers: str) -> Kind:
    return sends(lambda right: whole(body, **headers))


BOMB = gzip.compress(bytes(200_000_000))

FAULTS: dict[str, Kind] = {
    "silence": sends(lambda body: b"", hang),
    "silence within the head": sends(lambda body: head(len(body))[:20], hang),
    "silence within the body": sends(lambda body: whole(body)[:-5], hang),
    "a byte at a time": sends(lambda body: head(10**6), drip),
    "without end": sends(lambda body: head(None), pour(b" " * 65536)),
    "headers without end": sends(lambda body: b"HTTP/1.1 200 OK\r\n", pour(b"A: " + b"b" * 999 + b"\r\n")),
    "continue without end": sends(lambda body: b"", pour(b"HTTP/1.1 100 Continue\r\n\r\n" * 50)),
    "408": fails(408),
    "429": fails(429),
    "429, soon": fails(429, Retry_After="0.1"),
    "429, before": fails(429, Retry_After="-7"),
    "429, no number": fails(429, Retry_After="1e9"),
    "429, never": fails(429, Retry_After="1000000000"),
    "429, a far date": fails(429, Retry_After="Fri, 31 Dec 9999 23:59:59 GMT"),
    "500": fails(500),
    "502, a page": sends(lambda body: whole(b"<html>bad gateway</html>", 502, Content_Type="text/html")),
    "504, empty": sends(lambda body: whole(b"", 504)),
    "529": fails(529),
    "reset": sends(lambda body: b"", reset),
    "reset within the body": sends(lambda body: whole(body)[:-5], reset),
    "closed": sends(lambda body: b""),
    "closed within the head": sends(lambda body: whole(body)[:20]),
    "closed within the body": sends(lambda body: whole(body)[:-5]),
    "too long a length": sends(lambda body: head(len(body) + 9) + body),
    "too short a length": sends(lambda body: head(len(body) - 9) + body),
    "a negative length": sends(lambda body: b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n" + body),
    "no chunks": sends(lambda body: head(None, Transfer_Encoding="chunked") + b"zz\r\n" + body),
    "no HTTP": sends(lambda body: b"\0\xff" * 50),
    "cut JSON": sends(lambda body: whole(body[:-9])),
    "nothing": instead(b""),
    "a page": instead(b"<!doctype html><title>Log in</title>", Content_Type="text/html"),
    "a list": instead(b"[]"),
    "no choices": instead(b'{"choices": []}'),
    "missing fields": instead(b'{"choices": [{"index": 0}]}'),
    "an error with status 200": instead(b'{"error": {"message": "overloaded"}}'),
    "no message": changed(message=None),
    "no content": changed(message={"role": "assistant", "content": None}, finish_reason=None),
    "content of another type": changed(message={"role": "assistant", "content": {"text": "[[A]]"}}),
    "broken off": changed(finish_reason="error"),
    "two choices": sends(lambda body: whole(body.replace(b'[{"', b'[{"index": 1, "message": {}}, {"', 1))),
    "a stream": sends(
        lambda body: whole(b"data: " + body + b"\n\ndata: [DONE]\n\n", Content_Type="text/event-stream")
    ),
    "no UTF-8": sends(lambda body: whole(body.replace(b"because", b"bec\xffause"))),
    "nested": instead(b"[" * 200_000),
    "nested objects": instead(b'{"choices":' * 100_000),
    "an endless number": sends(lambda body: whole(b'{"created": ' + b"9" * 5000 + b", " + body[1:])),
    "a bomb": instead(BOMB, Content_Encoding="gzip"),
    "a bomb in a bomb": instead(gzip.compress(BOMB), Content_Encoding="gzip, gzip"),
    "gzip, which the request excludes": sends(
        lambda body: whole(gzip.compress(body), Content_Encoding="gzip")
    ),
}
"""No answer; the request may be sent again."""

HANGING = {
    "silence",
    "silence within the head",
    "silence within the body",
    "a byte at a time",
    "continue without end",
}
"""Faults that end only by the client's time-out."""


def foreign(body: bytes) -> bytes:
    """A right answer to another question."""
    return body.replace(b"because", b"for no reason")


ODD: dict[str, Kind] = {
    "no length": sends(lambda body: head(None) + body),
    "chunks": sends(
        lambda body: head(None, Transfer_Encoding="chunked") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    ),
    "another content type": sends(lambda body: whole(body, Content_Type="text/html")),
    "another client's answer after it": sends(lambda body: whole(body) + whole(foreign(body))),
    "one name twice, one value": sends(lambda body: whole(b'{"id": 1, "id": 1, ' + body[1:])),
}
"""Unusual answers, but answers."""

LIES: dict[str, Kind] = {"another's answer": sends(lambda body: whole(foreign(body)))}
"""No client can know that these are wrong: only a comparison of results shows it."""


@dataclass
class FaultyServer:
    """Answers every request by its content alone, unless it fails."""

    kinds: dict[str, Kind] = field(default_factory=lambda: FAULTS | ODD)
    rate: float = 0.3  # the share of requests at which it fails, in one of the kinds
    seed: int = 0
    url: str = ""
    asked: Counter[bytes] = field(default_factory=Counter)  # how often each request arrived, by its body
    answered: Counter[bytes] = field(default_factory=Counter)  # how often it was sent its whole answer
    failed: Counter[str] = field(default_factory=Counter)  # how often each kind came up
    lock: threading.Lock = field(default_factory=threading.Lock)

    def forget(self, **fields: object) -> None:
        """Begins anew, with other settings."""
        for counter in (self.asked, self.answered, self.failed):
            counter.clear()
        for name, value in fields.items():
            setattr(self, name, value)

    def answer(self, connection: socket.socket, request: bytes) -> bool:
        """Sends an answer or a fault; returns whether the connection may serve another request."""
        with self.lock:
            self.asked[request] += 1
            draw = random.Random(f"{self.seed} {request!r} {self.asked[request]}")
            kind = draw.choice([*self.kinds]) if draw.random() < self.rate else ""
            self.failed[kind] += 1
        (self.kinds[kind] if kind else sends(whole))(connection, right_answer(request))
        if kind in FAULTS:
            return False
        with self.lock:
            self.answered[request] += 1
        return not kind or (kind in ODD and kind != "no length")


def right_answer(request: bytes) -> bytes:
    digest = hashlib.sha256(request).hexdigest()
    text = f"It is so because of {digest[:20]}.\n[[{'A' if int(digest, 16) % 2 else 'B'}]]"
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": len(request), "completion_tokens": len(text)}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


@contextmanager
def serving(server: FaultyServer) -> Iterator[FaultyServer]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.answers_one():
                pass

        def answers_one(self) -> bool:
            lines = b""
            while (line := self.rfile.readline()) not in (b"", b"\r\n"):
                lines += line
            length = re.search(rb"(?i)content-length: *(\d+)", lines)
            return length is not None and server.answer(self.connection, self.rfile.read(int(length[1])))

    class Quiet(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: object) -> None:  # clients that left
            pass

    with Quiet(("127.0.0.1", 0), Handler) as tcp:
        server.url = f"http://127.0.0.1:{tcp.server_address[1]}"
        thread = threading.Thread(target=tcp.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            tcp.shutdown()
            thread.join()
