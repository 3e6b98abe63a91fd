"""The commands and the Python of docs pages, run as they are printed there."""

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from longrm.cli.commands import cli
from longrm.data import write
from longrm.evaluation import items
from longrm.training.settings import TrainingSettings
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.reward_models.tiny_models import make_model, make_scorer
from tests.worlds.prose.prose_tokenizer import prose_tokenizer

DOCS = Path(__file__).parents[2] / "docs"
SMALLER = {
    "8k,32k,128k": "512,1k",
    "1k,4k": "512,1k",
    "--n 128": "--n 8",
    "--length 32768 --n 100": "--length 600 --n 4",
    "--length 256 --n 40": "--length 2500 --n 6",  # of a tokenizer of bytes
}
"""Arguments on the pages, and those that replace them here."""
pytestmark = pytest.mark.full


def page(name):
    return (DOCS / name).read_text()


def blocks(name, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page(name), re.MULTILINE | re.DOTALL)


def ran(line):
    done = CliRunner().invoke(cli, shlex.split(line)[1:])
    assert done.exit_code == 0, (line, done.output, done.exception)
    return done.output


def executed(python, name):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(python, name, "exec"), {})
    return out.getvalue()


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with preference data that a tiny model reads."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "pairs.jsonl", generate(WorldPlan("records", 64), 6, words_tokenizer()))
    return tmp_path


def test_index(folder):
    make_scorer(folder / "MODEL", positions=512)
    blocks = re.findall(r"```sh\n(.*?)```", (DOCS / "index.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in re.sub(r"\\\n\s*", "", block).strip().splitlines()]
    probe, report, train, score, serve = (line.strip() for line in lines)
    ran(f"{probe} --n 4".replace("8k,32k", "64,128"))
    ran(report)
    ran(f"{train} --set optimizer.max_steps=2")
    ran(score)
    ran(f"{serve} --help")


def test_attribution(folder):
    make_scorer(folder / "MODEL", positions=512)
    ran("longrm evaluate --model MODEL --bench file:pairs.jsonl --out runs/probe")
    for block in blocks("attribution.md", "sh"):
        ran(block.strip())
    found = [Path(f"runs/{name}/attributions.jsonl").read_text() for name in ("why", "why-pairs")]
    assert found[0] == found[1], "the run's model and data are the same"
    (python,) = blocks("attribution.md", "python")
    shown, strongest = executed(python, "docs/attribution.md").splitlines()
    assert shown.split()[0] in ("True", "False")
    assert re.fullmatch(r"Row \d+ of the ledger is (open|paid)\. +-?[\d.e-]+", strongest)


def smaller(line):
    """A command of a page with fewer and shorter contexts."""
    for there, here in SMALLER.items():
        line = line.replace(there, here)
    return line


def test_data(folder):
    (folder / "texts").mkdir()
    (folder / "texts/rain.txt").write_text(
        "It rained in Oslo all day long. The old bridge was closed on Monday."
    )
    rows = [
        {"prompt": f"{n} " * 90 + "?", "chosen": f"yes{n}", "rejected": f"no{n} it is not"} for n in range(60)
    ]
    write_lines(folder / "pairs.jsonl", rows)
    shown, *_ = blocks("data.md", "text")
    printed = ""
    for block in blocks("data.md", "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if "FOLDER" not in line and "longrm train sft" not in line:
                printed += ran(line)
    assert {*shown.splitlines()} - {"..."} <= {*printed.splitlines()}
    assert {path.name for path in folder.glob("runs/*")} == {
        "stage1",
        "questions",
        "inbox",
        "rubrics",
        "reasons",
    }


def test_evaluating(folder):
    make_scorer(folder / "runs/short/model")
    make_scorer(folder / "MODEL", positions=4096, tokenizer=prose_tokenizer())
    lines = [line for block in blocks("evaluating.md", "sh") for line in block.splitlines()]
    lines = [line for line in lines if "long-rewardbench" not in line.lower()]  # which is downloaded
    assert len(lines) == 10
    for line in lines:
        if " probe " in line:
            # 132 comparisons are three batches, of which each shard takes some.
            n = "" if "--n" in line else f" --n {22 if '--shard' in line else 4}"
            line += f" --set judging.resamples=100{n}"
        ran(smaller(line))
    ran("longrm evaluate --config runs/grid/config.toml --out NEW")
    assert Path("NEW/summary.json").read_bytes() == Path("runs/grid/summary.json").read_bytes()


def test_judging(folder):
    for name in ("runs/real-model", "MODEL"):
        make_model(folder / name)
    (json_lines,) = blocks("judging.md", "json")
    Path("rubrics.jsonl").write_text(json_lines)
    (template,) = blocks("judging.md", "jinja")
    Path("mine.jinja").write_text(template)
    for line in "".join(blocks("judging.md", "sh")).splitlines():
        if "--model MODEL" not in line:
            ran(smaller(line))
            continue
        done = CliRunner().invoke(cli, shlex.split(f"{line} --set judge.max_tokens=4")[1:])
        assert "no answer" in str(done.exception), "random weights write no verdict"
    outcomes = [
        json.loads(Path(f"runs/{name}/summary.json").read_text())["counts"]["outcomes"]
        for name in ("solve", "mine")
    ]
    assert all(counted["error"] == counted["too_long"] == 0 for counted in outcomes)


def test_measures(folder):
    (python,) = blocks("measures.md", "python")
    assert "Estimate(value=" in executed(python, "docs/measures.md")


def test_report(folder):
    for name in ("longest", "overlap"):
        out = {"longest": "probe"}.get(name, name)
        ran(f"longrm evaluate --model baseline:{name} --bench file:pairs.jsonl --out runs/{out}")
    (line,) = blocks("report.md", "sh")
    assert ran(line.strip()) == blocks("report.md", "text")[0]


def test_worlds(folder):
    make_scorer(folder / "MODEL", tokenizer=prose_tokenizer())
    Path("documents").mkdir()
    paragraphs = [f"Chapter {number} describes a calm sea, day {number}." for number in range(400)]
    Path("documents/sea.txt").write_text("\n\n".join(paragraphs))
    for line in blocks("worlds.md", "sh")[0].splitlines():
        ran(smaller(line))
    (toml,) = blocks("worlds.md", "toml")
    Path("mine.toml").write_text(f'objective = "bradley_terry"\n{toml}')
    given = {"model.path": "MODEL", "optimizer.max_steps": 1}
    assert TrainingSettings.resolve(Path("mine.toml"), given).data.world.texts == ("ledger", "chat")


def test_scoring(folder):
    make_scorer(folder / "runs/demo/training/long/model")
    (commands,) = blocks("scoring.md", "sh")
    for line in commands.splitlines():
        ran(line)
    rows = {name: Path(f"{name}.jsonl").read_text().splitlines() for name in ("scored", "best")}
    assert len(rows["scored"]) == len(rows["best"]) == 6
    assert all({"scores", "scores_outcome", "scores_by"} <= set(json.loads(row)) for row in rows["scored"])
    assert Path("best-and-worst.jsonl").stat().st_size > 0
    assert Path("clear.jsonl").exists()
    (python,) = blocks("scoring.md", "python")
    assert len(eval(executed(python, "docs/scoring.md"))) == 2


def test_api(folder):
    (shown,) = blocks("api.md", "text")
    assert executed(blocks("api.md", "python")[0], "docs/api.md") == shown


def test_paper(folder):
    make_scorer(folder / "MODEL", positions=512)
    ran("longrm recipes")
    (line,) = [
        line for block in blocks("paper.md", "sh") for line in block.splitlines() if "attribute" in line
    ]
    ran(line)
    (python,) = blocks("paper.md", "python")
    assert executed(python, "docs/paper.md").count("AttentionTableRow(measure=") == 2


def test_judge_training(folder):
    make_model(folder / "JUDGE")
    shutil.copy("pairs.jsonl", "held-out.jsonl")
    (toml,) = blocks("judge_training.md", "toml")
    (folder / "grpo.toml").write_text(toml)
    made, trained, judged = blocks("judge_training.md", "sh")[0].replace("\\\n", " ").splitlines()
    ran(made)
    small = (
        "optimizer.max_steps=1 data.per_step=4 rollouts.num_generations=2 rollouts.max_completion_length=8"
    )
    ran(" ".join([trained, *(f"--set {change}" for change in small.split())]))
    ran(judged.replace("runs/grpo/model", "baseline:longest"))  # the random judge writes no verdicts
    assert (folder / "runs/grpo/model").is_dir()
    (python,) = blocks("judge_training.md", "python")
    executed(python, "docs/judge_training.md")


def test_related(folder):
    table, *sections = re.split(r"^## .+\n", page("related.md"), flags=re.MULTILINE)
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


def test_troubleshooting():
    (block,) = blocks("troubleshooting.md", "console")
    command, *shown = block.splitlines()
    done = subprocess.run([sys.executable, "-m", *shlex.split(command)[1:]], capture_output=True, text=True)
    assert done.returncode == 1
    assert " ".join(shown) in " ".join(done.stderr.split())


def test_training(folder):
    (toml,) = blocks("training.md", "toml")
    (folder / "rm.toml").write_text(toml)
    assert TrainingSettings.resolve(folder / "rm.toml").evaluation.load_best_model_at_end
    (train,), (probe, push) = (block.splitlines() for block in blocks("training.md", "sh"))
    ran(f"{train} --set optimizer.max_steps=2".replace("runs/short", "runs/rm"))
    ran(f"{probe} --lengths 128 --n 8")
    assert "acme/judge" in ran(push)


def test_runs(folder):
    rows = [{"prompt": f"{n}?", "chosen": "yes" * n, "rejected": "no" * (n % 5 + 1)} for n in range(1, 12)]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    probe, *others = [line for block in blocks("runs.md", "sh") for line in block.splitlines()]
    ran(probe)
    ran("longrm score --model baseline:longest --data pairs.jsonl --out scored.jsonl")
    (python,), (shown,) = blocks("runs.md", "python"), blocks("runs.md", "text")
    assert executed(python, "docs/runs.md") == shown
    listed, comparisons, cache, _ = map(ran, others)
    assert "baseline:overlap" in listed
    assert comparisons.count("Question") >= 3
    assert "answers in runs" in cache
    columns = re.findall(r"^\| (`.+?) \|", page("runs.md"), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", "".join(columns))) == set(items.SCHEMA.names)
