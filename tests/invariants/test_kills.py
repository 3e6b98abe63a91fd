"""Killed evaluations and trainings, continued by the same command, end with the bytes of uninterrupted ones.

`LONGRM_KILLS` is the number of kills of every slow kind (`LONGRM_KILLS=200 make test-full`).
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from longrm.data import write
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.modeling.loading import new_language_model
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.runs.folder import CACHE, MANIFEST
from longrm.runs.logs import JUDGMENTS
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.clients.faults import FaultyServer, serving
from tests.kills import killed_everywhere
from tests.reward_models.tiny_models import make_scorer, make_verdict_writer

KILLS = int(os.environ.get("LONGRM_KILLS", "12"))
CONCURRENCY = 16  # requests of a remote model at once; a kill may lose the answers to all of them
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGINT)


def start(arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "longrm", *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )


def finish(arguments):
    """Runs the command until no errors of a server are left."""
    for _ in range(20):
        process = start(arguments)
        _, errors = process.communicate(timeout=300)
        if process.returncode == 0:
            return
        assert "the same command retries them" in errors, errors
    raise AssertionError("errors are left after 20 calls")


def kill_when(arguments, log: Path, lines: int, number=signal.SIGKILL) -> int:
    """Kills the command as soon as its log has so many lines; returns how many it then has."""
    process = start(arguments)
    try:
        while process.poll() is None and count(log) < lines:
            os.sched_yield()
    finally:
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors, errors
    return count(log)


def count(log: Path) -> int:
    """Lines of the log; none while it is absent, as when a training without a checkpoint begins again."""
    try:
        return log.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def contents(folder: Path) -> dict[str, object]:
    """All files of a run folder, without the time of its start and the order in which answers were cached."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    found[MANIFEST] = {
        name: value for name, value in json.loads(found[MANIFEST]).items() if name != "started"
    }
    if CACHE in found:
        with closing(sqlite3.connect(folder / CACHE)) as database:
            found[CACHE] = dict(database.execute("SELECT key, completion FROM completions"))
    return found


def baseline(place, server):
    write(place / "pairs.jsonl", generate(WorldPlan("records", 64, per_group=1), 2000, words_tokenizer()))
    return ["evaluate", "--model", "baseline:random", "--bench", f"file:{place / 'pairs.jsonl'}"]


def recorded(place, server):
    bench = baseline(place, server)[-1]
    run_evaluation(Evaluation(model="simulated:0.2", bench=bench), place / "record")
    return ["evaluate", "--recorded", place / "record", "--bench", bench]


def local(place, server):
    return ["probe", make_scorer(place / "scorer"), "--lengths", "64,128", "--n", "256"]


def remote(place, server):
    return [
        *("probe", f"openai:{server.url}#tiny", "--tasks", "records", "--tokenizer", "words"),
        *("--lengths", "64,128", "--n", "128", "--set", f"remote.concurrency={CONCURRENCY}"),
        *("--set", "remote.timeout=1.0"),
    ]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kind", "rate", "kills"),
    [
        pytest.param(baseline, 0.0, 8, id="baseline"),
        pytest.param(recorded, 0.0, KILLS, id="recorded", marks=pytest.mark.full),
        pytest.param(local, 0.0, KILLS, id="local", marks=pytest.mark.full),
        pytest.param(remote, 0.0, KILLS, id="remote", marks=pytest.mark.full),
        pytest.param(remote, 0.3, KILLS, id="faulty", marks=pytest.mark.full),
    ],
)
def test_an_evaluation_killed_at_many_moments_ends_equal(tmp_path, kind, rate, kills):
    with serving(FaultyServer(rate=0.0)) as server:
        command = [*kind(tmp_path, server), "--out"]
        whole, cut = tmp_path / "whole", tmp_path / "cut"
        finish([*command, whole])
        total = count(whole / JUDGMENTS)
        server.forget(rate=rate, seed=1)
        held = [
            kill_when(
                [*command, cut], cut / JUDGMENTS, 1 + total * kill // kills, SIGNALS[kill % len(SIGNALS)]
            )
            for kill in range(kills)
        ]
        assert sum(1 for lines in held if 0 < lines < total) >= 2, f"the kills came too late: {held}"
        finish([*command, cut])
        assert contents(cut) == contents(whole)
        assert sum(server.answered.values()) - len(server.answered) <= CONCURRENCY * kills


def test_an_evaluation_killed_at_any_change_of_its_folder_ends_equal(tmp_path):
    write(tmp_path / "pairs.jsonl", generate(WorldPlan("records", 64, per_group=2), 4, words_tokenizer()))
    settings = Evaluation.resolve(
        None,
        {"model": "baseline:random", "bench": f"file:{tmp_path / 'pairs.jsonl'}", "judging.resamples": 100},
    )
    run_evaluation(settings, tmp_path / "whole")
    expected = contents(tmp_path / "whole")

    def check(place):
        assert contents(place / "run") == expected

    (tmp_path / "kills").mkdir()
    assert (
        killed_everywhere(lambda place: run_evaluation(settings, place / "run"), check, tmp_path / "kills")
        > 20
    )


RECIPE = """
plateau_steps = 0
{model}
[data.world]
name = "records"
tokens_per_step = 512
responses_per_step = 8
[curriculum]
lengths = [64, 128]
[optimizer]
max_steps = 40
learning_rate = 1e-3
[checkpoint]
save_steps = 4
"""
NEW = """
[model.new]
layers = 2
hidden = 16
"""
ADAPTERS = """
[model]
path = "{base}"
bf16 = true
lora.r = 2
[memory]
max_tokens_per_microbatch = 256
"""
MANY = [1, *range(5, 41, 4)]


@pytest.mark.parametrize(
    ("objective", "model", "moments"),
    [
        pytest.param("bradley-terry", NEW, [1, 17], id="full"),
        pytest.param("preference", ADAPTERS, [9], id="adapters"),
        pytest.param("bradley-terry", NEW, MANY, id="full-often", marks=pytest.mark.full),
        pytest.param("preference", ADAPTERS, MANY, id="adapters-often", marks=pytest.mark.full),
    ],
)
def test_a_training_killed_at_many_moments_ends_equal(tmp_path, objective, model, moments):
    """All weights in fp32; or adapters in bf16, with several micro-batches per step."""
    shape = ModelShape(hidden=16, heads=2, kv_heads=2, head_dim=8)
    save(new_language_model(shape, words_tokenizer(), seed=0), tmp_path / "base")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(model=model.format(base=tmp_path / "base")))
    command = ["train", objective, "--config", recipe, "--out"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    finish([*command, whole])
    held = [kill_when([*command, cut], cut / "steps.jsonl", moment) for moment in moments]
    assert 1 <= held[0] < 40, f"the kills came too late: {held}"
    finish([*command, cut])
    (weights,) = (path.relative_to(whole) for path in (whole / "model").glob("*.safetensors"))
    for name in ("steps.jsonl", "contexts.jsonl", "summary.json", weights):
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name


REINFORCED = """
[model]
path = "{base}"
[data.world]
name = "records"
tokens_per_step = 80
responses_per_step = 4
[curriculum]
lengths = [32, 40]
[loss]
beta = 0.1
[rollouts]
num_generations = 4
max_completion_length = 8
num_iterations = 3
reward_weights = {{ correct = 1.0, format = 0.1, consistent = 0.3, brief = 0.05 }}
soft_tokens = 8
[optimizer]
max_steps = 60
learning_rate = 1e-3
[checkpoint]
save_steps = 4
"""


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_a_training_by_reinforcement_killed_ten_times_ends_equal(tmp_path):
    """Five kills as soon as rollouts are logged, within the log of a step or before its update, and five after it."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(REINFORCED.format(base=make_verdict_writer(tmp_path / "base")))
    command = ["train", "grpo", "--config", recipe, "--out"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    finish([*command, whole])
    held = []
    for kill in range(10):
        if kill % 2:
            kill_when([*command, cut], cut / "steps.jsonl", 6 * kill, SIGNALS[kill % len(SIGNALS)])
        else:
            kill_when([*command, cut], cut / "rollouts.jsonl", 8 * kill + 1, SIGNALS[kill % len(SIGNALS)])
        held.append((count(cut / "rollouts.jsonl"), count(cut / "steps.jsonl")))
    assert len({*held}) >= 8, f"the kills came at the same moments: {held}"
    assert held[-1][1] < 60, f"the kills came too late: {held}"
    finish([*command, cut])
    (weights,) = (path.relative_to(whole) for path in (whole / "model").glob("*.safetensors"))
    for name in ("steps.jsonl", "rollouts.jsonl", "contexts.jsonl", "summary.json", weights):
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name
    assert count(whole / "rollouts.jsonl") == 4 * 20
