"""Colors: distinguishable by everyone, readable in light and dark."""

from itertools import pairwise

import pytest

from longrm.report.charts import HEAT_STEPS, Figure, heat_step, spread
from longrm.report.formatting import COLORS


def luminance(color: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_contrast(theme: int) -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    for text, grounds in {
        "ink": ("paper", "page", "notice", "mark", *(f"heat-{step}" for step in range(HEAT_STEPS))),
        "muted": ("paper", "page"),
        "accent": ("paper", "page"),
        "good": ("paper",),
        "bad": ("paper",),
    }.items():
        for ground in grounds:
            assert contrast(COLORS[text][theme], COLORS[ground][theme]) >= 4.5, (text, ground)
    for number in range(8):
        assert contrast(COLORS[f"stage-{number}"][theme], COLORS["paper"][theme]) >= 3


def test_light_colors_are_distinct_so_that_figures_can_be_recolored() -> None:
    assert len({light for light, _ in COLORS.values()}) == len(COLORS)
    drawn = Figure("", "", "", '<g fill="#ffffff" stroke="#0070b0">')
    assert drawn.inline == '<g fill="var(--paper)" stroke="var(--stage-3)">'


def test_heat_steps_turn_at_the_threshold() -> None:
    values = [0.0, 0.5, 0.6, 0.7, 0.7499, 0.75, 0.84, 0.95, 1.0]
    assert [heat_step(value, 0.5, 0.75) for value in values] == [0, 0, 1, 2, 2, 3, 4, 5, 5]


def test_labels_are_moved_apart_in_their_order_and_stay_in_the_plot() -> None:
    placed = spread([0.99, 0.5, 0.505, 1.0], 0.05)
    in_order = [placed[index] for index in (1, 2, 0, 3)]
    assert all(above - below >= 0.05 - 1e-9 for below, above in pairwise(in_order))
    assert in_order[0] == 0.5
    assert in_order[-1] == 1.0
