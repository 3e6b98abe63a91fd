"""The commands of docs/probing.md, run as they stand there on a small model."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from longrm.cli.commands import cli
from tests.reward_models.tiny_models import make_scorer
from tests.worlds.prose.prose_tokenizer import prose_tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "probing.md"


@pytest.fixture
def here(tmp_path, monkeypatch):
    make_scorer(tmp_path / "MODEL", positions=4096, tokenizer=prose_tokenizer())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_work(here):
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), flags=re.S)
        for line in block.splitlines()
    ]
    assert len(lines) == 7
    for line in lines:
        line = line.replace("8k,32k,128k", "512,1k").replace("1k,4k", "512,1k").replace("--n 128", "--n 8")
        small = ["--set", "judging.resamples=100"] if " probe " in line else []
        if " probe " in line and "--n" not in line:
            small += ["--n", "22" if "--shard" in line else "4"]  # 132 comparisons are three batches
        done = CliRunner().invoke(cli, [*shlex.split(line)[1:], *small])
        assert done.exit_code == 0, (line, done.output, done.exception)
    for name in ("runs/probe", "runs/grid", "runs/few", "runs/whole"):
        assert (here / name / "summary.json").stat().st_size
    again = CliRunner().invoke(cli, ["evaluate", "--config", "runs/grid/config.toml", "--out", "NEW"])
    assert again.exit_code == 0
    assert (here / "NEW/summary.json").read_bytes() == (here / "runs/grid/summary.json").read_bytes()
