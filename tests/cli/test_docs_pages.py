"""The commands and the Python of docs pages, run as they are printed there."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from longrm.cli.commands import cli
from longrm.data import write
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.reward_models.tiny_models import make_scorer
from tests.worlds.prose.prose_tokenizer import prose_tokenizer

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.full


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def ran(line):
    done = CliRunner().invoke(cli, shlex.split(line)[1:])
    assert done.exit_code == 0, (line, done.output, done.exception)
    return done.output


def executed(python, page):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(python, page, "exec"), {})
    return out.getvalue()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with preference data that a tiny model reads."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "pairs.jsonl", generate(WorldPlan("records", 64), 6, words_tokenizer()))
    return tmp_path


def test_attribution(folder):
    make_scorer(folder / "MODEL", positions=512)
    ran("longrm evaluate --model MODEL --bench file:pairs.jsonl --out runs/probe")
    commands, _ = blocks("attribution.md", "sh")  # the second block needs a real model
    for line in commands.splitlines():
        ran(line)
    found = [Path(f"runs/{name}/attributions.jsonl").read_text() for name in ("why", "why-probe")]
    assert found[0] == found[1], "the run's model and data are the same"
    (line,) = re.findall(r"`(longrm report .*?)`", (DOCS / "attribution.md").read_text())
    ran(line)
    (python,) = blocks("attribution.md", "python")
    shown, strongest = executed(python, "docs/attribution.md").splitlines()
    assert shown.split()[0] in ("True", "False")
    assert re.fullmatch(r"Row \d+ of the ledger is (open|paid)\. +-?[\d.e-]+", strongest)


def test_evaluating(folder):
    make_scorer(folder / "runs/demo/training/long/model")
    lines = [line for line in blocks("evaluating.md", "sh")[0].splitlines() if "file:pairs.jsonl" in line]
    assert len(lines) == 2
    for line in lines:
        ran(line)
    plain, compressed = (
        json.loads(Path(f"runs/{name}/summary.json").read_text()) for name in ("pairs", "compressed")
    )
    assert plain["counts"]["comparisons"] == compressed["counts"]["comparisons"] == 6


def test_scoring(folder):
    make_scorer(folder / "runs/demo/training/long/model")
    commands, many = blocks("scoring.md", "sh")
    for line in commands.splitlines():
        ran(line)
    rows = {name: Path(f"{name}.jsonl").read_text().splitlines() for name in ("scored", "best")}
    assert len(rows["scored"]) == len(rows["best"]) == 6
    assert all({"scores", "scores_outcome", "scores_by"} <= set(json.loads(row)) for row in rows["scored"])
    assert Path("best-and-worst.jsonl").stat().st_size > 0
    assert Path("clear.jsonl").exists()
    assert len(many.splitlines()) == 2
    (python,) = blocks("scoring.md", "python")
    assert len(eval(executed(python, "docs/scoring.md"))) == 2


def test_related(folder):
    table, *sections = re.split(r"^## .+\n", (DOCS / "related.md").read_text(), flags=re.MULTILINE)
    papers = re.findall(r"^\| \[.+?\]\(#.+?\) \((\d+\.\d+)\)", table, re.MULTILINE)
    assert len(papers) == len(sections)
    assert all(paper in section for paper, section in zip(papers, sections, strict=True)), "another order"
    (block,) = [one for one in blocks("related.md", "sh") if "bandit.rows" in one]
    *lines, train = block.replace("\\\n", "").splitlines()
    printed = [ran(line) for line in lines]
    assert train.removesuffix(" --out runs/model") in printed[-1]


def test_shared_prefix(folder):
    make_scorer(folder / "runs/short/model", positions=512)
    (python,) = blocks("shared_prefix.md", "python")
    together, *alone = executed(python, "docs/shared_prefix.md").splitlines()
    assert json.loads(together) == pytest.approx([float(score) for score in alone], rel=1e-4)


def test_runs(folder):
    rows = [{"prompt": f"{n}?", "chosen": "yes" * n, "rejected": "no" * (n % 5 + 1)} for n in range(1, 12)]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = "--set 'probe.cells=[{lengths=[128, 256], groups=4, per_group=2}]' --set judging.resamples=100"
    ran(f"longrm evaluate --model baseline:longest --bench probe --out runs/probe {small}")
    ran("longrm score --model baseline:longest --data pairs.jsonl --out scored.jsonl")
    (python,) = blocks("runs.md", "python")
    assert "margin" in executed(python, "docs/runs.md")
    outputs = [ran(line) for block in blocks("runs.md", "sh") for line in block.splitlines()]
    assert "probe" in outputs[0]
    assert [run["path"] for run in json.loads(outputs[1])["runs"]] == ["runs/probe"]


def test_probing(folder):
    make_scorer(folder / "MODEL", positions=4096, tokenizer=prose_tokenizer())
    lines = [line for block in blocks("probing.md", "sh") for line in block.splitlines()]
    assert len(lines) == 7
    for line in lines:
        line = line.replace("8k,32k,128k", "512,1k").replace("1k,4k", "512,1k").replace("--n 128", "--n 8")
        if " probe " in line:
            # 132 comparisons are three batches, of which each shard takes some.
            n = "" if "--n" in line else f" --n {22 if '--shard' in line else 4}"
            line = f"{line} --set judging.resamples=100{n}"
        ran(line)
    ran("longrm evaluate --config runs/grid/config.toml --out NEW")
    assert Path("NEW/summary.json").read_bytes() == Path("runs/grid/summary.json").read_bytes()
