"""The optional sections: every number is the summary's, and sections without data are left out."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import longrm
from longrm.attribution.run import summary_of
from longrm.reporting.sections import SECTIONS

from . import pages
from .pages import anchors


def sign(text: str) -> str:
    return text.replace("-", "−")


def share(metric: dict[str, Any]) -> str:
    value, low, high = (100 * metric[key] for key in ("value", "low", "high"))
    return sign(f"{value:.1f}% [{low:.1f}, {high:.1f}]")


def error(found: dict[str, Any]) -> str:
    fair = found["if_calibrated"]
    mean, high = (f"{100 * fair[key]:.1f}%" for key in ("mean", "high"))
    return f"{100 * found['value']:.1f}% if calibrated {mean}, at most {high}"


def gap(metric: dict[str, Any]) -> str:
    value, low, high = (100 * metric[key] for key in ("value", "low", "high"))
    return sign(f"{value:+.1f} [{low:+.1f}, {high:+.1f}]")


@pytest.fixture(scope="module")
def rich(synthetic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two judges that write and one that scores; read only."""
    folder = tmp_path_factory.mktemp("rich")
    added = {"audit": synthetic.AUDIT}
    synthetic.write_evaluation(
        folder / "one", synthetic.written(1, votes=3), scale="verdict", rule="judgebench", added=added
    )
    synthetic.write_evaluation(folder / "two", synthetic.written(2), scale="verdict", added=added)
    synthetic.write_evaluation(
        folder / "scores", synthetic.judgments(synthetic.CURVES["short"], 3), scale="logit"
    )
    longrm.report([folder / "one", folder / "two", folder / "scores"], folder / "rich.html")
    return {"page": folder / "rich.html"} | {name: folder / name for name in ("one", "two", "scores")}


@pytest.fixture(scope="module")
def tables(rich: dict[str, Path]) -> dict[str, dict[str, dict[str, str]]]:
    return pages.tables(rich["page"].read_text())


@pytest.fixture(scope="module")
def summaries(rich: dict[str, Path]) -> dict[str, dict[str, Any]]:
    return {
        f"{name} · tiny": json.loads((rich[name] / "summary.json").read_text())
        for name in ("one", "two", "scores")
    }


def test_accuracy_with_and_without_the_missing_verdicts(tables: Any, summaries: Any) -> None:
    found = tables["Accuracy, with 95% intervals"]
    assert found.keys() == {"one · tiny", "two · tiny"}  # the third answered all
    rates = tables["Outcomes, contexts that were cut to fit, and trials that took several attempts"]
    for label, row in found.items():
        held = summaries[label]
        assert row["strict"] == share(held["accuracy"]["strict"])
        assert row["with chance credit"] == share(held["accuracy"]["chance_credit"])
        assert row["answered only"] == share(held["accuracy"]["answered"])
        assert rates[label] == {
            name: share(held["outcome_rates"][name]) for name in ("answered", "unparsed", "truncated")
        } | {
            "contexts cut": f"6 {held['counts']['cut']['tokens']:,} tokens",
            "retried": str(held["counts"]["retried"]),
        }
    assert summaries["one · tiny"]["accuracy"]["strict"] != summaries["one · tiny"]["accuracy"]["answered"]


def test_tasks_micro_and_macro(tables: Any, summaries: Any) -> None:
    found = tables["Accuracy by task, with 95% intervals"]
    assert list(found) == [
        "Cite", "Code", "Math", "records", "all comparisons (micro)", "mean over tasks (macro)"
    ]  # fmt: skip
    for label, held in summaries.items():
        metrics = held["metrics"]
        for task in ("Cite", "Code", "Math", "records"):
            part = metrics["by_task"].get(task)
            written = f"{share(part['pair_accuracy'])} n = {part['pair_accuracy']['n']}" if part else "–"
            if missing := held["missing"]["by_task"].get(task):
                written += f" {missing['answered']} of {missing['comparisons']} answered"
            assert found[task][label] == written
        assert found["all comparisons (micro)"][label].startswith(share(metrics["overall"]["pair_accuracy"]))
        assert found["mean over tasks (macro)"][label] == share(metrics["macro"]["by_task"])
        at = metrics["by_task_and_length"].get("Cite", {}).get("4096")
        if at:
            shown = tables[f"{label}: by task and length in tokens"]["Cite"]["4,096"]
            assert shown.startswith(share(at["pair_accuracy"]))
    assert set(tables["Accuracy by subtype, with 95% intervals"]) == {
        "inter", "intra", "all comparisons (micro)"
    }  # fmt: skip


def test_baselines(tables: Any, summaries: Any) -> None:
    found = tables["Accuracy minus that of each rule without a model, in percentage points"]
    assert [*found] == ["over longest", "over overlap", "beats all"] or [*found] == [
        "over overlap", "over longest", "beats all"
    ]  # fmt: skip
    first, second = (float(row["one · tiny"].split("rule ")[1][:-1]) for row in [*found.values()][:2])
    assert first >= second, "the best rule is first"
    for label in ("one · tiny", "two · tiny"):
        held = summaries[label]
        for name, baseline in held["baselines"].items():
            expected = f"{gap(baseline['difference'])}; rule {100 * baseline['value']['value']:.1f}%"
            assert found[f"over {name}"][label] == expected
        assert found["beats all"][label] == ("yes" if held["beats_baselines"] else "no")


def test_agreement_beyond_chance(tables: Any, summaries: Any) -> None:
    found = tables["Equal verdicts, with 95% intervals"]
    for label in ("one · tiny", "two · tiny"):
        gold = summaries[label]["gold_agreement"]
        assert found[label]["agrees with gold"] == share(gold["raw"])
        assert found[label]["Cohen's kappa"].startswith(f"{gold['kappa']['value']:.2f}".replace("-", "−"))


def test_order_and_length(tables: Any, summaries: Any) -> None:
    order = tables["Order of presentation, with 95% intervals"]
    length = tables["Accuracy by length of the chosen response"]
    ties = tables["Share of gold pairs with equal scores"]
    assert order.keys() == length.keys() == ties.keys() == {"one · tiny", "two · tiny"}
    for label in order:
        position, bias = summaries[label]["position"], summaries[label]["length_bias"]
        assert list(order[label].values()) == [
            share(position[key]) for key in ("consistency", "first_wins", "single_order", "order_cancelled")
        ]
        assert list(length[label].values()) == [
            share(bias["better_longer"]),
            share(bias["better_shorter"]),
            gap(bias["difference"]),
        ]
        assert ties[label]["tied"] == share(summaries[label]["ties"])


@pytest.mark.parametrize("every", [200, 20])
def test_rare_ties_are_left_out(synthetic: ModuleType, tmp_path: Path, every: int) -> None:
    records = synthetic.judgments(synthetic.CURVES["long"], 1)
    tied = [replace(one, scores=(0.0, 0.0)) if n % every == 0 else one for n, one in enumerate(records)]
    held = synthetic.write_evaluation(tmp_path / "run", tied)
    longrm.report([tmp_path / "run"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    if every == 200:
        assert held["ties"]["value"] == 3 / 480
        assert "biases" not in anchors(text)
    else:
        ties = pages.tables(text)["Share of gold pairs with equal scores"]
        assert ties["run · tiny"]["tied"] == share(held["ties"])


def test_calibration(tables: Any, summaries: Any, rich: dict[str, Path]) -> None:
    found = tables["Expected calibration error"]
    for label, held in summaries.items():
        calibration = held["calibration"]
        assert found[label]["ECE"] == error(calibration["ece"])
        assert found[label]["confidence from"] == calibration["link"]
        fitted = calibration["ece_fitted"]
        shown = f"{error(fitted)}, at T = {calibration['temperature_fitted']:.2f}" if fitted else "–"
        assert found[label]["ECE, temperature fitted"] == shown
        bins = tables[f"{label}: by confidence"].values()
        assert [row["pairs"] for row in bins] == [str(one["n"]) for one in calibration["bins"]]
    assert found["scores · tiny"]["ECE, temperature fitted"] != "–"
    drawn = (rich["page"].with_name("rich-figures") / "calibration.svg").read_text()
    held = [one["n"] for stage in summaries.values() for one in stage["calibration"]["bins"]]
    assert 0 < min(held) < 10  # too few to be drawn
    points = re.search(r'<g class="mark-symbol[^>]*layer_2[^>]*>(.*?)</g>', drawn, re.DOTALL)
    assert points
    assert points[1].count("<path") == sum(n >= 10 for n in held)


def test_failures(tables: Any, summaries: Any) -> None:
    for label, row in tables["Share of trials with each failure, with 95% intervals"].items():
        held = summaries[label]["failures"]
        assert row == {
            "format missed": share(held["format_missed"]),
            "context ignored": share(held["context_ignored"]),
            "explanation contradicts": share(held["contradicted"]),
        }


def test_votes(tables: Any, summaries: Any) -> None:
    found = tables["Accuracy by votes per order, with 95% intervals"]
    for label, row in found.items():
        at = summaries[label]["votes"]["at"]
        assert list(row.values()) == [share(at[k]) if k in at else "–" for k in ("1", "2", "3")]
    assert found["two · tiny"]["3 votes"] == "–"


def test_weight_on_the_evidence_and_accuracy(synthetic: ModuleType, tmp_path: Path) -> None:
    run, why = tmp_path / "run", tmp_path / "why"
    synthetic.write_evaluation(run, synthetic.judgments(synthetic.CURVES["short"], 3, groups=20), kept=24)
    records = synthetic.write_attribution(why, run)
    on_evidence = {128: 0.9, 256: 0.8, 512: 0.7, 1024: 0.45, 2048: 0.2, 4096: 0.1}
    moved = [
        replace(
            one,
            evidence=replace(one.evidence, share=on_evidence[one.length] + 0.001 * (number % 5)),
            right=one.length < 1024,
        )
        for number, one in enumerate(records)
    ]
    summary = summary_of(moved, "tiny", "probe").to_dict()
    (why / "summary.json").write_text(json.dumps(summary))
    longrm.report([run, why], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "evidence-weight" in anchors(text)
    found = pages.tables(text)
    boundary = json.loads((run / "summary.json").read_text())["boundary"]
    reach = found["Context boundary and attribution boundary, in tokens"]["run · tiny"]
    assert reach["weight on evidence holds to"] == "512 fails at 1,024"
    assert reach["accuracy holds to"].split()[0] == f"{boundary['at_least']:,}"
    assert reach["explained"] == str(len(records)) == "144"
    parts = found["run · tiny: by length, depth and verdict, with 95% intervals"]
    for length in synthetic.LENGTHS:
        row = parts[f"{length:,} tokens"]
        assert row["weight on evidence"].startswith(f"{100 * on_evidence[length]:.0f}.")
        assert row["weight on evidence"].endswith("n = 24")
        accuracy = json.loads((run / "summary.json").read_text())["metrics"]["by_length"][str(length)]
        assert row["accuracy"] == share(accuracy["pair_accuracy"])
    assert parts["Judged right"]["accuracy"] == "–"
    right = sum(on_evidence[length] for length in (128, 256, 512)) / 3
    assert float(parts["Judged right"]["weight on evidence"].split("%")[0]) == pytest.approx(
        100 * right, abs=0.4
    )
    assert (tmp_path / "report-figures/evidence-weight.svg").exists()
    (why / "summary.json").write_text(json.dumps({**summary, "bench": "elsewhere"}))
    longrm.report([run, why], tmp_path / "other.html")
    assert "evidence-weight" not in anchors((tmp_path / "other.html").read_text()), "of other comparisons"


def test_what_judges_solve_and_misjudge(tables: Any, summaries: Any) -> None:
    for caption, key in (("Solved", "solved"), ("Solved but judged wrong", "gap")):
        found = tables[f"{caption}, of comparisons with a gold answer, with 95% intervals"]
        assert "scores · tiny" not in found
        for label in ("one · tiny", "two · tiny"):
            part = summaries[label]["solve_to_judge"]
            assert found[label]["all"] == share(part[key])
            assert found[label]["4K"] == share(part["by_length"]["4096"][key])
    assert tables["Outcomes of own answers"]["one · tiny"]["answered"] == "48"


def test_sections_without_data_are_left_out(
    rich: dict[str, Path], synthetic: ModuleType, tmp_path: Path
) -> None:
    always = {"accuracy", "boundary", "overall", "depth", "agreement", "outcomes"}
    written = {"answers", "audit", "baselines", "biases", "calibration", "rules", "solving", "tasks", "votes"}
    assert anchors(rich["page"].read_text()) & {*SECTIONS} == always | written | {"differences"}
    records = synthetic.judgments(synthetic.CURVES["long"], 1)
    synthetic.write_evaluation(tmp_path / "plain", records)
    longrm.report([tmp_path / "plain"], tmp_path / "plain.html")
    assert anchors((tmp_path / "plain.html").read_text()) & {*SECTIONS} == always
