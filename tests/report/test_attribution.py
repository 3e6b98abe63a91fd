"""How an attribution is shown, and the report of `longrm attribute --html`."""

import json
import re
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

import longrm
from longrm.attribution.records import AttributionRecord, SentenceWeight, Target, TopDrop, Trust
from longrm.cli.commands import cli
from longrm.data import write
from longrm.evaluation.attention_table import AttentionTableRow
from longrm.reporting.attribution import attribution_map
from longrm.reporting.sections.attention import attention_figures
from longrm.runs.records import Estimate
from longrm.types import Comparison, Span
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.reward_models.tiny_models import make_scorer

from .pages import Browser, anchors, tables, words

SENTENCES = [f"Fact {at} is told here. " for at in range(40)]
WEIGHTS = {5: 2.0, 6: -1.0, 30: 0.1}
TRUSTED = Trust(True, "", 0.9, 3.0, 2.5, 0.1, 6.25, (TopDrop(1, 2.0, 0.25, 0.125, 1.75),), ())


def shown(trust: Trust = TRUSTED) -> dict[str, Any]:
    """The map of a context of 40 sentences, of which three have weight and the first of these is the evidence."""
    text = "".join(SENTENCES)
    spans = [Span(0, start, end) for start, end in pairwise([0, *accumulate(map(len, SENTENCES))])]
    answers = tuple(({"role": "assistant", "content": one},) for one in ("This one.", "That one."))
    prompt = ({"role": "user", "content": text},)
    comparison = Comparison("one", "group", prompt, answers, (1, 2), evidence=(spans[5],))
    weighed = tuple(
        SentenceWeight(0, one.start, one.end, WEIGHTS.get(at, 0.0)) for at, one in enumerate(spans)
    )
    record = AttributionRecord(
        "one", Target(0, 1), "group", 512, 0.1, True, weighed, trust, tokens_computed=500, prompts=9
    )
    return attribution_map(record, comparison)


def test_sentences_are_shaded_by_sign_and_size_and_have_a_bar_at_their_place() -> None:
    found = shown()["shaded"]
    starts = [sum(map(len, SENTENCES[:at])) for at in WEIGHTS]
    assert [(one["share"], one["weight"], one["rank"], one["start"]) for one in found] == [
        (100, "+2.00", 1, starts[0]),
        (-50, "−1.00", 2, starts[1]),
        (5, "+0.10", 3, starts[2]),
    ]
    assert [(one["top"], one["height"]) for one in found] == [(2.0, 25.0), (27.0, 12.5), (25.8, 1.2)]
    assert found[2]["left"] == pytest.approx(1000 * starts[2] / sum(map(len, SENTENCES)), abs=0.06)
    (evidence,) = shown()["evidence"]
    assert evidence["left"] == found[0]["left"]


def test_trust_checks_and_redundant_sentences_are_shown() -> None:
    found = shown(replace(TRUSTED, redundant=((5, 30),)))
    assert [values for _, values in found["trust"]] == [["2.00"], ["0.25"], ["0.12"], ["1.75"]]
    assert found["redundant"].startswith("These say the same: 1 with 3.")
    assert shown()["redundant"] == ""


def test_hostile_text_stays_text(synthetic: ModuleType, tmp_path: Path) -> None:
    records = synthetic.judgments(synthetic.CURVES["long"], 1, groups=1)
    synthetic.write_evaluation(tmp_path / "run", records, kept=2)
    synthetic.write_attribution(tmp_path / "why", tmp_path / "run", model=synthetic.HOSTILE)
    longrm.report([tmp_path / "why"], tmp_path / "why.html")
    text = (tmp_path / "why.html").read_text()
    assert "<script>alert" not in text
    assert "<img" not in text


def test_an_attribution_has_a_report_of_its_own(tmp_path: Path) -> None:
    data, out, html = tmp_path / "pairs.jsonl", tmp_path / "why", tmp_path / "why.html"
    write(data, generate(WorldPlan("records", 128), 2, words_tokenizer()))
    command = ["attribute", "--model", "baseline:overlap", "--data", str(data), "--out", str(out)]
    done = CliRunner().invoke(cli, [*command, "--html", str(html)])
    assert done.exit_code == 0, done.output
    text = html.read_text()
    assert "why · baseline:overlap: 2 comparisons explained" in words(text)
    assert "why · baseline:overlap: weight on the evidence, with 95% intervals" in tables(text)
    found = Browser.of_page(text)
    assert len(found.details()) == len(found.rows) == 2
    for key, row in found.rows.items():
        assert row["explained"] == [0]
        (one,) = found.detail(key)["maps"]
        assert one["model"] == 0
        assert one["trust"]
    again = CliRunner().invoke(cli, ["report", str(out), "--out", str(tmp_path / "again" / "why.html")])
    assert again.exit_code == 0
    assert (tmp_path / "again/why.html").read_text() == text


def test_each_measure_by_layer_is_drawn_with_a_point_for_every_row() -> None:
    rows = [
        AttentionTableRow(measure, layer, region, right, Estimate(0.5, 0.25, 0.75, 20, 20), 0.1)
        for measure in ("fr", "embedding_gradient")
        for layer in ([None] if measure == "embedding_gradient" else [0, 1, 2])
        for region in ("supporting", "irrelevant")
        for right in (True, False)
    ]
    (fr,) = attention_figures(rows)
    assert fr.name == "attention-fr"
    assert len(re.findall(r'aria-roledescription="point"', fr.svg)) == 12
    assert "†" not in fr.svg
    assert "in layer 2: supporting text 50.0% where judged right" in fr.alt


def test_the_command_measures_attention_draws_it_and_continues(tmp_path: Path) -> None:
    model = make_scorer(tmp_path / "tiny", positions=256)
    data, out, page = tmp_path / "pairs.jsonl", tmp_path / "why", tmp_path / "why.html"
    write(data, generate(WorldPlan("records", 64), 2, words_tokenizer()))
    command = ["attribute", "--model", str(model), "--data", str(data), "--out", str(out), "--attention"]
    done = CliRunner().invoke(cli, [*command, "--html", str(page)])
    assert done.exit_code == 0, (done.output, done.exception)
    lines = [json.loads(line) for line in (out / "attention.jsonl").read_text().splitlines()]
    assert [line["attended"]["id"] for line in lines] == [line["id"] for line in lines]
    assert (out / "attention.csv").read_text().startswith("measure,layer,region,judged")
    assert "attention" in anchors(page.read_text())
    assert len([*(tmp_path / "why-figures").glob("attention-*.svg")]) == 3
    before = (out / "attention.jsonl").read_bytes()
    assert CliRunner().invoke(cli, command).exit_code == 0
    assert (out / "attention.jsonl").read_bytes() == before
