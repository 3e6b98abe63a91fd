"""Run folders as the report sees them."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from longrm.report.load import DISCRIMINATIVE, GENERATIVE, defined, load_report, short_name
from longrm.runs.records import UNDEFINED, Estimate


def test_material_of_a_demo_keeps_the_order_of_stages(demo: Path) -> None:
    material = load_report([demo])
    assert [stage.label for stage in material.stages] == ["untrained", "short", "control", "long"]
    assert [run.label for run in material.trained] == ["short", "control", "long"]
    looks = {(stage.style.color, stage.style.dash, stage.style.shape) for stage in material.stages}
    assert all(len({look[part] for look in looks}) == 4 for part in range(3))
    stored = json.loads((demo / "summary.json").read_text())
    held = stored["stages"]["short"]["metrics"]["by_length"]["512"]["pair_accuracy"]["value"]
    assert material.stages[1].by_length("pair_accuracy")[512].value == held


def test_the_families_of_a_demo_are_told_apart(two_families: Path, demo: Path) -> None:
    material = load_report([two_families])
    labels: dict[str, list[str]] = {}
    for stage in material.stages:
        labels.setdefault(stage.family, []).append(stage.label)
    judges = ["judge: short", "judge: rescale only", "judge: long alone", "judge: long", "judge: LOGO"]
    assert labels == {DISCRIMINATIVE: ["untrained", "short", "control", "long"], GENERATIVE: judges}
    assert [run.label for run in material.trained if run.family == GENERATIVE] == ["judge: base"]
    assert [stage.label for stage in material.pointwise] == judges
    assert {stage.family for stage in material.best_of} == {DISCRIMINATIVE}
    for family in labels:
        looks = [stage.style for stage in material.stages if stage.family == family]
        assert len({(style.color, style.dash) for style in looks}) == len({style.color for style in looks})
        assert len({style.color for style in looks}) == len(looks)
    assert {stage.family for stage in load_report([demo]).stages} == {DISCRIMINATIVE}


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("/models/tiny/final", "tiny/final"),
        ("judgebench:/data/judgebench/pairs.jsonl", "judgebench:pairs.jsonl"),
        ("openai:http://127.0.0.1:8000/v1#judge", "openai:http://127.0.0.1:8000/v1#judge"),
        ("owner/model", "owner/model"),
        ("probe", "probe"),
    ],
)
def test_names_are_shortened_where_they_are_paths(name: str, short: str) -> None:
    assert short_name(name) == short


def test_a_long_name_of_a_model_is_left_to_the_first_lines(synthetic: ModuleType, tmp_path: Path) -> None:
    records = synthetic.judgments(synthetic.CURVES["long"], 1, groups=2)
    for name in ("short", "a-name-of-more-than-forty-characters-in-all"):
        synthetic.write_evaluation(tmp_path / name[:5], records, model=name)
    labels = [stage.label for stage in load_report([tmp_path / "short", tmp_path / "a-nam"]).stages]
    assert labels == ["short · short", "a-nam"]


def test_an_estimate_without_a_value_is_none() -> None:
    held = Estimate(0.5, 0.4, 0.6, 9, 9)
    assert defined(held) is held
    assert defined(UNDEFINED) is defined(None) is None
