"""Numbers and findings in words, against sentences written by hand."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longrm.evaluation.metrics import Metric
from longrm.report import wording
from longrm.report.material import Material, read


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (wording.percent(0.9734), "97.3%"),
        (wording.percent(None), "–"),
        (wording.percent(float("nan")), "–"),
        (wording.points(-0.0312), "−3.1"),
        (wording.points(0.5), "+50.0"),
        (wording.points(-0.0001), "0.0"),
        (wording.decimal(-0.634), "−0.63"),
        (wording.tokens(4096), "4,096"),
        (wording.tokens(370.6), "371"),
        (wording.short_tokens(131072), "128K"),
        (wording.short_tokens(1500), "1,500"),
        (wording.seconds(51.26), "51.3 s"),
        (wording.seconds(300), "5.0 min"),
        (wording.seconds(9000), "2.5 h"),
        (wording.percent_interval(Metric(0.5, 0.25, 1.0, 4, 4)), "[25.0, 100.0]"),
        (wording.percent_interval(Metric(None, None, None, 0, 0)), ""),
    ],
)
def test_numbers(written: str, expected: str) -> None:
    assert written == expected


def boundary(status: str, at_least: int | None, below: int | None, value: float | None) -> dict[str, Any]:
    place = "within_range" if value else "beyond_range" if status == "beyond_range" else "below_range"
    ends = {"low": value and value - 30, "high": value and value + 40}
    places = {f"{end}_place": place for end in ("value", "low", "high")}
    return {
        "tau": 0.75,
        "status": status,
        "at_least": at_least,
        "below": below,
        "estimate": {"value": value} | ends | places,
        "effective_n": {"128": 300.0, "4096": 300.0},
    }


@pytest.fixture
def material(demo: Path) -> Material:
    return read([demo])


def told(material: Material, short: dict[str, Any], long: dict[str, Any], gap: dict[str, Any] | None) -> str:
    """The finding of a demo with these boundaries and this difference at 4,096 tokens."""
    changed = {"short": short, "long": long}
    stages = tuple(
        replace(stage, summary={**stage.summary, "boundary": changed.get(stage.label, short)})
        for stage in material.stages
    )
    demo = copy.deepcopy(dict(material.demo or {}))
    demo["contrasts"] = {"long_vs_control_short": {"by_length": {"128": gap, "4096": gap}}} if gap else {}
    return wording.finding(replace(material, stages=stages, demo=demo))


def test_the_finding_follows_the_data(material: Material) -> None:
    moved = told(
        material,
        boundary("resolved", 256, 512, 370.0),
        boundary("beyond_range", 4096, None, None),
        {"value": 0.413, "low": 0.37, "high": 0.46, "n": 512, "groups": 64},
    )
    assert moved == (
        "Trained on short contexts, the model falls through 75% near 370 tokens [340, 410]; trained on long ones "
        "too, it holds 75% or more up to 4,096 tokens, the longest length tested; at 4,096 tokens that is "
        "41.3 points [37.0, 46.0] above equal training on short data."
    )
    unmoved = told(
        material,
        boundary("below_range", None, 128, None),
        boundary("unresolved", 128, None, 900.0),
        {"value": 0.01, "low": -0.02, "high": 0.04, "n": 512, "groups": 64},
    )
    assert unmoved == (
        "Trained on short contexts, the model is below 75% already at 128 tokens, the shortest length tested; "
        "trained on long ones too, it holds 75% up to 128 tokens, with its boundary unresolved by these data, but "
        "no difference from equal training on short data is resolved (+1.0 points [−2.0, +4.0] at 4,096 tokens)."
    )
    worse = {"value": -0.2, "low": -0.3, "high": -0.1, "n": 512, "groups": 64}
    lost = told(
        material, boundary("unresolved", 128, 512, 300.0), boundary("unresolved", None, None, None), worse
    )
    assert "holds 75% up to 128 tokens and is below it from 512 on, with its boundary unresolved" in lost
    assert "is not shown to hold 75% at any length" in lost
    assert "20.0 points [10.0, 30.0] below equal training" in lost
    assert told(
        material, boundary("resolved", 128, 512, 300.0), boundary("beyond_range", 4096, None, None), None
    )


def test_a_boundary_outside_the_lengths_says_on_which_side() -> None:
    assert wording.boundary_estimate(boundary("beyond_range", 4096, None, None)) == "> 4,096"
    assert wording.boundary_estimate(boundary("below_range", None, 128, None)) == "< 128"
    assert wording.boundary_interval(boundary("below_range", None, 128, None)) == ""
    half = boundary("unresolved", 128, None, 900.0)
    half["estimate"] |= {"high": None, "high_place": "beyond_range"}
    assert wording.boundary_estimate(half) == "≈ 900"
    assert wording.boundary_interval(half) == "[870, > 4,096]"


def test_material_of_a_demo_keeps_the_order_of_stages(material: Material, demo: Path) -> None:
    assert [stage.label for stage in material.stages] == ["untrained", "short", "control", "long"]
    assert [run.label for run in material.trained] == ["short", "control", "long"]
    looks = {(stage.style.color, stage.style.dash, stage.style.shape) for stage in material.stages}
    assert all(len({look[part] for look in looks}) == 4 for part in range(3))
    stored = json.loads((demo / "summary.json").read_text())
    held = stored["stages"]["short"]["metrics"]["by_length"]["512"]["pair_accuracy"]["value"]
    assert material.stages[1].by_length("pair_accuracy")[512].value == held
