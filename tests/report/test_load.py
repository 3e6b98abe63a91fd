"""Run folders become the models and training runs of a report."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from longrm.config import to_toml
from longrm.errors import ConfigError, RunError
from longrm.evaluation.compare import compare
from longrm.reporting import ReportSettings
from longrm.reporting.load import load_report


def test_a_label_has_one_style_and_a_model_one_name(groups: Path) -> None:
    data = load_report([], ReportSettings.read(groups))
    names = ["untrained", "short", "control", "long"]
    assert [model.label for model in data.models] == names
    assert [model.label for model in data.all_models[4:]] == [f"{name}, best of 4" for name in names]
    assert [run.label for run in data.trained] == ["short", "control", "long"]
    styles = [model.style for model in data.models]
    assert [model.style for model in data.all_models[4:]] == styles
    assert [run.style for run in data.trained] == styles[1:]
    assert all(len({style[part] for style in styles}) == 4 for part in (1, 2, 3))
    stored = json.loads((groups.parent / "short/scalar_models/summary.json").read_text())
    value = stored["metrics"]["by_length"]["512"]["pair_accuracy"]["value"]
    assert data.models[1].by_length("pair_accuracy")[512].value == value


def test_further_folders_are_a_group(groups: Path, synthetic: ModuleType, tmp_path: Path) -> None:
    synthetic.write_evaluation(
        tmp_path / "long", synthetic.judgments(synthetic.CURVES["long"], 1), model="long"
    )
    data = load_report([tmp_path / "long"], ReportSettings.read(groups))
    assert data.models[-1].label == "long, other runs"
    assert data.caption(data.groups[-1], "Metrics") == "Other runs. Metrics"


@pytest.mark.parametrize(
    "change",
    [
        {"contrasts": [["long", "lnog"]]},
        {"meanings": {"lnog": "x"}},
        {"groups": [{"title": "a", "runs": {"x": "x"}}, {"title": "a", "runs": {"y": "y"}}]},
    ],
)
def test_names_that_are_wrong_are_errors(tmp_path: Path, change: dict[str, object]) -> None:
    settings = {"groups": [{"runs": {"long": "long"}}]} | change
    (tmp_path / "report.toml").write_text(to_toml(settings))
    with pytest.raises(ConfigError, match="report.toml"):
        ReportSettings.read(tmp_path / "report.toml")


def test_runs_are_labeled_by_what_distinguishes_them(synthetic: ModuleType, tmp_path: Path) -> None:
    records = synthetic.judgments(synthetic.CURVES["long"], 1, groups=2)
    models = {"short": "/models/short/model", "probe": "/models/long/model", "deep/short": "/models/short"}
    models["deep/probe"] = "/models/other"
    for name, model in models.items():
        synthetic.write_evaluation(tmp_path / name, records, model=model)
    short, probe = tmp_path / "short", tmp_path / "probe"
    assert [model.label for model in load_report([short, probe]).models] == ["short", "probe · long"]
    same_folders = load_report([probe, tmp_path / "deep/probe"]).models
    assert [model.label for model in same_folders] == ["probe · long", "probe · other"]
    same_names = load_report([short, tmp_path / "deep/short"]).models
    assert len({model.label for model in same_names}) == 2
    assert not any("·" in model.label for model in same_names)
    assert len(load_report([short, short.parent / "probe/../short"]).models) == 1


def test_every_run_is_compared_with_the_first(synthetic: ModuleType, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two", "other")]
    for number, folder in enumerate(folders):
        records = synthetic.judgments(synthetic.CURVES["long"], number, groups=4, responses=2 + number // 2)
        synthetic.write_evaluation(folder, records)
    data = load_report(folders)
    first, second, _ = data.models
    (contrast,) = data.groups[0].contrasts  # the third one judged other comparisons
    assert (contrast.first, contrast.second) == (first, second)
    assert contrast.found.overall == compare(*folders[:2]).overall


def test_unfinished_runs_are_left_out_with_a_warning(
    synthetic: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = synthetic.judgments(synthetic.CURVES["long"], 1, groups=2)
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        synthetic.write_evaluation(folder, records, model="m")
    assert len(load_report(folders).models) == 3
    assert not caplog.messages
    (folders[1] / "summary.json").unlink()
    data = load_report(folders)
    assert [stage.label for stage in data.models] == ["one · m", "three · m"]
    assert [run.path for run in data.runs] == [folders[0], folders[2]]
    (message,) = caplog.messages
    assert message.startswith(
        f"left out of the report: {folders[1]} is not finished; continue it with: longrm "
    )
    for folder in (folders[0], folders[2]):
        (folder / "summary.json").unlink()
    with pytest.raises(RunError, match="one is not finished; continue it with"):
        load_report(folders)
