"""Run folders as the report sees them."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from longrm.report.material import SCORES, WRITES, metric_at, read, short_name


def test_material_of_a_demo_keeps_the_order_of_stages(demo: Path) -> None:
    material = read([demo])
    assert [stage.label for stage in material.stages] == ["untrained", "short", "control", "long"]
    assert [run.label for run in material.trained] == ["short", "control", "long"]
    looks = {(stage.style.color, stage.style.dash, stage.style.shape) for stage in material.stages}
    assert all(len({look[part] for look in looks}) == 4 for part in range(3))
    stored = json.loads((demo / "summary.json").read_text())
    held = stored["stages"]["short"]["metrics"]["by_length"]["512"]["pair_accuracy"]["value"]
    assert material.stages[1].by_length("pair_accuracy")[512].value == held


def test_the_roads_of_a_demo_are_told_apart(two_roads: Path, demo: Path) -> None:
    material = read([two_roads])
    labels: dict[str, list[str]] = {}
    for stage in material.stages:
        labels.setdefault(stage.road, []).append(stage.label)
    judges = ["judge: short", "judge: rescale only", "judge: long alone", "judge: long", "judge: LOGO"]
    assert labels == {SCORES: ["untrained", "short", "control", "long"], WRITES: judges}
    assert [run.label for run in material.trained if run.road == WRITES] == ["judge: base"]
    assert [stage.label for stage in material.pointwise] == judges
    assert {stage.road for stage in material.best_of} == {SCORES}
    for road in labels:
        looks = [stage.style for stage in material.stages if stage.road == road]
        assert len({(style.color, style.dash) for style in looks}) == len({style.color for style in looks})
        assert len({style.color for style in looks}) == len(looks)
    assert {stage.road for stage in read([demo]).stages} == {SCORES}


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
    labels = [stage.label for stage in read([tmp_path / "short", tmp_path / "a-nam"]).stages]
    assert labels == ["short · short", "a-nam"]


def test_a_metric_that_is_not_there_is_none() -> None:
    held = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9, "groups": 9}
    found = metric_at({"a": {"b": held}}, "a", "b")
    assert found is not None
    assert found.value == 0.5
    assert metric_at({"a": None}, "a", "b") is None
    assert metric_at({"a": {}}, "a", "b") is None
    assert metric_at({"a": {"b": held | {"value": None}}}, "a", "b") is None
