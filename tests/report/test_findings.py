"""Findings in words, against sentences written by hand."""

import copy
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from longrm.evaluation.diagnosis import Status
from longrm.report import findings
from longrm.report.material import Evaluated, Material, read
from longrm.report.palette import Style


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
    return findings.finding(replace(material, stages=stages, demo=demo))


def test_the_finding_follows_the_data(material: Material, synthetic: ModuleType) -> None:
    boundary = synthetic.boundary
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
    other = told(
        material, boundary("rising", None, 128, None), boundary("not_monotone", 128, 512, None), None
    )
    assert other == (
        "Trained on short contexts, the model is below 75% at 128 tokens and holds it at a longer length, so there is "
        "no context boundary; trained on long ones too, it holds 75% up to 128 tokens, is below it at 512 and holds it "
        "at a longer length, so there is no single context boundary."
    )
    unfitted = boundary("unresolved", 128, 512, None)
    unfitted["estimate"] |= {f"{end}_place": "undefined" for end in ("value", "low", "high")}
    assert "holds 75% up to 128 tokens and is below it at 512, with its boundary unresolved" in told(
        material, unfitted, unfitted, None
    )


def test_every_status_of_a_boundary_is_told_and_an_unknown_one_is_an_error(
    material: Material, synthetic: ModuleType
) -> None:
    said = {
        told(
            material,
            synthetic.boundary(status, 128, 512, 300.0),
            synthetic.boundary("beyond_range", 4096, None, None),
            None,
        )
        for status in get_args(Status)
    }
    assert len(said) == len(get_args(Status))
    with pytest.raises(ValueError, match="status 'sideways' of a boundary"):
        told(material, *[synthetic.boundary("sideways", 128, 512, 300.0)] * 2, None)


def metric(value: float, low: float, high: float, n: int = 120) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "n": n, "groups": n}


def summary(**changes: Any) -> dict[str, Any]:
    """The part of a summary that the sentences are about: nothing is wrong, nothing was asked twice."""
    outcomes = {"answered": 120, "unparsed": 0, "refused": 0, "truncated": 0, "too_long": 0, "error": 0}
    return {
        "model": "judge",
        "bench": "probe",
        "complete": True,
        "counts": {"comparisons": 120, "outcomes": outcomes, "cut": {"comparisons": 0, "tokens": 0}},
        "chance": {"pair_accuracy": 0.5},
        "metrics": {"overall": {"pair_accuracy": metric(0.625, 0.55, 0.7)}},
        "accuracy": {"strict": metric(0.625, 0.55, 0.7)},
        "position": None,
        "baselines": {},
        "boundary": None,
    } | changes


@pytest.mark.parametrize(
    ("low", "high", "side"), [(0.55, 0.7, "above"), (0.3, 0.7, "not told from"), (0.3, 0.45, "below")]
)
def test_accuracy_is_told_against_chance(low: float, high: float, side: str) -> None:
    said = findings.accuracy(summary(accuracy={"strict": metric(0.4, low, high)}))
    assert said == (
        f"Pair accuracy 40.0% [{100 * low:.1f}, {100 * high:.1f}] on 120 comparisons, {side} chance (50.0%)."
    )


def test_accuracy_of_nothing_is_said_to_be_none() -> None:
    none = dict.fromkeys(("value", "low", "high")) | {"n": 0, "groups": 0}
    assert findings.accuracy(summary(accuracy={"strict": none})).startswith(
        "No judgment has a known gold order"
    )


def test_a_model_that_does_not_beat_a_baseline_is_said_not_to() -> None:
    beaten = {"difference": metric(0.2, 0.1, 0.3), "beaten": True}
    not_beaten = {"difference": metric(-0.012, -0.05, 0.026), "beaten": False}
    cases = {
        "Beats longest.": {"longest": beaten},
        "Beats longest and overlap.": {"longest": beaten, "overlap": beaten},
        "Beats overlap; does not beat longest (−1.2 points [−5.0, +2.6]).": {
            "longest": not_beaten,
            "overlap": beaten,
        },
        "Does not beat longest (−1.2 points [−5.0, +2.6]).": {"longest": not_beaten},
        "": {},
    }
    for said, beside in cases.items():
        assert findings.baselines(summary(baselines=beside)) == said


def test_missing_verdicts_and_cuts_are_told_and_errors_are_not_taken_for_them() -> None:
    assert findings.missing(summary()) == findings.cuts(summary()) == ""
    outcomes = {"answered": 110, "unparsed": 6, "refused": 0, "truncated": 0, "too_long": 1, "error": 3}
    counts = {"comparisons": 120, "outcomes": outcomes, "cut": {"comparisons": 1, "tokens": 3400}}
    held = summary(counts=counts)
    assert (
        findings.missing(held)
        == "7 of 120 comparisons without a verdict, counted as wrong: 6 unparsed, 1 too long."
    )
    assert findings.cuts(held) == "1 context cut to fit, by 3,400 tokens in all."


def test_order_is_told_where_it_was_asked() -> None:
    undefined = dict.fromkeys(("value", "low", "high")) | {"n": 0, "groups": 0}
    both = {"consistency": metric(0.8, 0.7, 0.9), "first_wins": metric(0.6, 0.5, 0.7)}
    assert findings.order(summary()) == ""
    assert (
        findings.order(summary(position=both))
        == "The same verdict in every order 80.0% [70.0, 90.0]; the first shown preferred 60.0% [50.0, 70.0]."
    )
    assert (
        findings.order(summary(position=both | {"first_wins": undefined}))
        == "The same verdict in every order 80.0% [70.0, 90.0]."
    )


def test_rules_and_wrong_data_are_told() -> None:
    found = {
        "rising_scores": {"what": "items whose scores rise", "count": 3, "examples": ["Cite/1"]},
        "duplicates": {"what": "comparisons that came before", "count": 0, "examples": []},
        "no_clear_gap": {"what": "questions without a clear gap; left out", "count": 9, "examples": []},
    }
    held = summary(
        bench="judgebench:/data/x/pairs.jsonl",
        judgebench_rule={"overall_percent": 62.2857},
        audit={"comparisons": 120, "findings": found},
    )
    assert findings.rules(held) == ["JudgeBench's own rule: 62.29%."]
    assert findings.wrong_data(held) == ["judgebench:pairs.jsonl: items whose scores rise (3)."]
    assert findings.rules(summary()) == findings.wrong_data(summary()) == []


def test_runs_on_different_data_are_not_to_be_compared() -> None:
    one, same, other = (
        Evaluated(name, Style(0), summary(bench=bench), None)
        for name, bench in (("a", "probe"), ("b", "probe"), ("c", "leval:/data/leval"))
    )
    assert findings.different_data([one, same]) == ""
    assert (
        findings.different_data([one, same, other])
        == "Not judged on the same data, so not to be compared: probe and leval:leval."
    )


def test_of_many_models_the_first_are_told_and_the_others_counted() -> None:
    stages = tuple(Evaluated(f"run {n}", Style(n), summary(model=f"model-{n}"), None) for n in range(10))
    material = Material((), stages, (), ())
    assert [entry.label for entry in findings.told(material)] == [f"run {n} · model-{n}" for n in range(8)]
    assert findings.finding(material) == "2 more models in the tables below."
