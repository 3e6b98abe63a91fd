"""Numbers in words, against words written by hand."""

import json
from dataclasses import replace
from importlib.resources import files
from types import ModuleType
from typing import get_args

import pytest

from longrm.evaluation import wording
from longrm.evaluation.summaries import BoundaryStatus, CrossingSide
from longrm.runs.records import Estimate


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
        (wording.published(62.2857), "62.29%"),
        (wording.published(None), "–"),
        (wording.plural(1, "pair"), "1 pair"),
        (wording.plural(1200, "pair"), "1,200 pairs"),
        (wording.listed([]), ""),
        (wording.listed(["a"]), "a"),
        (wording.listed(["a", "b", "c"]), "a, b and c"),
        (wording.percent_interval(Estimate(0.5, 0.25, 1.0, 10, 10)), "[25.0, 100.0]"),
        (wording.percent_interval(Estimate(0.5, 0.25, 1.0, 90, 9)), "[25.0, 100.0]†"),
        (wording.percent_interval(Estimate(None, None, None, 0, 0)), ""),
    ],
)
def test_numbers(written: str, expected: str) -> None:
    assert written == expected


def test_a_boundary_outside_the_lengths_says_on_which_side(synthetic: ModuleType) -> None:
    boundary = synthetic.boundary
    assert wording.boundary_estimate(boundary("beyond_range", 4096, None, None)) == "> 4,096"
    assert wording.boundary_estimate(boundary("below_range", None, 128, None)) == "< 128"
    assert wording.boundary_interval(boundary("below_range", None, 128, None)) == ""
    half = boundary("unresolved", 128, None, 900.0)
    half = replace(half, estimate=replace(half.estimate, high=None, high_place="beyond_range"))
    assert wording.boundary_estimate(half) == "≈ 900"
    assert wording.boundary_interval(half) == "[870, > 4,096]"
    none = boundary("rising", None, 128, None)
    assert (wording.boundary_estimate(none), wording.boundary_interval(none)) == ("–", "")


def test_every_status_and_place_of_a_boundary_has_words_and_stands_in_the_schema() -> None:
    assert tuple(wording.STATUSES) == get_args(BoundaryStatus)
    schema = json.loads((files("longrm.runs") / "summary.schema.json").read_text())["$defs"]
    assert tuple(schema["ContextBoundary"]["properties"]["status"]["enum"]) == get_args(BoundaryStatus)
    sides = schema["Crossing"]["properties"]["value_place"]["enum"]
    assert tuple(sides) == get_args(CrossingSide)


def test_names_that_would_be_cut_to_the_same_stay_whole() -> None:
    names = ["beginning-one-ending", "beginning-two-ending", "a-third-that-differs-early", "short"]
    found = wording.shortened_apart(names, 14)
    assert found == {names[0]: names[0], names[1]: names[1], names[2]: "a-third…-early", "short": "short"}
