import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def spawn():
    """Runs a script as several processes that talk over gloo, as a launcher starts them; all must end as expected."""

    def start(count, *command, ends=None, seconds=1500):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
        told["GLOO_SOCKET_IFNAME"] = "lo"
        started = [
            subprocess.Popen(
                [sys.executable, *map(str, command)],
                env=os.environ | told | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(count)
        ]
        try:
            outputs = [one.communicate(timeout=seconds)[0] for one in started]
        finally:
            for one in started:
                one.kill()
        assert [one.returncode for one in started] == (ends or [0] * count), "\n".join(outputs)
        return outputs

    return start


@pytest.fixture(scope="session")
def train_all(spawn, tmp_path_factory):
    """Runs many trainings in one spawned group: entries as `trainings.py` has them."""

    def start(count, entries, **expected):
        plan = tmp_path_factory.mktemp("plan") / "plan.json"
        told = [entry | {"recipe": entry["recipe"].to_dict(), "out": str(entry["out"])} for entry in entries]
        plan.write_text(json.dumps(told))
        return spawn(count, HERE / "trainings.py", plan, **expected)

    return start


@pytest.fixture(scope="session")
def gradients():
    """The script whose processes compute the gradients of a step."""
    spec = importlib.util.spec_from_file_location("gradients", HERE / "gradients.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
