"""Ctrl-C and SIGTERM, sent to real processes: one line, whenever they come, and nothing half-made is left."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from longrm.data import write
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.reward_models.tiny_models import make_model

ENDINGS = {signal.SIGINT: ("interrupted", 130), signal.SIGTERM: ("terminated", 143)}
pytestmark = pytest.mark.full
BOTH = pytest.mark.parametrize("number", ENDINGS, ids=["ctrl-c", "sigterm"])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    write(path, generate(WorldPlan("records", 64), 2000, words_tokenizer()))
    return path


@contextmanager
def started(*arguments, **options):
    """A command, which is killed at the end if it still runs."""
    command = [sys.executable, "-m", "longrm", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def stopped(process, number, when):
    """Sends a signal as soon as a condition holds; returns the last line of the output."""
    deadline = time.monotonic() + 120
    while not when():
        assert process.poll() is None, f"ended before: {process.communicate()}"
        assert time.monotonic() < deadline
        time.sleep(0.005)  # another process is waited for
    process.send_signal(number)
    return last_line(process, number)


def from_documents(pairs, model):
    """The settings of a recipe in which a model answers the questions of some comparisons."""
    settings = (f"documents.path={pairs}", "documents.format=comparisons", f'writers=[{{model="{model}"}}]')
    return [word for setting in settings for word in ("--set", setting)]


def last_line(process, number):
    _, errors = process.communicate(timeout=60)
    word, status = ENDINGS[number]
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    (line,) = (line for line in errors.splitlines() if line.startswith("longrm: "))
    assert line.startswith(f"longrm: {word}")
    return line.removeprefix(f"longrm: {word}")


STOPPER = r"""
import os, sys

class Stopper:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            exec("os.kill(os.getpid(), {number})\nfor _ in range(9): len('')")  # as a dataclass is made
            {then}

sys.meta_path.insert(0, Stopper())
"""


@BOTH
@pytest.mark.parametrize("name", ["longrm.cli.commands", "click", "numpy", "pyarrow.parquet"])
def test_a_signal_while_the_command_is_imported_is_one_line(tmp_path, number, name):
    (tmp_path / "sitecustomize.py").write_text(STOPPER.format(name=name, number=int(number), then=""))
    path = os.pathsep.join([str(tmp_path), *sys.path])
    world = ("world", "records", "--length", 64, "--n", 3, "--out", tmp_path / "x.jsonl")
    with started(*world, env={**os.environ, "PYTHONPATH": path}) as process:
        assert last_line(process, number) in ("", "; the same command starts again from the beginning")


@BOTH
def test_a_signal_while_a_server_loads_its_model_is_one_line(tmp_path, number):
    """The loading thread is in native code, and Python aborts if it has to stop such a thread."""
    native = "import torch\n            while True: torch.ones(64, 64).mm(torch.ones(64, 64))"
    folder = tmp_path / "model"
    save(new_scorer(ModelShape(), words_tokenizer(), seed=0), folder)
    (tmp_path / "sitecustomize.py").write_text(
        STOPPER.format(name="transformers.activations", number=int(number), then=native)
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    server = ("serve", "--model", folder, "--port", 0)
    with started(*server, env={**os.environ, "PYTHONPATH": path}) as process:
        assert last_line(process, number) == "; the same command starts again from the beginning"


@BOTH
def test_an_interrupted_evaluation_continues_as_its_message_promises(tmp_path, pairs, number):
    log = tmp_path / "run" / "judgments.jsonl"
    arguments = (
        "evaluate",
        "--model",
        "baseline:random",
        "--bench",
        f"file:{pairs}",
        "--out",
        tmp_path / "run",
    )
    with started(*arguments) as process:
        line = stopped(process, number, lambda: log.exists() and log.stat().st_size)
    assert line == "; the same command continues where it stopped"
    held = log.read_bytes().count(b"\n")
    assert 0 < held < 2000
    with started(*arguments) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "continuing the evaluation" in errors
    assert log.read_bytes().count(b"\n") == 2000


@BOTH
@pytest.mark.parametrize("name", ["evaluate", "synthesize"])
def test_requests_in_flight_do_not_delay_the_end(tmp_path, pairs, number, name):
    with socket.create_server(("127.0.0.1", 0)) as server:  # which accepts, and never answers
        port = server.getsockname()[1]
        model = f"openai:http://127.0.0.1:{port}/v1#m"
        command = {
            "evaluate": ("evaluate", "--model", model, "--bench", f"file:{pairs}"),
            "synthesize": ("synthesize", "responses", *from_documents(pairs, model)),
        }[name]
        with started(*command, "--out", tmp_path / "run") as process:
            server.settimeout(60)
            asked, _ = server.accept()
            with asked:
                line = stopped(process, number, lambda: True)
    assert line == "; the same command continues where it stopped"


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    """A language model that never ends its text, which takes minutes."""
    folder = make_model(tmp_path_factory.mktemp("talker") / "model")
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(
            json.dumps(content | {"eos_token_id": None, "max_position_embeddings": 10**6})
        )
    return folder


@pytest.mark.parametrize("name", ["synthesize", "evaluate", "score", "attribute"])
def test_a_model_that_writes_a_long_text_stops_at_once(tmp_path, talker, pairs, name):
    long = ("--set", "judge.max_tokens=100000")
    command = {
        "synthesize": ("responses", *from_documents(pairs, talker), "--set", "max_tokens=100000"),
        "evaluate": ("--model", talker, "--bench", f"file:{pairs}", *long),
        "score": ("--model", talker, "--data", pairs, *long),
        "attribute": ("--model", talker, "--data", pairs, *long),
    }[name]
    with started(name, *command, "--out", tmp_path / "out.jsonl") as process:
        time.sleep(20)  # the model has been loaded, and writes
        assert process.poll() is None
        began = time.monotonic()
        line = stopped(process, signal.SIGINT, lambda: True)
        assert time.monotonic() - began < 15  # most of it is the end of Python on a busy machine
    assert line.startswith("; the same command starts again from the beginning, as ")
    assert ("batch=N" in line) == (name == "synthesize")
    assert not [*tmp_path.iterdir()]
