"""The page of `longrm attribute --html`: shaded sentences, folded context, and attributions without trust."""

import json
import re
from dataclasses import replace
from html import unescape
from itertools import accumulate, pairwise

import pytest
from click.testing import CliRunner

from longrm.attribution.records import AttributionRecord, SentenceWeight, Target, TopDrop, Trust
from longrm.attribution.run import summary_of
from longrm.cli.commands import cli
from longrm.data import write
from longrm.evaluation.attention_table import AttentionTableRow
from longrm.report import charts
from longrm.report.attribution import attribution_page
from longrm.runs.records import Estimate
from longrm.types import Comparison, Span
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.reward_models.tiny_models import make_scorer

SENTENCES = [f"Fact {at} is told here. " for at in range(40)]
WEIGHTS = {5: 2.0, 6: -1.0, 30: 0.1}
TRUSTED = Trust(True, "", 0.9, 3.0, 2.5, 0.1, 6.25, (TopDrop(1, 2.0, 0.25, 0.125, 1.75),), ())


def example(sentences):
    text = "".join(sentences)
    prompt = ({"role": "user", "content": text + "What is told?"},)
    answers = tuple(({"role": "assistant", "content": one},) for one in ("This one.", "That one."))
    ends = list(accumulate(map(len, sentences)))
    spans = [Span(0, start, end) for start, end in pairwise([0, *ends])]
    context, question = (Span(0, 0, ends[-1]),), Span(0, ends[-1], ends[-1] + 13)
    spans_of = {"context": context, "question": question, "evidence": tuple(spans[5:6])}
    return Comparison("one", "group", prompt, answers, (1, 2), **spans_of), spans


def page(sentences=SENTENCES, trust=TRUSTED, weights=WEIGHTS, comparison=None, **more):
    found, spans = example(sentences)
    weighed = tuple(
        SentenceWeight(0, one.start, one.end, weights.get(at, 0.0)) for at, one in enumerate(spans)
    )
    cost = {"tokens_computed": 500, "prompts": 9}
    record = AttributionRecord("one", Target(0, 1), "group", 512, 0.1, True, weighed, trust, **cost | more)
    return attribution_page(summary_of([record], "model", "bench"), [record], {"one": comparison or found})


def test_sentences_are_shaded_by_sign_and_size_and_numbered_by_rank():
    marks = re.findall(
        r'<mark class="weighs (\w+)" style="--share: (\d+)%" title="([^"]*)" id="([^"]*)">([^<]*)<', page()
    )
    assert marks == [
        ("raises", "100", "+2.00", "c1-at1", SENTENCES[5].rstrip()),
        ("lowers", "50", "−1.00", "c1-at2", SENTENCES[6].rstrip()),
        ("raises", "5", "+0.10", "c1-at3", SENTENCES[30].rstrip()),
    ]


@pytest.mark.parametrize(("ranks", "gold"), [((2, 1), ["2"]), ((2, 3, 1), ["3"]), ((1, 1), []), (None, [])])
def test_the_gold_response_is_marked_whatever_the_model_prefers(ranks, gold):
    comparison, _ = example(SENTENCES)
    answers = (*comparison.responses, ({"role": "assistant", "content": "Neither."},))
    comparison = replace(comparison, responses=answers[: len(ranks or answers[:2])], ranks=ranks)
    marked = re.findall(
        r'<p class="role">Response (\d)[^<]*<strong>gold</strong>', page(comparison=comparison)
    )
    assert marked == gold


def test_the_context_is_whole_and_runs_without_weight_are_folded():
    text = page()
    folded = re.findall(r"<summary>(\d+) sentences without weight</summary>([^<]*)</details>", text)
    assert [(int(count), part) for count, part in folded] == [
        (19, "".join(SENTENCES[9:28])),
        (5, "".join(SENTENCES[33:38])),
    ]
    context = re.search(r'aria-label="Context">(.*?)</div>', text, re.DOTALL)[1]
    bare = re.sub(r"<su(mmary|p)>.*?</su(mmary|p)>|<[^>]+>", "", context)
    assert unescape(bare) == "".join(SENTENCES)


def test_the_strip_has_a_bar_for_each_weight_at_the_place_of_the_sentence():
    bar = r'<rect class="(\w+)" x="([\d.]+)" width="[\d.]+" y="([\d.]+)" height="([\d.]+)"/>'
    bars = re.findall(bar, page())
    assert [(way, float(y), float(height)) for way, _, y, height in bars] == [
        ("raises", 2.0, 25.0),
        ("lowers", 27.0, 12.5),
        ("raises", 25.8, 1.2),
    ]
    total, before = sum(map(len, SENTENCES)), sum(map(len, SENTENCES[:30]))
    assert float(bars[2][1]) == pytest.approx(1000 * before / total, abs=0.06)


def test_trust_checks_and_redundant_sentences_are_shown():
    text = page(trust=replace(TRUSTED, redundant=((5, 30),)))
    checks = re.findall(r'<th scope="row">[^<]*</th><td>([^<]*)</td></tr>', text)
    assert checks == ["2.00", "0.25", "0.12", "1.75"]
    assert "These say the same: 1 with 3." in text
    assert "These say the same" not in page()


def test_hostile_text_stays_text():
    hostile = [
        "<script>alert(1)</script> \u202egnp. ",
        '"><img src=x onerror=alert(1)>. ',
        "</details></mark>. ",
    ]
    text = page(sentences=hostile, weights={0: 1.0, 1: -1.0})
    assert "<script" not in text
    assert "<img" not in text
    assert "\u202e" not in text
    assert "\\u202e" in text
    assert text.count("</mark>") == 2


def test_the_command_writes_the_page_and_the_report_names_it(tmp_path):
    data, out, html = tmp_path / "pairs.jsonl", tmp_path / "why", tmp_path / "why.html"
    write(data, generate(WorldPlan("records", 128), 2, words_tokenizer()))
    words = ["--model", "baseline:overlap", "--data", str(data), "--out", str(out), "--html", str(html)]
    done = CliRunner().invoke(cli, ["attribute", *words])
    assert done.exit_code == 0, done.output
    text = html.read_text()
    assert text.count('<section id="c') == 2
    reported = CliRunner().invoke(cli, ["report", str(out), "--out", str(tmp_path / "report.html")])
    assert reported.exit_code == 1
    assert "longrm attribute --config" in str(reported.exception) + reported.output
    again = ["--config", str(out / "config.toml"), "--out", str(out), "--html", str(tmp_path / "again.html")]
    assert CliRunner().invoke(cli, ["attribute", *again]).exit_code == 0
    assert (tmp_path / "again.html").read_text() == text


def attention_rows(measures=("fr", "embedding_gradient")):
    return [
        AttentionTableRow(measure, layer, region, right, Estimate(0.5, 0.25, 0.75, 20, 20), 0.1)
        for measure in measures
        for layer in ([None] if measure == "embedding_gradient" else [0, 1, 2])
        for region in ("supporting", "irrelevant")
        for right in (True, False)
    ]


def test_each_measure_by_layer_is_drawn_with_a_point_for_every_row():
    (fr,) = charts.attention(attention_rows())
    assert fr.name == "attention-fr"
    assert len(re.findall(r'aria-roledescription="point"', fr.svg)) == 12
    assert "†" not in fr.svg
    assert "in layer 2: supporting text 50.0% where judged right" in fr.alt


def test_the_command_measures_attention_draws_it_and_continues(tmp_path):
    model = make_scorer(tmp_path / "tiny", positions=256)
    data, out, page = tmp_path / "pairs.jsonl", tmp_path / "why", tmp_path / "why.html"
    write(data, generate(WorldPlan("records", 64), 2, words_tokenizer()))
    words = ["attribute", "--model", str(model), "--data", str(data), "--out", str(out), "--attention"]
    done = CliRunner().invoke(cli, [*words, "--html", str(page)])
    assert done.exit_code == 0, (done.output, done.exception)
    lines = [json.loads(line) for line in (out / "attention.jsonl").read_text().splitlines()]
    assert [line["attended"]["id"] for line in lines] == [line["id"] for line in lines]
    assert (out / "attention.csv").read_text().startswith("measure,layer,region,judged")
    assert page.read_text().count('<div class="plot" role="img"') == 3
    assert len([*(tmp_path / "why-figures").iterdir()]) == 6
    before = (out / "attention.jsonl").read_bytes()
    assert CliRunner().invoke(cli, words).exit_code == 0
    assert (out / "attention.jsonl").read_bytes() == before
