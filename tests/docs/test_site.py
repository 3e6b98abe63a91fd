"""The documentation builds as a site, and a broken link stops the build."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import longrm

pytestmark = pytest.mark.full
ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "src", "perf", "recipes", "examples", "plugins")
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
