"""The commands and the first example of docs/rewards.md, run as printed, and the files that it names."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from longrm.cli.commands import cli
from longrm.data import read_demonstrations, write
from longrm.worlds import WorldPlan, generate, words_tokenizer

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/rewards.md").read_text()


def test_the_command_ranks_groups(tmp_path, monkeypatch):
    write(
        tmp_path / "candidates.jsonl", generate(WorldPlan("records", 150, responses=4), 8, words_tokenizer())
    )
    monkeypatch.chdir(tmp_path)
    (line,) = "".join(re.findall(r"```sh\n(.*?)```", PAGE, flags=re.S)).splitlines()
    cli.main(shlex.split(line)[1:], standalone_mode=False)
    assert len(list(read_demonstrations(tmp_path / "best.jsonl"))) == 8


def test_the_first_example_prints_what_the_page_shows():
    example, shown = re.findall(r"```(?:python|text)\n(.*?)```", PAGE, flags=re.S)[:2]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(example, "docs/rewards.md", "exec"), {})
    assert out.getvalue() == shown


def test_the_pages_list_every_example():
    pages = PAGE + (ROOT / "docs/judge_training.md").read_text()
    named = set(re.findall(r"\(\.\./examples/trainers/(\w+\.py)\)", pages))
    assert named == {file.name for file in (ROOT / "examples/trainers").glob("*.py")}
