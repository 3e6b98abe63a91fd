"""Attributions in a report: which comparison and model each belongs to, and what the browser shows of it."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

import longrm
from longrm.attribution.records import ATTRIBUTIONS
from longrm.cli.commands import cli
from longrm.data import write
from longrm.reporting import ReportSettings
from longrm.reporting.items import browser
from longrm.reporting.load import load_report
from longrm.runs.logs import GOLD
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.data.trajectories import TOOLS

from .pages import Browser


@pytest.fixture
def runs(synthetic: ModuleType, tmp_path: Path) -> tuple[Path, Path]:
    """An evaluation that keeps two comparisons of each length, and an attribution of these."""
    records = synthetic.judgments(synthetic.CURVES["long"], 1, groups=1)
    synthetic.write_evaluation(tmp_path / "run", records, kept=2)
    synthetic.write_attribution(tmp_path / "why", tmp_path / "run")
    return tmp_path / "run", tmp_path / "why"


def opened(*folders: Path) -> Browser:
    return Browser(browser(load_report(folders)))


def test_a_comparison_opens_with_the_map_of_its_model(runs: tuple[Path, Path]) -> None:
    found = opened(*runs)
    assert found.shown["unmatched"] == 0
    assert all(row["explained"] == [0] for row in found.rows.values())
    for detail in found.details().values():
        (one,) = detail["maps"]
        assert (one["model"], one["name"], one["target"], one["reason"]) == (0, "run · tiny", [0, 1], "")
        text = found.prompt(detail["messages"][0]).decode("utf-16-le")
        weights = {text[part["start"] : part["end"]].strip(): part["weight"] for part in one["shaded"]}
        assert weights["The access code of Edmund is granite."] == "+2.00"
        shares = [part["share"] for part in sorted(one["shaded"], key=lambda part: part["rank"])]
        assert shares == [100, -50, 12]
        assert [part["weight"] for part in one["ranked"]] == ["+2.00", "−1.00", "+0.25"]
    alone = opened(runs[0]).details()
    assert alone.keys() == found.details().keys()
    assert not any(detail["maps"] for detail in alone.values())


def test_without_trust_nothing_is_shaded_and_the_reason_is_shown(
    runs: tuple[Path, Path], synthetic: ModuleType, tmp_path: Path
) -> None:
    synthetic.write_attribution(tmp_path / "doubted", runs[0], shown=False)
    for detail in opened(runs[0], tmp_path / "doubted").details().values():
        (one,) = detail["maps"]
        assert one["reason"] == "predicted & true differ"
        assert one["shaded"] == one["evidence"] == one["ranked"] == []
        assert one["trust"], "the trust checks are shown"


def test_a_map_of_another_text_with_the_same_id_is_counted_but_not_shown(
    runs: tuple[Path, Path], synthetic: ModuleType, tmp_path: Path
) -> None:
    records = synthetic.write_attribution(tmp_path / "other", runs[0], digest="of another text")
    found = opened(runs[0], tmp_path / "other")
    assert found.shown["unmatched"] == len(records)
    assert not any(row["explained"] for row in found.rows.values())
    longrm.report([runs[0], tmp_path / "other"], tmp_path / "report.html")
    assert f"{len(records)} attributions are of comparisons" in (tmp_path / "report.html").read_text()


def test_a_comparison_with_tools_opens_with_its_map(tmp_path: Path) -> None:
    """A run and its attribution as the commands write them; both keep the texts of the comparison."""
    data, run, why = tmp_path / "rows.jsonl", tmp_path / "run", tmp_path / "why"
    write(
        data, [replace(row, tools=TOOLS) for row in generate(WorldPlan("records", 64), 2, words_tokenizer())]
    )
    evaluate = ["evaluate", "--model", "baseline:overlap", "--bench", f"file:{data}", "--out", str(run)]
    for command in (evaluate, ["attribute", "--run", str(run), "--out", str(why)]):
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0, (done.output, done.exception)
    found = opened(run, why)
    details = found.details()
    assert found.shown["unmatched"] == 0
    lines = {
        path: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (data, run / GOLD, why / ATTRIBUTIONS)
    }
    assert details.keys() == found.rows.keys() == {line["id"] for line in lines[why / ATTRIBUTIONS]}
    for row in lines[data]:
        (one,) = details[row["id"]]["maps"]
        assert (one["model"], one["name"]) == (0, "run · baseline:overlap")
        (tools,) = details[row["id"]]["tools"]
        assert [json.loads(line) for line in tools["parts"][0][1].splitlines()] == list(TOOLS)
        texts = json.dumps([row["prompt"], row["responses"], TOOLS], sort_keys=True)
        logged = [line for path in (run / GOLD, why / ATTRIBUTIONS) for line in lines[path]]
        digests = {line["digest"] for line in logged if line["id"] == row["id"]}
        assert digests == {hashlib.sha256(texts.encode()).hexdigest()[:16]}
    (run / "examples.jsonl").unlink()
    assert opened(run, why).details() == details, "the attribution keeps the same texts"


def test_an_attribution_of_another_model_is_shown_next_to_the_evaluation(
    runs: tuple[Path, Path], synthetic: ModuleType, tmp_path: Path
) -> None:
    synthetic.write_attribution(tmp_path / "stranger", runs[0], model="large")
    found = opened(*runs, tmp_path / "stranger")
    assert [model["label"] for model in found.index["models"]] == ["run · tiny", "stranger · large"]
    for key, row in found.rows.items():
        if row["explained"]:
            assert row["explained"] == [0, 1]
            assert [one["name"] for one in found.detail(key)["maps"]] == ["run · tiny", "stranger · large"]


def test_groups_take_attributions_of_their_models(
    groups: Path, synthetic: ModuleType, tmp_path: Path
) -> None:
    synthetic.write_attribution(tmp_path / "why", groups.parent / "long/scalar_models", model="long")
    data = load_report([tmp_path / "why"], ReportSettings.read(groups))
    explained = [model.label for model in data.all_models if model.attributions]
    assert explained == ["long", "long, best of 4"]
    found = Browser(browser(data))
    numbers = {number for row in found.rows.values() for number in row["explained"]}
    assert [found.index["models"][number]["label"] for number in numbers] == ["long"], "its judgments alone"
    assert data.runs[-1].command("NEW") == f"longrm attribute --config {tmp_path}/why/config.toml --out NEW"
