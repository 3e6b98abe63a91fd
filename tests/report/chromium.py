"""Headless Chromium, driven through the DevTools protocol over a pipe: no package, no port."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Self

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


class Page:
    """One page; its size, color scheme and scripting can be chosen, and what it asked for is kept.

    Attributes:
        problems: Console errors, uncaught exceptions and broken security policies since the page was opened.
        requests: Every address that the page asked for.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._events: deque[dict[str, Any]] = deque()
        self._number = 0

    def __enter__(self) -> Self:
        command_read, command_write = os.pipe()
        event_read, event_write = os.pipe()
        self._profile = tempfile.mkdtemp(prefix="longrm-chromium-")
        # Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
        line = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", line, "bash", str(command_read), str(event_write), "chromium", *FLAGS,
             f"--user-data-dir={self._profile}"],
            pass_fds=(command_read, event_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(command_read)
        os.close(event_write)
        self._out, self._in = os.fdopen(command_write, "wb"), os.fdopen(event_read, "rb")
        self._session = ""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = ""
        self.send("Browser.close")
        self._process.wait(timeout=30)
        self._out.close()
        self._in.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, path: Path | str, *, width: int = 1280, dark: bool = False, scripts: bool = True) -> None:
        """Loads a file or an address in a window of this width."""
        self.problems.clear()
        self.requests.clear()
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=scheme)
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.send("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        while self._next_event()["method"] != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is worth; of a promise, what it comes to."""
        told = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return told["result"].get("value")

    def until(self, expression: str, seconds: float = 20) -> Any:
        """What a JavaScript expression is worth as soon as that is anything but false, null, 0 or nothing."""
        end = time.monotonic() + seconds
        while not (value := self.value(expression)):
            assert time.monotonic() < end, f"never {expression}; {self.problems}"
            self.value("new Promise(requestAnimationFrame)")
        return value

    def press(self, key: str) -> None:
        """Presses and releases a key, such as ArrowRight."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends one command and waits for its answer."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        self._out.write(
            json.dumps({"id": self._number, "method": method, "params": params} | session).encode()
        )
        self._out.write(b"\0")
        self._out.flush()
        while True:
            message = self._read()
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message}"
                result: dict[str, Any] = message["result"]
                return result
            self._events.append(message)

    def _next_event(self) -> dict[str, Any]:
        return self._events.popleft() if self._events else self._read()

    def _read(self) -> dict[str, Any]:
        line = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            assert byte, "Chromium ended early"
            line += byte
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.problems.append(str(params["args"]))
