"""Scoring and evaluation by several processes that torchrun starts and that talk over gloo."""

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
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.scoring.scored_file import ScoreSettings, score_file
from longrm.worlds import WorldPlan, generate, words_tokenizer

SHAPE = ModelShape(hidden=16, heads=2, kv_heads=2, head_dim=8, init_std=0.3)
LOGS = ("judgments.jsonl", "gold.jsonl", "examples.jsonl", "results.csv", "items.parquet", "summary.json")
LAUNCHER = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")
ENVIRONMENT = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
pytestmark = [pytest.mark.distributed]


@pytest.fixture
def given(tmp_path):
    """Writes a model and some rows; returns their paths."""

    def make(rows):
        write(
            tmp_path / "data.jsonl", generate(WorldPlan("records", 64, per_group=2), rows, words_tokenizer())
        )
        save(new_scorer(SHAPE, words_tokenizer(), seed=0), tmp_path / "model")
        return str(tmp_path / "model"), str(tmp_path / "data.jsonl")

    return make


def launch(*command, count=2):
    words = [*LAUNCHER, "--nproc-per-node", str(count), "-m", "longrm", *map(str, command)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def end(process, *, fails=False):
    try:
        output, errors = process.communicate(timeout=200)
    finally:
        kill(process)
    assert (process.returncode != 0) == fails, errors
    return output, errors


def kill(process):
    """Kills the launcher and the processes that it started."""
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


def wait_for(process, folder, name, lines=1):
    """Waits until a log and its parts have so many lines; returns how many they have."""
    while (found := logged(folder, name)) < lines:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return found


def test_a_file_scored_by_two_processes_is_that_of_one(tmp_path, given):
    model, data = given(100)
    score_file(ScoreSettings(model=model, data=data), tmp_path / "one.jsonl")
    out = tmp_path / "two.jsonl"
    output, errors = end(launch("score", "--model", model, "--data", data, "--out", out))
    assert output.splitlines()[0] == f"Wrote 100 rows (format longrm; 100 answered) to {out}"
    assert output.count("\n") == 2, "the second line is the next command"
    assert errors.count("reading ") == 1, "only the main process logs"
    assert out.read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    scores = {json.loads(line)["scores"][0] for line in out.read_text().splitlines()}
    assert len(scores) > 50, "otherwise equal files would not show that every row has its own score"


@pytest.mark.full
def test_an_error_of_all_processes_is_printed_once(tmp_path, given):
    model, data = given(40)
    with open(data, "a") as file:
        file.write("{}\n")
    _, errors = end(
        launch("score", "--model", model, "--data", data, "--out", tmp_path / "x.jsonl"), fails=True
    )
    assert errors.count("longrm: error:") == 1, errors
    assert "line 41" in errors


def test_an_error_of_the_main_process_alone_is_printed_once(tmp_path, given):
    """The others wait for it, and notice only that it ends."""
    _, data = given(4)
    bench, out = f"file:{data}", tmp_path / "out"
    run_evaluation(Evaluation(model="baseline:longest", bench=bench, judging={"resamples": 100}), out)
    command = ("evaluate", "--model", "baseline:overlap", "--bench", bench, "--out", out)
    _, errors = end(launch(*command), fails=True)
    assert errors.count("longrm: error:") == 1, errors
    assert "contains a run with other settings" in errors


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
        wait_for(process, folder, log, before + 130)
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
    wait_for(process, folder, "scores.part-1")
    psutil.Process(process.pid).children()[-1].kill()
    end(process, fails=True)
    assert logged(folder, "scores")
    end(launch("score", "--model", model, "--data", data, "--out", out))
    score_file(ScoreSettings(model=model, data=data), tmp_path / "one.jsonl")
    assert out.read_bytes() == (tmp_path / "one.jsonl").read_bytes()


@pytest.mark.full
@pytest.mark.parametrize(("number", "receiver"), [(signal.SIGINT, "all"), (signal.SIGTERM, "launcher")])
def test_a_signal_ends_all_processes_and_one_reports_it(tmp_path, given, number, receiver):
    """A terminal sends Ctrl-C to all; a cluster sends SIGTERM to the launcher, which passes it on."""
    model, data = given(2000)
    out = tmp_path / "out.jsonl"
    command = ("score", "--model", model, "--data", data, "--out", out)
    process = launch(*command)
    wait_for(process, tmp_path / "out.jsonl.partial", "scores")
    launcher = psutil.Process(process.pid)
    group = [launcher, *launcher.children(recursive=True)]
    for one in group if receiver == "all" else group[:1]:
        one.send_signal(number)
    _, errors = end(process, fails=True)
    word = "interrupted" if number == signal.SIGINT else "terminated"
    (line,) = (line for line in errors.splitlines() if line.startswith("longrm: "))
    assert line.startswith(f"longrm: {word}; the same command continues where it stopped"), errors
    assert not psutil.wait_procs(group, timeout=60)[1]
    assert not list(tmp_path.glob(".*")), "no scratch files are left"


RESTARTED = """
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
def test_processes_that_the_launcher_restarts_share_all_pieces(tmp_path):
    (tmp_path / "restarted.py").write_text(RESTARTED)
    command = [*LAUNCHER, "--nproc-per-node", "2", "--max-restarts", "1", tmp_path / "restarted.py", tmp_path]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    taken = " ".join((tmp_path / f"1.{rank}").read_text() for rank in range(2)).split()
    assert sorted(taken) == list("012345")
