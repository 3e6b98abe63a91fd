"""The figures show the numbers of the summary: positions in the drawing are read back as values."""

import re
from types import ModuleType
from typing import Any

import pytest

from longrm.reporting import charts
from longrm.reporting.formatting import COLORS
from longrm.reporting.load import Model, load_report

ACCURACIES = (0.99, 0.9, 0.8, 0.7, 0.6, 0.5)


@pytest.fixture(scope="module")
def evaluated(
    synthetic: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Model, dict[str, Any]]:
    """A model whose accuracy falls with the length, and its summary."""
    folder = tmp_path_factory.mktemp("charts") / "run"
    summary = synthetic.write_evaluation(folder, synthetic.judgments(ACCURACIES, 0))
    (model,) = load_report([folder]).models
    return model, summary


def marks(svg: str, kind: str) -> list[tuple[str, str]]:
    """Label and tag of every mark of a kind, in the order of drawing."""
    tags = re.findall(r"<[^>]*aria-label=[^>]*>", svg)
    return [(re.search(r'aria-label="([^"]*)"', tag)[1], tag) for tag in tags if f'"{kind}"' in tag]


def place(tag: str) -> tuple[float, float]:
    x, y = re.search(r"translate\(([-\d.]+),([-\d.]+)\)", tag).groups()
    return float(x), float(y)


@pytest.mark.parametrize("width", [charts.WIDE, charts.NARROW])
def test_points_are_at_the_accuracies_of_the_summary(
    evaluated: tuple[Model, dict[str, Any]], width: int
) -> None:
    model, summary = evaluated
    svg = charts.accuracy([model], "pair_accuracy", width).svg
    # The lines of chance (50%) and threshold (75%) measure the axis.
    level = {float(label.removeprefix("at: ")): place(tag)[1] for label, tag in marks(svg, "rule mark")}
    scale = (0.75 - 0.5) / (level[0.75] - level[0.5])
    assert scale < 0, "a higher accuracy is higher on the page"
    places = [place(tag) for _, tag in marks(svg, "point")]
    assert places == sorted(places), "longer contexts are at the right"
    true = summary["metrics"]["by_length"]
    drawn = [0.5 + scale * (y - level[0.5]) for _, y in places]
    assert drawn == pytest.approx(
        [true[length]["pair_accuracy"]["value"] for length in sorted(true, key=int)]
    )
    # The band: the upper limits from right to left, after the lower ones from left to right.
    ((_, band),) = marks(svg, "area mark")
    path = re.findall(r"([-\d.]+),([-\d.]+)", re.search(r' d="([^"]*)"', band)[1])
    limits = [0.5 + scale * (float(y) - level[0.5]) for _, y in path]
    lows, highs = limits[: len(true)], limits[len(true) :][::-1]
    for name, found in (("low", lows), ("high", highs)):
        expected = [true[length]["pair_accuracy"][name] for length in sorted(true, key=int)]
        assert found == pytest.approx(expected, abs=2e-5)


def test_cells_of_the_heat_map_are_blue_above_the_threshold(evaluated: tuple[Model, dict[str, Any]]) -> None:
    model, summary = evaluated
    svg = charts.heat_map(model, "pair_accuracy", 0).svg
    steps = {COLORS[f"heat-{step}"][0]: step for step in range(charts.HEAT_STEPS)}
    cells = {}
    for label, tag in marks(svg, "rect mark"):
        length, depth = re.search(r"tokens: ([\d,]+); depth \(0 = start\): ([\d.-]+)", label).groups()
        cells[length.replace(",", ""), depth] = steps[re.search(r'fill="(#\w+)"', tag)[1]]
    table = summary["metrics"]["by_length_and_depth"]
    values = {
        (length, depth): found["pair_accuracy"]["value"]
        for length, by_depth in table.items()
        for depth, found in by_depth.items()
    }
    assert cells.keys() == values.keys()
    for key, value in values.items():
        assert (cells[key] >= charts.HEAT_STEPS // 2) == (value >= 0.75), key
    # The steps follow the values.
    ordered = [cells[key] for key in sorted(values, key=values.get)]
    assert ordered == sorted(ordered)
    assert {0, charts.HEAT_STEPS - 1} <= {*ordered}
