"""Attributions beside evaluations: which comparison and model each is of, and what the browser is given of it."""

import base64
import hashlib
import json
import zlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from longrm.attribution.records import ATTRIBUTIONS
from longrm.cli.commands import cli
from longrm.data import write
from longrm.errors import RunError
from longrm.report import build
from longrm.report.items import browser
from longrm.report.load import load_report
from longrm.runs.logs import GOLD
from longrm.types import Tool
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.data.trajectories import TOOLS


@pytest.fixture
def runs(synthetic: ModuleType, tmp_path: Path) -> tuple[Path, Path]:
    """An evaluation that keeps two comparisons of each length, and an attribution of these."""
    synthetic.write_evaluation(
        tmp_path / "run", synthetic.judgments(synthetic.CURVES["long"], 1, groups=1), kept=2
    )
    synthetic.write_attribution(tmp_path / "why", tmp_path / "run")
    return tmp_path / "run", tmp_path / "why"


def inflated(found: dict[str, Any], number: int) -> str:
    return zlib.decompress(base64.b64decode(found["chunks"][number])).decode()


def held(found: dict[str, Any], number: int) -> Any:
    return json.loads(inflated(found, number))


def opened(folders: list[Path]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The browser of these runs, its rows by key, and what of each opens."""
    found = browser(load_report(folders).models)
    assert found is not None
    rows = {row["key"]: row for row in held(found, found["index"])["items"]}
    return (
        found,
        rows,
        {key: held(found, row["chunk"]) for key, row in rows.items() if row["chunk"] is not None},
    )


def test_a_comparison_opens_with_the_map_of_its_model(runs: tuple[Path, Path], tmp_path: Path) -> None:
    found, rows, details = opened([*runs])
    assert found["unmatched"] == 0
    assert all(row["explained"] == [0] for row in rows.values())
    for detail in details.values():
        (told,) = detail["maps"]
        assert (told["model"], told["name"], told["target"], told["reason"]) == (0, "run · tiny", [0, 1], "")
        parts = [part for _, part in detail["messages"][0]["parts"]]
        text = "".join(part if isinstance(part, str) else inflated(found, part) for part in parts)
        shaded = {text[one["start"] : one["end"]].strip(): one["weight"] for one in told["shaded"]}
        assert shaded["The access code of Edmund is granite."] == "+2.00"
        assert [one["share"] for one in sorted(told["shaded"], key=lambda one: one["rank"])] == [100, -50, 12]
        assert len(told["shaded"]) == 3
        assert [one["weight"] for one in told["ranked"]] == ["+2.00", "−1.00", "+0.25"]
    alone = opened([runs[0]])[2]
    assert alone.keys() == details.keys()
    assert not any(detail["maps"] for detail in alone.values())


def test_without_trust_nothing_is_shaded_and_the_reason_is_given(
    runs: tuple[Path, Path], synthetic: ModuleType, tmp_path: Path
) -> None:
    synthetic.write_attribution(tmp_path / "doubted", runs[0], shown=False)
    details = opened([runs[0], tmp_path / "doubted"])[2]
    for detail in details.values():
        (told,) = detail["maps"]
        assert told["reason"] == "predicted & true differ"
        assert told["shaded"] == told["evidence"] == told["ranked"] == []
        assert told["trust"], "the trust checks are shown"


def test_a_map_of_another_text_with_the_same_id_is_not_shown_and_counted(
    runs: tuple[Path, Path], synthetic: ModuleType, tmp_path: Path
) -> None:
    records = synthetic.write_attribution(tmp_path / "other", runs[0], digest="of another text")
    found, rows, details = opened([runs[0], tmp_path / "other"])
    assert found["unmatched"] == len(records)
    assert not any(row["explained"] for row in rows.values())
    assert not any(detail["maps"] for detail in details.values())
    build([runs[0], tmp_path / "other"], tmp_path / "report.html")
    assert f"{len(records)} attributions are of comparisons" in (tmp_path / "report.html").read_text()


def ran(*words: str) -> None:
    done = CliRunner().invoke(cli, [*words])
    assert done.exit_code == 0, (done.output, done.exception)


def evaluated(tools: tuple[Tool, ...], out: Path, *options: str) -> Path:
    """An evaluation of two comparisons that offer these tools."""
    rows = [replace(row, tools=tools) for row in generate(WorldPlan("records", 64), 2, words_tokenizer())]
    write(out.with_suffix(".jsonl"), rows)
    bench = f"file:{out.with_suffix('.jsonl')}"
    ran("evaluate", "--model", "baseline:overlap", "--bench", bench, "--out", str(out), *options)
    return out


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_comparison_with_tools_opens_with_its_map(tmp_path: Path) -> None:
    """A run and its attribution as the commands write them; the texts are those of either."""
    run, why = evaluated(TOOLS, tmp_path / "run"), tmp_path / "why"
    ran("attribute", "--run", str(run), "--out", str(why))
    found, rows, details = opened([run, why])
    assert found["unmatched"] == 0
    assert details.keys() == rows.keys() == {line["id"] for line in lines(why / ATTRIBUTIONS)}
    for row in lines(tmp_path / "run.jsonl"):
        assert rows[row["id"]]["explained"] == [0]
        (told,) = details[row["id"]]["maps"]
        assert (told["model"], told["name"]) == (0, "run · baseline:overlap")
        (shown,) = details[row["id"]]["tools"]
        assert [json.loads(one) for one in shown["parts"][0][1].splitlines()] == list(TOOLS)
        texts = json.dumps([row["prompt"], row["responses"], TOOLS], sort_keys=True)
        digests = {
            line["digest"]
            for path in (run / GOLD, why / ATTRIBUTIONS)
            for line in lines(path)
            if line["id"] == row["id"]
        }
        assert digests == {hashlib.sha256(texts.encode()).hexdigest()[:16]}
    (run / "examples.jsonl").unlink()
    assert opened([run, why])[2] == details, "the attribution keeps the same texts"


def test_a_demo_takes_attributions_of_its_stages(demo: Path, synthetic: ModuleType, tmp_path: Path) -> None:
    synthetic.write_attribution(tmp_path / "why", demo / "stages/long/pairs", model="long")
    data = load_report([demo, tmp_path / "why"])
    assert [stage.label for stage in data.models if stage.attributions] == ["long"]
    assert data.runs[-1].command("NEW") == f"longrm attribute --config {tmp_path}/why/config.toml --out NEW"
    with pytest.raises(RunError, match="alone"):
        load_report([demo, tmp_path / "why", demo / "stages/long/pairs"])
