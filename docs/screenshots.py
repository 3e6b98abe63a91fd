"""Takes the screenshots of `docs/` in headless Chromium, for light and dark pages.

`python docs/screenshots.py --demo runs/demo` uses a finished demo; without its folder it is trained, which takes 3 to 4
minutes. Chromium must be installed.
"""

import argparse
import base64
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

from longrm.worlds import WorldPlan, generate, words_tokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.report.chromium import Page

DOCS = Path(__file__).parent
LIMIT = 150_000  # bytes of a picture


def longrm(*words: str) -> list[str]:
    return [sys.executable, "-m", "longrm", *words]


def shoot(
    page: Page, name: str, address: str, top: str, size: tuple[int, int], ready: Callable[[Page], None]
) -> None:
    """Writes a picture of a page, from the element `top` on, in light and in dark."""
    width, height = size
    page.send("Emulation.setScrollbarsHidden", hidden=True)  # a whole-page capture has none, and would shift
    for suffix, dark in (("", False), ("-dark", True)):
        page.open("about:blank")
        page.open(address, width=width, dark=dark)
        ready(page)
        y = page.value(f"document.querySelector({top!r}).getBoundingClientRect().top + scrollY") - 12
        clip = {"x": 0, "y": max(y, 0), "width": width, "height": height, "scale": 1}
        shot = page.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path = DOCS / "images" / f"{name}{suffix}.png"
        path.write_bytes(base64.b64decode(shot["data"]))
        assert path.stat().st_size < LIMIT, f"{path} has {path.stat().st_size:,} bytes"


def report(page: Page, demo: Path, folder: Path) -> None:
    """The demo's headline figure and its heat maps."""
    out = folder / "report.html"
    subprocess.run(longrm("report", "--config", str(demo / "report.toml"), "--out", str(out)), check=True)
    for name, top, size in (
        ("report", "h1", (800, 745)),
        ("report-depth", "section:has(#depth)", (1000, 570)),
    ):
        shoot(page, name, out.as_uri(), top, size, lambda _: None)


def attribution(page: Page, demo: Path, folder: Path) -> None:
    """The sentences that moved a score."""
    out, html, run = folder / "why", folder / "why.html", demo / "stages/long/pairs"
    judged = map(json.loads, (run / "judgments.jsonl").read_text(encoding="utf-8").splitlines())
    item = next(one["id"] for one in judged if one["length"] == 256)
    words = ("--run", str(run), "--items", item, "--html", str(html), "--out", str(out))
    subprocess.run(longrm("attribute", *words), check=True)
    shown = f"document.querySelector('#viewer').dataset.shown === {json.dumps(item)}"
    address = f"{html.as_uri()}#items?{urlencode({'item': item})}"
    shoot(page, "attribution", address, "article > button", (760, 330), lambda opened: opened.until(shown))


def server(page: Page, demo: Path, folder: Path) -> None:
    """The server's page with the scores of two responses to a long context."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (row,) = generate(WorldPlan("records", 1024), 1, words_tokenizer())
    context, _, question = str(row.prompt[0]["content"]).rpartition("\n\n")
    responses = [str(response[0]["content"]) for response in row.responses]
    fill = (
        f"at('context').value = {json.dumps(context)}; at('question').value = {json.dumps(question)};"
        f"document.querySelectorAll('.response textarea').forEach((one, k) => one.value = {json.dumps(responses)}[k]);"
        "at('score').click();"
    )

    def scored(opened: Page) -> None:
        opened.value(fill)
        opened.until("!at('results').hidden", seconds=60)

    model = str(demo / "training/long/model")
    serving = subprocess.Popen(longrm("serve", "--model", model, "--port", str(port)))
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                assert serving.poll() is None, "the server ended"
                time.sleep(0.5)
        shoot(page, "server", f"http://127.0.0.1:{port}/", "[for=question]", (800, 700), scored)
    finally:
        serving.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="folder of the demo")
    demo = parser.parse_args().demo.resolve()
    if not (demo / "summary.json").exists():
        subprocess.run(longrm("demo", "--out", str(demo)), check=True)
    (DOCS / "images").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Page() as page:
        for take in (report, attribution, server):
            take(page, demo, Path(folder))


if __name__ == "__main__":
    main()
