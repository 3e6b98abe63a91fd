"""The page in headless Chromium, driven through the DevTools protocol over a pipe: no package, no port."""

import json
import os
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

import pytest

from longrm.report import build

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed"),
]

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
        """What a JavaScript expression is worth."""
        return self.send("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

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
            self.problems.append(params["exceptionDetails"]["exception"]["description"])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.problems.append(str(params["args"]))


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with Page() as opened:
        yield opened


@pytest.fixture(scope="module")
def report(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("browser") / "report.html"
    build([demo], out)
    return out


OVERFLOW = "document.documentElement.scrollWidth"
STATUS = "document.querySelector('#viewer [role=status]').textContent"
SHOWN = "document.querySelector('#viewer h3').textContent"
FACTS = "document.querySelector('#viewer .facts').innerText"


def choose(page: Page, name: str, value: str) -> None:
    page.value(
        f"(() => {{ const s = document.querySelector('#viewer [name={name}]'); s.value = '{value}';"
        "s.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


@pytest.mark.parametrize("width", [360, 768, 1280, 2560])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_every_width_without_a_complaint(page: Page, report: Path, width: int, dark: bool) -> None:
    page.open(report, width=width, dark=dark)
    assert page.problems == []
    assert page.requests == [report.as_uri()]
    assert page.value(OVERFLOW) <= width
    widths = (
        "[...document.querySelectorAll('.plot')].filter(p => p.checkVisibility()).map(p => p.clientWidth)"
    )
    assert min(page.value(widths)) > 150
    shown = page.value(
        "[...document.querySelectorAll('.plot.wide, .plot.narrow')].map(p => p.checkVisibility())"
    )
    assert shown == ([False, True] if width < 700 else [True, False])
    background = page.value("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(12, 15, 19)" if dark else "rgb(246, 247, 249)")


def test_figures_change_color_with_the_theme(page: Page, report: Path) -> None:
    color = "getComputedStyle(document.querySelector('.plot svg path[stroke=\"var(--stage-3)\"]')).stroke"
    page.open(report)
    light = page.value(color)
    page.open(report, dark=True)
    assert (light, page.value(color)) == ("rgb(0, 112, 176)", "rgb(91, 182, 236)")


def test_buttons_and_arrow_keys_step_through_the_comparisons(page: Page, report: Path) -> None:
    page.open(report)
    assert page.value(STATUS) == "1 of 24"
    first = page.value(SHOWN)
    assert page.value("document.querySelector('[data-step=\"-1\"]').disabled")
    page.value("document.querySelector('[data-step=\"1\"]').click()")
    assert page.value(STATUS) == "2 of 24"
    assert page.value(SHOWN) != first
    page.value("document.querySelector('#viewer article').focus()")
    page.press("ArrowRight")
    assert page.value(STATUS) == "3 of 24"
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    assert (page.value(STATUS), page.value(SHOWN)) == ("1 of 24", first)
    page.value("document.querySelector('#viewer [name=stage]').focus()")
    page.press("ArrowRight")
    assert page.value(STATUS) == "1 of 24"


def test_filters_agree_with_what_is_shown(page: Page, report: Path) -> None:
    page.open(report)
    choose(page, "length", "4096")
    choose(page, "size", "2")
    counts = {}
    for verdict in ("right", "wrong"):
        choose(page, "verdict", verdict)
        counts[verdict] = page.value(STATUS)
        if not counts[verdict].startswith("No"):
            facts = page.value(FACTS)
            assert verdict in facts
            assert "4,096 tokens" in facts
    found = [int(text.rpartition(" ")[2]) for text in counts.values() if not text.startswith("No")]
    assert sum(found) == 3


def test_the_context_folds_around_the_evidence(page: Page, report: Path) -> None:
    page.open(report)
    choose(page, "length", "4096")
    text = "document.querySelector('#viewer .text').textContent"
    folded = page.value(text)
    assert (
        page.value("document.querySelector('#viewer mark').textContent")
        == "The access code of Edmund is granite."
    )
    assert "characters …" in folded
    assert folded.endswith("Question: What is the access code of Edmund?")
    page.value("document.querySelector('#viewer article button').click()")
    whole = page.value(text)
    assert len(whole) > 10 * len(folded)
    assert "…" not in whole
    assert page.value("document.activeElement.getAttribute('aria-expanded')") == "true"


def test_every_trial_of_a_generative_judge_is_shown(
    page: Page, synthetic: ModuleType, tmp_path: Path
) -> None:
    records = synthetic.written(1, votes=2)
    synthetic.write_evaluation(tmp_path / "run", records, scale="verdict", kept=6)
    synthetic.write_evaluation(tmp_path / "plain", synthetic.judgments(synthetic.CURVES["long"], 1), kept=1)
    for runs, number in (((tmp_path / "plain", tmp_path / "run"), 1), ((tmp_path / "run",), 0)):
        build(runs, tmp_path / "report.html")
        for width in (400, 1280):
            page.open(tmp_path / "report.html", width=width)
            assert page.problems == []
            assert page.value(OVERFLOW) <= width
        assert page.value("document.querySelector('#viewer [name=stage]').value") == str(number)
    found = {}
    while True:
        trials = "[...document.querySelectorAll('.trials li')].map(item => item.innerText)"
        page.value("document.querySelectorAll('#viewer details').forEach(d => d.open = true)")
        found[page.value(SHOWN)] = (page.value(trials), page.value(FACTS))
        if page.value("document.querySelector('[data-step=\"1\"]').disabled"):
            break
        page.value("document.querySelector('[data-step=\"1\"]').click()")
    assert len(found) == 6
    for record in records[:6]:
        trials, facts = found[record.id]
        assert len(trials) == 4
        for text, trial in zip(trials, record.trials, strict=True):
            assert text.startswith(f"shown: {trial.order[0] + 1}, {trial.order[1] + 1} · {trial.outcome}")
            assert trial.explanation.strip() in text
            assert ("2 attempts" in text) == (trial.attempts == 2)
            assert ("argues for another verdict" in text) == bool(trial.contradicted)
        assert ("tokens, middle" in facts) == (record.cut is not None)
    choose(page, "verdict", "no answer")
    assert "no answer: unparsed" in page.value(FACTS)


def test_a_model_that_only_scores_has_no_list_of_trials(page: Page, report: Path) -> None:
    page.open(report)
    assert page.value("document.querySelectorAll('#viewer .trials').length") == 0


def test_everything_but_the_browser_works_without_scripts(page: Page, report: Path) -> None:
    page.open(report, scripts=False)
    assert page.problems == []
    assert page.value("document.querySelector('#viewer').checkVisibility()") is False
    assert page.value("document.querySelectorAll('table').length") > 10


def test_hostile_text_is_inert(page: Page, synthetic: ModuleType, tmp_path: Path) -> None:
    records = synthetic.judgments(synthetic.CURVES["long"], 1, groups=2)
    synthetic.write_evaluation(tmp_path / "run", records, model=synthetic.HOSTILE)
    build([tmp_path / "run"], tmp_path / "report.html")
    page.open(tmp_path / "report.html")
    assert page.problems == []
    assert page.requests == [(tmp_path / "report.html").as_uri()]
    assert page.value("document.querySelectorAll('img').length") == 0
    assert "alert(1)" in page.value("document.querySelector('.finding').textContent")


def test_complaints_are_noticed(page: Page, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(
        "<script>console.error('x'); missing()</script><div style='width:9999px'>"
    )
    page.open(tmp_path / "bad.html", width=360)
    assert len(page.problems) == 2
    assert page.value(OVERFLOW) > 360
