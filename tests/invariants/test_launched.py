"""Scoring and evaluation by the command, as a launcher starts it: several processes, which talk over gloo."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from longrm.data import write
from longrm.evaluation.evaluation_run import Evaluation, run_evaluation
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.scoring.scored_file import ScoreSettings, score_file
from longrm.worlds import WorldPlan, generate, words_tokenizer

SHAPE = ModelShape(hidden=16, heads=2, kv_heads=2, head_dim=8, init_std=0.3)
LOGS = ("judgments.jsonl", "gold.jsonl", "examples.jsonl", "results.csv", "items.parquet", "summary.json")
pytestmark = [pytest.mark.distributed]


@pytest.fixture
def given(tmp_path):
    """The options that name a model, whose numbers show how rows were batched; and the rows."""

    def make(rows):
        write(
            tmp_path / "data.jsonl", generate(WorldPlan("records", 64, per_group=2), rows, words_tokenizer())
        )
        save(new_scorer(SHAPE, words_tokenizer(), seed=0), tmp_path / "model")
        return str(tmp_path / "model"), str(tmp_path / "data.jsonl")

    return make


def launch(*command, count=2):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")
    return subprocess.Popen(
        [sys.executable, *launcher, "--nproc-per-node", str(count), "-m", "longrm", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
    )


def end(process, status=0):
    try:
        told, errors = process.communicate(timeout=200)
    finally:
        kill(process)
    assert (process.returncode != 0) == status, errors
    return told, errors


def kill(process):
    """Kills the launcher and what it started, all at once."""
    with suppress(psutil.NoSuchProcess):  # it has ended
        launcher = psutil.Process(process.pid)
        group = [launcher, *launcher.children(recursive=True)]
        for one in group:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(group, timeout=60)
    process.wait()


def logged(folder, name):
    return sum(part.read_bytes().count(b"\n") for part in folder.glob(f"{name}*.jsonl"))


def test_a_file_scored_by_two_processes_is_that_of_one(tmp_path, given):
    model, data = given(100)
    score_file(ScoreSettings(model=model, data=data), tmp_path / "one.jsonl")
    out = tmp_path / "two.jsonl"
    told, errors = end(launch("score", "--model", model, "--data", data, "--out", out))
    assert told == f"Wrote 100 rows (format longrm; 100 answered) to {out}\n"
    assert errors.count("reading ") == 1, "one process speaks for all"
    assert out.read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert len({json.loads(line)["scores"][0] for line in out.read_text().splitlines()}) > 50, (
        "scores tell rows apart"
    )


@pytest.mark.full
def test_what_is_wrong_is_said_once(tmp_path, given):
    model, data = given(40)
    out = tmp_path / "x.jsonl"
    for options in (("--model", tmp_path / "none"), ("--model", model, "--column", "id")):
        _, errors = end(launch("score", *options, "--data", data, "--out", out), status=1)
        assert errors.count("longrm: error:") == 1, errors
    with open(data, "a") as file:
        file.write("{}\n")
    _, errors = end(launch("score", "--model", model, "--data", data, "--out", out), status=1)
    assert errors.count("longrm: error:") == 1, errors
    assert "line 41" in errors


def test_what_the_first_process_alone_finds_wrong_is_said(tmp_path, given):
    """The others wait for it, and notice only that it ends."""
    _, data = given(4)
    bench, out = f"file:{data}", tmp_path / "out"
    run_evaluation(Evaluation(model="baseline:longest", bench=bench, judging={"resamples": 100}), out)
    command = ("evaluate", "--model", "baseline:overlap", "--bench", bench, "--out", out)
    _, errors = end(launch(*command), status=1)
    assert errors.count("longrm: error:") == 1, errors
    assert "holds a run with other settings" in errors


@pytest.mark.full
@pytest.mark.parametrize("kind", ["score", "evaluate"])
def test_a_killed_group_is_continued_by_one_process_and_the_reverse(tmp_path, given, kind):
    model, data = given(800)
    if kind == "score":
        score_file(ScoreSettings(model=model, data=data), tmp_path / "one.jsonl")
        out, folder, log = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial", "scores"
        command = ("score", "--model", model, "--data", data, "--out", out)
    else:
        settings = Evaluation.resolve(
            None, {"model": model, "bench": f"file:{data}", "judging.resamples": 100}
        )
        run_evaluation(settings, tmp_path / "one")
        out = folder = tmp_path / "out"
        log, where = "judgments", ("--bench", f"file:{data}", "--set", "judging.resamples=100")
        command = ("evaluate", "--model", model, *where, "--out", out)
    for count in (2, 1):
        before, process = logged(folder, log), launch(*command, count=count)
        while logged(folder, log) < before + 130:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)  # another process is waited for
        kill(process)
        process.communicate()
        assert before < logged(folder, log) < 800
    end(launch(*command))
    if kind == "score":
        assert out.read_bytes() == (tmp_path / "one.jsonl").read_bytes()
        return
    for name in LOGS:
        assert (out / name).read_bytes() == (tmp_path / "one" / name).read_bytes(), name


@pytest.mark.full
def test_a_process_that_is_killed_ends_the_others(tmp_path, given):
    model, data = given(800)
    out = tmp_path / "out.jsonl"
    process = launch("score", "--model", model, "--data", data, "--out", out)
    folder = tmp_path / "out.jsonl.partial"
    while not logged(folder, "scores.part-1"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)  # another process is waited for
    psutil.Process(process.pid).children()[-1].kill()
    end(process, status=1)
    assert logged(folder, "scores")
    end(launch("score", "--model", model, "--data", data, "--out", out))
    score_file(ScoreSettings(model=model, data=data), tmp_path / "one.jsonl")
    assert out.read_bytes() == (tmp_path / "one.jsonl").read_bytes()


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("whom", ["launcher", "all"])
def test_a_signal_ends_all_processes_and_one_says_so(tmp_path, given, number, whom):
    """A terminal sends Ctrl-C to all; a cluster sends SIGTERM to the launcher, which hands it on."""
    model, data = given(2000)
    out = tmp_path / "out.jsonl"
    command = ("score", "--model", model, "--data", data, "--out", out)
    process = launch(*command)
    while not logged(tmp_path / "out.jsonl.partial", "scores"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)  # another process is waited for
    launcher = psutil.Process(process.pid)
    group = [launcher, *launcher.children(recursive=True)]
    for one in group if whom == "all" else group[:1]:
        one.send_signal(number)
    _, errors = end(process, status=1)
    word = "interrupted" if number == signal.SIGINT else "terminated"
    lines = [line for line in errors.splitlines() if line.startswith("longrm: ")]
    (line,) = lines
    assert line.startswith(f"longrm: {word}; the same command continues where it stopped"), errors
    assert not psutil.wait_procs(group, timeout=60)[1]
    assert not list(tmp_path.glob(".*")), "what was begun is removed"


ANEW = """
import os, signal, sys
from pathlib import Path
from longrm.modeling.process_group import join
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
with join() as place:
    mine = [piece for piece in range(6) if place.takes(piece)]
    done = place.add_done(len(mine))
    Path(sys.argv[1], attempt + "." + str(place.rank)).write_text(" ".join(map(str, mine)))
    place.wait()
    if attempt == "0" and not place.is_main_process:
        os.kill(os.getpid(), signal.SIGKILL)
    place.wait()
    assert place.add_done(0) == 6
"""


@pytest.mark.full
def test_processes_that_the_launcher_starts_anew_share_all_pieces(tmp_path):
    (tmp_path / "anew.py").write_text(ANEW)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")
    told = subprocess.run(
        [
            sys.executable,
            *launcher,
            "--nproc-per-node",
            "2",
            "--max-restarts",
            "1",
            tmp_path / "anew.py",
            tmp_path,
        ],
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert told.returncode == 0, told.stderr
    taken = " ".join((tmp_path / f"1.{rank}").read_text() for rank in range(2)).split()
    assert sorted(taken) == list("012345")
