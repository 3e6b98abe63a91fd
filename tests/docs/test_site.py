"""The documentation builds as a site, a broken link stops the build, and the served site has a search."""

import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import longrm
from tests.report.chromium import Page

pytestmark = pytest.mark.full
ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "src", "perf", "experiments", "examples", "plugins")
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "mkdocs.yml")


@pytest.fixture
def repository(tmp_path):
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def build(repository):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True)


def test_the_site_builds_with_every_link_leading_somewhere(repository):
    done = build(repository)
    assert done.returncode == 0, done.stderr
    site = repository / "site"
    assert "SmolLM2-135M-Instruct" in (site / "index.html").read_text()
    api = (site / "api.html").read_text()
    assert "A list of at least one response, each text or messages" in api
    contents = re.findall(r'<span class="md-ellipsis">\s*([\w.]+)\s*</span>', api.partition("<h1")[0])
    names = [name for name in contents if "." in name]
    assert {f"longrm.{name}" for name in longrm.__all__} <= {*names}
    assert not {name.rpartition(".")[2] for name in names} & {*contents}, "a name is there twice"
    assert 'id="evaluate.judging.seed"' in (site / "cli.html").read_text()
    for outside in ("repository/perf/index.html", "repository/src/longrm/recipes/scale/8-a100.toml"):
        assert (site / outside).exists(), outside
    assert "https://fonts" not in (site / "index.html").read_text()


def test_a_broken_link_stops_the_build(repository):
    page = repository / "docs/troubleshooting.md"
    page.write_text(page.read_text() + "\n[a link](measures.md#nowhere)\n")
    done = build(repository)
    assert done.returncode != 0
    assert "nowhere" in done.stderr


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed")
def test_the_served_site_has_a_search(repository, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    make = ["make", "--dry-run", "--file", str(ROOT / "Makefile"), "docs-serve", f"PORT={port}"]
    commands = subprocess.run(make, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    _, *words = shlex.split(commands[-1])  # after the interpreter of the virtual environment
    address = words[words.index("--dev-addr") + 1]
    assert address == f"127.0.0.1:{port}"
    log = tmp_path / "log"
    with log.open("w") as output:
        server = subprocess.Popen([sys.executable, *words], cwd=repository, stdout=output, stderr=output)
    try:
        until = time.monotonic() + 60
        while "Serving on" not in log.read_text():
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        with Page() as page:
            page.open(f"http://{address}/index.html?q=boundary")
            page.until("document.querySelectorAll('.md-search-result__item').length > 2")
            found = page.value(
                "[...document.querySelectorAll('.md-search-result h1')].map(one => one.innerText)"
            )
            assert "Metrics" in found
            assert not page.problems
    finally:
        server.terminate()
        server.wait()
