"""The rules of the house that a machine can keep."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import longrm

SOURCE = Path(longrm.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))


def test_no_folder_is_named_after_nothing():
    forbidden = {"utils", "base", "common", "helpers", "manager"}
    assert not forbidden & {
        part for file in FILES for part in (file.stem, *file.relative_to(SOURCE).parts[:-1])
    }


def test_every_exemption_from_a_check_states_its_reason():
    bare = re.compile(r"#\s*(noqa(:\s*[A-Z0-9, ]+)?|type:\s*ignore(\[[a-z-, ]+\])?)\s*$")
    found = [
        f"{file.name}: {line.strip()}"
        for file in FILES
        for line in file.read_text().splitlines()
        if bare.search(line)
    ]
    assert not found


def test_a_system_that_is_not_posix_is_told_at_import():
    windows = "import os; os.name = 'nt'; import longrm.cli.main"
    done = subprocess.run([sys.executable, "-c", windows], capture_output=True, text=True)
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert last == "ImportError: longrm needs a POSIX system (Linux, macOS); on Windows use it within WSL"
    (classifiers,) = re.findall(
        r"classifiers = \[(.*?)\]", (SOURCE.parents[1] / "pyproject.toml").read_text(), re.S
    )
    assert '"Operating System :: POSIX"' in classifiers


def test_the_public_names_are_few_and_exist():
    assert longrm.__all__ == [
        "RewardModel",
        "audit",
        "compare",
        "evaluate",
        "load",
        "probe",
        "read_run",
        "reward_function",
    ]
    assert all(hasattr(longrm, name) for name in longrm.__all__)


@pytest.mark.parametrize(
    "module",
    [
        "longrm",
        "longrm.benchmarks.answer_metrics",
        "longrm.benchmarks",
        "longrm.clients.openai",
        "longrm.data",
        "longrm.demo",
        "longrm.evaluation.metrics",
        "longrm.evaluation.evaluation_run",
        "longrm.judging",
        "longrm.auditing",
        "longrm.modeling.folders",
        "longrm.report",
        "longrm.reward_models.compress",
        "longrm.reward_models.recorded",
        "longrm.reward_models.generative",
        "longrm.reward_models.simulated",
        "longrm.serving.server",
        "longrm.synthesis.recipes.short_to_long",
        "longrm.synthesis.benchmark_rows",
        "longrm.synthesis.recipes.distill",
        "longrm.synthesis.recipes.vote",
        "longrm.worlds",
    ],
)
def test_what_needs_no_model_imports_no_torch(module):
    probe = f"import sys, {module}; assert not {{'torch', 'transformers'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_probe_for_torch_can_fail():
    probe = "import sys, longrm.modeling.heads; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode == 1
