"""`docs/api.md` is read in the repository, too: it has the public API, with signatures."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import longrm

pytestmark = pytest.mark.full

PAGE = (Path(__file__).parents[2] / "docs/api.md").read_text()


@pytest.mark.parametrize("name", longrm.__all__)
def test_everything_offered_is_there_with_its_parameters(name):
    section = PAGE.partition(f"### `longrm.{name}`\n")[2].partition("\n### ")[0]
    offered = getattr(longrm, name)
    functions = (
        [getattr(offered, one) for one in ("score", "rank", "judge")]
        if inspect.isclass(offered)
        else [offered]
    )
    for function in functions:
        wanted = [one for one in inspect.signature(function).parameters if one != "self"]
        assert all(f"{parameter}: " in section for parameter in wanted)
        assert " -> " in section


NAMES = re.findall(r"^###+ `(longrm\.[\w.]+)`$", PAGE, re.MULTILINE)


def test_every_heading_can_be_used():
    """In the page's order and in reverse: what one name imports must not hide another."""
    program = """
import pkgutil, sys, longrm
assert not {"torch", "numpy", "pyarrow"} & {*sys.modules}
assert {"data", "types", *longrm.__all__} <= {*dir(longrm)}
for name in sys.argv[1:]:
    own = name.startswith(("longrm.data.", "longrm.types."))
    found = eval(name) if own else pkgutil.resolve_name(name)
    assert callable(found), name
"""
    assert len(NAMES) > len(longrm.__all__) + 10
    for order in (NAMES, NAMES[::-1]):
        done = subprocess.run([sys.executable, "-c", program, *order], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
