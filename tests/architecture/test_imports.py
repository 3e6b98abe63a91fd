"""What may be imported where: torch only where tensors are used, and nothing slow for help texts."""

import subprocess
import sys

PROGRAM = """
import contextlib, io, sys
import click
from longrm.cli.commands import cli

def show_help(command, words):
    with contextlib.redirect_stdout(io.StringIO()):
        cli.main([*words, "--help"], prog_name="longrm", standalone_mode=False)
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            show_help(command.get_command(click.Context(command), name), [*words, name])

show_help(cli, [])
"""
SLOW = ["numpy", "scipy", "pyarrow", "jinja2", "httpx", "tokenizers", "pandas", "altair"]
MODELS = ["torch", "transformers", "safetensors", "accelerate"]
WITHOUT_TORCH = [
    "longrm",
    "longrm.auditing",
    "longrm.benchmarks",
    "longrm.clients.openai",
    "longrm.data",
    "longrm.demo",
    "longrm.evaluation.evaluate",
    "longrm.evaluation.metrics",
    "longrm.judging",
    "longrm.modeling.folders",
    "longrm.report",
    "longrm.reward_models.wrappers",
    "longrm.reward_models.generative",
    "longrm.reward_models.recorded",
    "longrm.reward_models.simulated",
    "longrm.serving.server",
    "longrm.synthesis.recipes.distill",
    "longrm.synthesis.recipes.short_to_long",
    "longrm.synthesis.recipes.vote",
    "longrm.worlds",
]


def imported(program, packages):
    """Which of the packages a program has imported at its end."""
    program += f"\nimport sys; print([name for name in {packages} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_help_texts_import_nothing_slow():
    assert imported(PROGRAM, SLOW + MODELS) == "[]"


def test_modules_without_tensors_import_no_torch():
    assert imported(f"import {', '.join(WITHOUT_TORCH)}", ["torch", "transformers"]) == "[]"
    assert imported("import longrm.modeling.shared_prefix", ["torch"]) == "['torch']"  # negative control


def test_importing_on_windows_is_an_error_that_names_wsl():
    windows = "import os; os.name = 'nt'; import longrm.cli.main"
    done = subprocess.run([sys.executable, "-c", windows], capture_output=True, text=True)
    assert done.returncode == 1
    assert "WSL" in done.stderr.splitlines()[-1]
