"""Changes one module in one place at a time and runs its tests: which changes does no test notice?

    python tests/mutants.py src/longrm/training/losses.py tests/training/test_*_losses.py --out tests/mutants.jsonl

Every mutant runs in a fork of a process that has the large libraries loaded, on a copy of `src/`. Survivors are
written to a file and printed; many are equivalent (a tolerance, a chunk size), so look at each before adding a test.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
SWAPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def changed(node: ast.AST) -> ast.AST | None:
    """The node with one change, or None if there is none for it."""
    new = copy.copy(node)
    match node:
        case ast.Compare(ops=[op, *rest]) if type(op) in SWAPPED:
            new.ops = [SWAPPED[type(op)](), *rest]
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPPED:
            new.op = SWAPPED[type(op)]()
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return node.operand
        case ast.Constant(value=bool(value)):
            new.value = not value
        case ast.Constant(value=int(value) | float(value)):
            new.value = value + 1
        case ast.Return(value=ast.expr()):
            new.value = ast.Constant(None)
        case ast.If() | ast.IfExp():
            new.test = ast.UnaryOp(ast.Not(), node.test)
        case _:
            return None
    return new


def places(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Parent, field and index of every node whose change could show; types and messages are not among them."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params") or isinstance(
            node, ast.Raise | ast.Assert
        ):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                yield node, field, index
                yield from places(child)


def mutants(source: str, limit: int, seed: int) -> Iterator[tuple[int, str, str, str]]:
    """Line, text before and after, and the source of the module with this change."""
    tree = ast.parse(source)
    found = []
    for parent, field, index in places(tree):
        value = getattr(parent, field)
        node = value if index is None else value[index]
        new = changed(node)
        if new is not None:
            found.append((parent, field, index, node, new))
    for parent, field, index, node, new in random.Random(seed).sample(found, min(limit, len(found))):
        replace(parent, field, index, new)
        yield (
            node.lineno,
            *(ast.unparse(one).partition("\n")[0] for one in (node, new)),
            ast.unparse(ast.fix_missing_locations(tree)),
        )
        replace(parent, field, index, node)


def replace(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def passes(tests: list[str], folder: Path, seconds: float) -> bool | None:
    """Whether the tests pass with the package in `folder`; None if they take longer."""
    child = os.fork()
    if child == 0:
        os.setsid()  # so that what the tests start ends with them
        quiet = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(quiet, descriptor)
        sys.path.insert(0, str(folder))
        os.environ["PYTHONPATH"] = str(folder)
        import pytest

        code = 3
        try:
            # Libraries that pytest would have rewritten for its messages are imported already.
            quietly = ["-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
            code = int(pytest.main(["-x", *quietly, *tests]))
        finally:
            os._exit(code)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("module", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--limit", type=int, default=30, help="mutants at most (default: 30)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSONL file, in which the lines of this module are replaced")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    for name in ("tests.conftest", "torch", "transformers", "altair", "scipy.stats"):
        import_module(name)  # once for all forks; the first sets the environment of the others

    module = options.module.resolve().relative_to(ROOT / "src")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(
            ROOT / "src", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        target = Path(folder) / module
        source = target.read_text(encoding="utf-8")
        target.write_text(ast.unparse(ast.parse(source)), encoding="utf-8")
        began = time.monotonic()
        assert passes(options.tests, Path(folder), 600), "the tests fail without a change"
        seconds = 30 + 5 * (time.monotonic() - began)
        lines, counts = [], {"killed": 0, "survived": 0, "timed_out": 0}
        for line, before, after, text in mutants(source, options.limit, options.seed):
            target.write_text(text, encoding="utf-8")
            passed = passes(options.tests, Path(folder), seconds)
            outcome = "timed_out" if passed is None else "survived" if passed else "killed"
            counts[outcome] += 1
            if passed:
                lines.append({"module": str(module), "line": line, "before": before, "after": after})
                print(f"{module}:{line}: {before}  ->  {after}", flush=True)
    lines.insert(0, {"module": str(module), "tests": options.tests, **counts})
    print(json.dumps(lines[0]))
    if options.out:
        old = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
        kept = [one for one in old if json.loads(one)["module"] != str(module)]
        options.out.write_text(
            "".join(f"{one}\n" for one in [*kept, *map(json.dumps, lines)]), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
