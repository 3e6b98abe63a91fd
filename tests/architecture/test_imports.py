"""What may be imported where: torch only where tensors are used, and nothing slow for help texts."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import longrm

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
    "longrm.reporting",
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


ROOT = Path(longrm.__file__).parent
FILES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All that is executed at some time, in functions too; not what only type checkers read."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from statements(child)


def imports(tree: ast.Module) -> set[str]:
    """The modules of the package that a file imports."""
    found = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if name in FILES else node.module for name in names)
    return found & FILES.keys() - {"longrm"}


def test_no_module_imports_itself_by_way_of_others():
    graph = {name: imports(ast.parse(path.read_text())) for name, path in FILES.items() if name != "longrm"}
    assert sum(map(len, graph.values())) > 1000
    [*TopologicalSorter(graph).static_order()]  # raises a CycleError that lists the modules
    graph["longrm.types"].add("longrm.cli.train")
    with pytest.raises(CycleError):
        [*TopologicalSorter(graph).static_order()]


def test_every_import_is_seen_by_the_checks_of_layers_and_cycles():
    """Only the public names of the package are imported by their names as strings."""
    hidden = [
        name
        for name, path in FILES.items()
        if name != "longrm" and ("import_module" in path.read_text() or "__import__" in path.read_text())
    ]
    assert hidden == []
