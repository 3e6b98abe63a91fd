"""Scoring by a real Ray cluster on this machine, and errors without one."""

import importlib.util
import json
import os
import pickle
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from longrm.data import ComparisonRow, write
from longrm.errors import ConfigError, MissingPackageError, RunError
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.scoring import ray_engine, scored_file
from longrm.scoring.ray_engine import _Starts, _Worker
from longrm.scoring.scored_file import ScoreRecord, ScoreSettings, batches, score_file
from longrm.types import Outcome
from longrm.worlds import WorldPlan, generate, words_tokenizer

ROWS = 2000  # some blocks for each worker
MANY = 10_000
SHAPE = ModelShape(hidden=16, heads=2, kv_heads=2, head_dim=8, init_std=0.3)
with_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")


@pytest.fixture
def scoring(tmp_path, request):
    """Settings of a model whose numbers show how rows were batched, on generated rows."""
    rows = getattr(request, "param", ROWS)
    write(tmp_path / "data.jsonl", generate(WorldPlan("records", 64, per_group=2), rows, words_tokenizer()))
    save(new_scorer(SHAPE, words_tokenizer(), seed=0), tmp_path / "model")
    return ScoreSettings(model=str(tmp_path / "model"), data=str(tmp_path / "data.jsonl"))


def start(scoring, out, *more):
    command = ("score", "--model", scoring.model, "--data", scoring.data, "--out", out, *more)
    return subprocess.Popen(
        [sys.executable, "-m", "longrm", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "100"},
    )


def logged(out):
    log = out.with_name(out.name + ".partial") / "scores.jsonl"
    try:
        return log.read_bytes().count(b"\n")
    except FileNotFoundError:  # the partial folder is renamed when the file is whole
        return 0


def wait_for(process, out, rows):
    """Waits until so many rows are in the log of a scoring that is at work."""
    while logged(out) < rows:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)  # another process is waited for


def workers_of(process):
    below = psutil.Process(process.pid).children(recursive=True)
    return [child for child in below if any("MapWorker" in part for part in child.cmdline())]


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scoring", [MANY], indirect=True)
@with_ray
def test_a_killed_ray_worker_changes_no_byte(tmp_path, scoring):
    one, out = tmp_path / "one.jsonl", tmp_path / "ray.jsonl"
    score_file(scoring, one)
    assert len({json.loads(line)["scores"][0] for line in one.read_text().splitlines()}) > MANY / 2, (
        "scores tell rows apart"
    )
    process = start(scoring, out, "--engine", "ray", "--workers", 2)
    try:
        wait_for(process, out, MANY // 2)
        first, *others = workers_of(process)
        assert len(others) == 1
        first.kill()
        output, errors = process.communicate(timeout=1500)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert f"Wrote {MANY} rows" in output
    assert out.read_bytes() == one.read_bytes()


@pytest.mark.full
@with_ray
def test_sigterm_also_ends_ray(tmp_path, scoring):
    process = start(scoring, tmp_path / "out.jsonl", "--engine", "ray", "--workers", 1)
    wait_for(process, tmp_path / "out.jsonl", 1)
    below = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 143, errors
    assert errors.splitlines()[-1] == "longrm: terminated; the same command continues where it stopped"
    _, alive = psutil.wait_procs(below, timeout=100)
    assert not alive


@pytest.mark.full
@with_ray
def test_runs_continue_with_and_without_ray(tmp_path, scoring):
    one, out = tmp_path / "one.jsonl", tmp_path / "mixed.jsonl"
    score_file(scoring, one)
    for engine in (("--engine", "ray", "--workers", 1), ()):
        process, before = start(scoring, out, *engine), logged(out)
        wait_for(process, out, before + 1)
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate()
        assert before < logged(out) < ROWS
        _, alive = psutil.wait_procs(below, timeout=200)  # Ray's agents check for it now and then
        assert not alive, "Ray ends with the run"
    process = start(scoring, out, "--engine", "ray", "--workers", 1)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert out.read_bytes() == one.read_bytes()


@with_ray
def test_a_missing_cluster_and_too_many_workers_are_refused(monkeypatch):
    import ray.data

    def init(**_):
        raise ConnectionError("refused")

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        port = bound.getsockname()[1]
        monkeypatch.setattr(ray, "init", init)
        for address in ("auto", f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            with pytest.raises(RunError, match=f"RAY_ADDRESS = {address}"), ray_engine._cluster(address):
                pass
    monkeypatch.setattr(ray_engine, "_cluster", lambda address: nullcontext())
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    three = ScoreSettings(data="", model="baseline:longest", engine="ray", workers=3)
    with pytest.raises(ConfigError, match="--workers 3"):
        next(
            ray_engine.scored_by_ray(
                "baseline:longest", three, None, None, batches, scored_file.score_batch, ScoreRecord
            )
        )


def test_a_missing_ray_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))  # which the engine changes
    monkeypatch.setitem(sys.modules, "ray", None)
    write(tmp_path / "data.jsonl", generate(WorldPlan("records", 64, per_group=2), 4, words_tokenizer()))
    scoring = ScoreSettings(model="baseline:longest", data=str(tmp_path / "data.jsonl"), engine="ray")
    with pytest.raises(MissingPackageError, match=r"'ray'.*pip install '\.\[ray\]'"):
        score_file(scoring, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl.partial").exists()


@pytest.mark.parametrize("kills", [3, 4])
def test_rows_that_kill_their_workers_end_in_errors(monkeypatch, kills):
    class Actor:
        """An actor that answers in this process."""

        def __init__(self):
            starts = _Starts()
            self.add, self.clear = SimpleNamespace(remote=starts.add), SimpleNamespace(remote=starts.clear)

    class Killed(BaseException):
        """Not caught by a worker."""

    killed = 0

    def score_or_die(batch, model):
        nonlocal killed
        if batch[0][0] == 16 and killed < kills:
            killed += 1
            raise Killed
        return scored_file.score_batch(batch, model)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda value: value))
    generated = generate(WorldPlan("records", 64), 40, words_tokenizer())
    rows = [ComparisonRow(number, "", {}, one) for number, one in enumerate(generated)]
    block = {"batch": [pickle.dumps(batch) for batch in batches(rows)]}
    worker = _Worker(
        "baseline:longest", ScoreSettings(data=""), score_or_die, ScoreRecord, str(Path.cwd()), Actor()
    )
    for _ in range(kills):
        with pytest.raises(Killed):
            worker(block)
    (packed,) = worker(block)["records"]
    records = pickle.loads(packed)
    assert [record.number for record in records] == [*range(40)]
    failed = [record for record in records if record.outcome is Outcome.ERROR]
    assert [record.number for record in failed] == ([*range(16, 32)] if kills == 4 else [])
    assert all("rows 16 to 31" in record.detail for record in failed)
