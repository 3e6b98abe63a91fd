"""The commands of docs/rewards.md, run as they stand there, and the files that it names."""

import re
import shlex
import shutil
from pathlib import Path

from longrm.cli.commands import cli
from longrm.data import read, read_demonstrations, write
from longrm.worlds import WorldPlan, generate, words_tokenizer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/rewards.md").read_text()


def test_the_commands_work(scorer, tmp_path, monkeypatch):
    shutil.copytree(scorer, tmp_path / "runs/demo/training/long/model")
    for name, responses in (("candidates", 4), ("pairs", 2)):
        plan = WorldPlan("records", 150, responses=responses)
        write(tmp_path / f"{name}.jsonl", generate(plan, 8, words_tokenizer()))
    block = "".join(re.findall(r"```sh\n(.*?)```", PAGE, flags=re.S))
    monkeypatch.chdir(tmp_path)
    for line in block.splitlines():
        cli.main(shlex.split(line)[1:], standalone_mode=False)
    assert len(list(read_demonstrations(tmp_path / "best.jsonl"))) == 8
    assert len(list(read_demonstrations(tmp_path / "best-by-pairs.jsonl"))) == 8
    formats = {name: read(tmp_path / f"{name}.jsonl").format for name in ("ranked", "made", "decided")}
    assert formats == {"ranked": "longrm", "made": "trl", "decided": "longrm"}


def test_the_pages_list_every_example():
    pages = PAGE + (ROOT / "docs/judge_training.md").read_text()
    named = set(re.findall(r"\(\.\./examples/trainers/(\w+\.py)\)", pages))
    assert named == {file.name for file in (ROOT / "examples/trainers").glob("*.py")}
