"""Trainings by `torchrun`: killed and continued, and errors are printed once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from longrm.config import to_toml
from longrm.errors import ConfigError
from longrm.training.checkpoints import saved_steps
from longrm.training.distributed import join_processes
from longrm.training.settings import ParallelSettings
from longrm.training.train import train

pytestmark = pytest.mark.timeout(1800)  # the launcher and its processes on two busy processors


@pytest.fixture
def torchrun(tmp_path):
    """Starts `torchrun ... -m longrm train` on a recipe."""

    def start(count, recipe, out, *changes):
        config = tmp_path / "recipe.toml"
        config.write_text(to_toml(recipe.to_dict()))
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        launch.append(f"--nproc-per-node={count}")
        train = [
            "-m",
            "longrm",
            "train",
            recipe.objective.replace("_", "-"),
            "--config",
            config,
            "--out",
            out,
        ]
        told = [part for change in changes for part in ("--set", change)]
        return subprocess.Popen(
            [*map(str, [*launch, *train, *told])],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
        )

    return start


def weights_of(out):
    return load_file(out / "model/model.safetensors")


def is_saved(out, launcher):
    """Whether a training has saved a checkpoint; looks for as long as its launcher lives."""
    while not saved_steps(out):
        try:
            launcher.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            continue
        return False
    return True


@pytest.mark.distributed
@pytest.mark.full
def test_a_training_by_torchrun_whose_process_is_killed_continues(torchrun, recipe, tmp_path):
    settings = recipe("bradley_terry", optimizer__max_steps=60, checkpoint={"save_steps": 2})
    launcher = torchrun(2, settings, tmp_path / "run", "parallel.sequence_parallel_size=2")
    assert is_saved(tmp_path / "run", launcher)
    _, second = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    os.kill(int(second), signal.SIGKILL)
    told, _ = launcher.communicate(timeout=300)
    assert launcher.returncode != 0
    assert told.count("longrm: error: another process of this run ended") == 1
    assert "Trained" not in told
    reached = saved_steps(tmp_path / "run")[-1]
    assert 2 <= reached < 60
    launcher = torchrun(2, settings, tmp_path / "run", "parallel.sequence_parallel_size=2")
    told, _ = launcher.communicate(timeout=600)
    assert (launcher.returncode, told.count("Trained 60 steps")) == (0, 1), told
    train(settings, tmp_path / "one")
    found, truth = weights_of(tmp_path / "run"), weights_of(tmp_path / "one")
    assert found.keys() == truth.keys()
    # The last bits of a gradient are enough to part two trainings of 60 steps a little.
    assert all(torch.allclose(found[name], truth[name], atol=1e-3) for name in truth)


@pytest.mark.distributed
@pytest.mark.full
@pytest.mark.parametrize("receiver", ["launcher", "one process"])
def test_sigterm_leaves_a_checkpoint_of_the_last_step(torchrun, recipe, tmp_path, receiver):
    settings = recipe("bradley_terry", optimizer__max_steps=500, checkpoint={"save_steps": 1000})
    launcher, log = torchrun(2, settings, tmp_path / "run"), tmp_path / "run/steps.jsonl"
    while launcher.poll() is None and not (log.exists() and log.stat().st_size):
        time.sleep(0.1)
    _, second = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    os.kill(launcher.pid if receiver == "launcher" else int(second), signal.SIGTERM)
    output, _ = launcher.communicate(timeout=300)
    assert output.count("longrm: terminated") == 1, output
    assert saved_steps(tmp_path / "run") == [len(log.read_text().splitlines())]


@pytest.mark.distributed
@pytest.mark.full
@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ("parallel.sequnce=2", "error: unknown key 'parallel.sequnce'"),
        (
            "parallel.sequence_parallel_size=4",
            "error: parallel.sequence_parallel_size = 4 does not divide the number of processes, 2",
        ),
        ("parallel.offload=true", "parallel.offload = true needs parallel.shard = true"),
    ],
)
def test_what_is_wrong_is_said_once(torchrun, recipe, tmp_path, changes, line):
    launcher = torchrun(
        2, recipe("bradley_terry"), tmp_path / "run", "parallel.sequence_parallel_size=2", *changes.split()
    )
    told, _ = launcher.communicate(timeout=300)
    assert launcher.returncode != 0
    assert (told.count("longrm: error:"), told.count(line)) == (1, 1), told
    assert told.count("Traceback") == told.count("ChildFailedError: ") == 1, "the launcher's own"
    assert not (tmp_path / "run").exists()


def test_processes_that_cannot_be_laid_out_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with (
        pytest.raises(
            ConfigError, match="sequence_parallel_size = 2 does not divide the number of processes, 3"
        ),
        join_processes(ParallelSettings(sequence_parallel_size=2)),
    ):
        pass


def test_sharding_without_a_launcher_is_refused(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with (
        pytest.raises(ConfigError, match=r"parallel.shard, need a launcher .* torchrun --nproc-per-node 1"),
        join_processes(ParallelSettings(shard=True)),
    ):
        pass
