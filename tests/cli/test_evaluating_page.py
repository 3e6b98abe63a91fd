"""The commands of docs/evaluating.md that need neither a server nor data of others, run as they stand there."""

import json
import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from longrm.cli.commands import cli
from longrm.data import write
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.reward_models.tiny_models import make_scorer

PAGE = (Path(__file__).parents[2] / "docs/evaluating.md").read_text()


def test_the_commands_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_scorer(tmp_path / "runs/demo/training/long/model")
    write(tmp_path / "pairs.jsonl", generate(WorldPlan("records", 64), 6, words_tokenizer()))
    (block, *_) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.S)
    lines = [line for line in block.splitlines() if "file:pairs.jsonl" in line]
    assert len(lines) == 2
    for line in lines:
        done = CliRunner().invoke(cli, shlex.split(line)[1:])
        assert done.exit_code == 0, (line, done.output, done.exception)
    plain, compressed = (
        json.loads(Path(f"runs/{name}/summary.json").read_text()) for name in ("pairs", "compressed")
    )
    assert plain["counts"]["comparisons"] == compressed["counts"]["comparisons"] == 6
    assert plain["model"] != compressed["model"]
