"""The pictures of the documentation: drawn from their script, for light and for dark pages, and small."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

DOCS = Path(__file__).parents[2] / "docs"


def test_the_diagrams_are_those_of_their_script():
    spec = importlib.util.spec_from_file_location("diagrams", DOCS / "diagrams.py")
    diagrams = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(diagrams)
    for name in diagrams.DIAGRAMS:
        for path, svg in diagrams.draw(name).items():
            assert path.read_text() == svg, f"run {spec.origin}"


def test_every_picture_has_a_dark_one_and_screenshots_are_small():
    pictures = [*DOCS.glob("*.svg"), *DOCS.glob("images/*.png")]
    light = [path for path in pictures if not path.stem.endswith("-dark")]
    dark = {path.with_stem(f"{path.stem}-dark") for path in light}
    assert {*pictures} == {*light} | dark
    sizes = [path.stat().st_size for path in pictures if path.suffix == ".png"]
    assert max(sizes) <= 150_000
    assert sum(sizes) <= 600_000
