"""One name stands for one thing: public types and modules are called differently all over the package."""

import ast
from collections import defaultdict
from pathlib import Path

import longrm

SOURCE = Path(longrm.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

SHARED_TYPES: dict[str, str] = {}
"""Names of types that stand in several modules, each with the reason."""

SHARED_MODULES: dict[str, str] = {}
"""Names of modules that stand in several packages, each with the reason."""

NAMED_AFTER_THEIR_ENTRY = ("cli.", "report.sections.", "evaluation.rules.", "synthesis.recipes.")
"""Packages whose modules are called as what they stand for: a command, a section's subject, a benchmark's rule."""


def module_of(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def types_of(tree: ast.Module):
    """Public classes and aliases of types that a module defines at its top level."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name[0].isupper() and not name.isupper():
                yield name


def shared(names):
    """Public names with all modules that define them, where these are several."""
    places = defaultdict(list)
    for name, module in names:
        if not name.startswith("_"):
            places[name].append(module)
    return {name: modules for name, modules in places.items() if len(modules) > 1}


def test_a_public_type_has_a_name_of_its_own():
    found = shared(
        (name, module_of(file)) for file in FILES for name in types_of(ast.parse(file.read_text()))
    )
    assert found.keys() == SHARED_TYPES.keys(), found


def test_a_module_has_a_name_of_its_own():
    modules = [module_of(file) for file in FILES if module_of(file)]
    free = [module for module in modules if not module.startswith(NAMED_AFTER_THEIR_ENTRY)]
    found = shared((module.rpartition(".")[2], module) for module in free)
    assert found.keys() == SHARED_MODULES.keys(), found


def test_a_name_that_stands_twice_is_seen():
    one, other = ast.parse("class Row: ..."), ast.parse("Row = list[int]\n_Own = 1\nMOST = 2")
    assert shared([(name, "a") for name in types_of(one)] + [(name, "b") for name in types_of(other)]) == {
        "Row": ["a", "b"]
    }
