"""`docs/api.md` is read in the repository, too: it has the public API, with signatures."""

import inspect
from pathlib import Path

import pytest

import longrm

PAGE = (Path(__file__).parents[2] / "docs/api.md").read_text()


@pytest.mark.parametrize("name", longrm.__all__)
def test_everything_offered_is_there_with_its_parameters(name):
    section = PAGE.partition(f"### `longrm.{name}`\n")[2].partition("\n### ")[0]
    offered = getattr(longrm, name)
    functions = (
        [getattr(offered, one) for one in ("score", "rank", "attribute", "judge")]
        if inspect.isclass(offered)
        else [offered]
    )
    for function in functions:
        wanted = [one for one in inspect.signature(function).parameters if one != "self"]
        assert all(f"{parameter}: " in section for parameter in wanted)
        assert " -> " in section
