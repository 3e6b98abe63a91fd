"""The commands and the Python of docs/attribution.md, run as they stand there."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from longrm.cli.commands import cli
from longrm.data import write
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.reward_models.tiny_models import make_scorer

PAGE = (Path(__file__).parents[2] / "docs/attribution.md").read_text()


def ran(line):
    done = CliRunner().invoke(cli, shlex.split(line)[1:])
    assert done.exit_code == 0, (line, done.output, done.exception)


def test_every_block_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_scorer(tmp_path / "MODEL", positions=512)
    rows = list(generate(WorldPlan("records", 64), 2, words_tokenizer()))
    write(tmp_path / "pairs.jsonl", rows)
    ran("longrm evaluate --model MODEL --bench file:pairs.jsonl --out runs/probe")
    (commands, _), (python,) = (  # the second needs the real model
        re.findall(rf"```{name}\n(.*?)```", PAGE, flags=re.S) for name in ("sh", "python")
    )
    for line in commands.splitlines():
        ran(line)
    found = [Path(f"runs/{name}/attributions.jsonl").read_text() for name in ("why", "why-probe")]
    assert found[0] == found[1], "the run's model and data are the same"
    assert len(found[0].splitlines()) == 2
    assert json.loads(Path("runs/why/summary.json").read_text())["kind"] == "attribution"
    (line,) = re.findall(r"`(longrm report .*?)`", PAGE)
    ran(line)
    assert "How far the model rests on the evidence" in Path("report.html").read_text()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(python, "docs/attribution.md", "exec"), {})
    shown, strongest = said.getvalue().splitlines()
    assert shown.split()[0] in ("True", "False")
    assert re.fullmatch(r"Row \d+ of the ledger is (open|paid)\. +-?[\d.e-]+", strongest)
