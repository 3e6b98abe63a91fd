"""What lengths count in, which worlds and depths were asked, and which part was judged: told wherever a length is."""

import re
from html import unescape

import pytest

from longrm.evaluation import wording
from longrm.evaluation.summaries import MeasuredWith
from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import parse_evaluation
from longrm.report import findings
from longrm.report.build import build

TOLD = {"tokenizer": "acme/judge-1b", "worlds": ["single-fact", "two-hops"], "depths": [0.0, 0.5, "uniform"]}
LINE = "Lengths in tokens of acme/judge-1b; worlds single-fact and two-hops; evidence at depth 0, 0.5 and anywhere."


def page_of(tmp_path, synthetic, *told):
    runs = []
    for number, added in enumerate(told):
        runs.append(tmp_path / f"run-{number}")
        synthetic.write_evaluation(runs[-1], synthetic.judgments(synthetic.CURVES["short"], 1), added=added)
    build(runs, tmp_path / "report.html")
    return unescape((tmp_path / "report.html").read_text()), tmp_path / "report-figures"


def test_tokenizer_worlds_and_depths_stand_under_every_figure_and_table_by_length(tmp_path, synthetic):
    page, figures = page_of(tmp_path, synthetic, {"measured": TOLD})
    for name in ("accuracy.svg", "accuracy-narrow.svg", "depth-0.svg"):
        assert "tokens of acme/judge-1b" in (figures / name).read_text(), name
    assert page.count(f'<p class="note">{LINE}</p>') == 3  # the curve, the boundary, and the depths
    assert "by length in tokens of acme/judge-1b" in page
    assert "Context boundary, in tokens of acme/judge-1b, with 95% intervals" in page


def test_a_run_that_tells_no_tokenizer_counts_in_tokens(tmp_path, synthetic):
    """Negative control."""
    page, figures = page_of(tmp_path, synthetic, {})
    assert "tokens of" not in (figures / "accuracy.svg").read_text()
    assert "Lengths in" not in page
    assert "by length in tokens<" in page


def test_runs_of_different_tokenizers_are_told_apart(tmp_path, synthetic):
    other = {**TOLD, "tokenizer": "approximate"}
    page, figures = page_of(tmp_path, synthetic, {"measured": TOLD}, {"measured": other})
    assert "own tokenizer" in (figures / "accuracy.svg").read_text()
    assert "tokens of acme/judge-1b" in (figures / "depth-0.svg").read_text()
    assert "approximate tokens (words and marks)" in (figures / "depth-1.svg").read_text()
    assert len(re.findall(r'<p class="note">run-\d · \S+: Lengths in', page)) == 6


def test_a_sample_and_a_shard_are_said(tmp_path, synthetic):
    page, _ = page_of(tmp_path, synthetic, {"shard": "2/4", "measured": TOLD})
    assert "probe: shard 2/4 alone" in page


@pytest.mark.parametrize(
    ("tokenizer", "unit"),
    [
        ("words", "tokens of the words tokenizer"),
        ("approximate", "approximate tokens (words and marks)"),
        ("owner/name@main", "tokens of owner/name@main"),
        ("/data/models/mine/model", "tokens of mine/model"),
        ("model", "tokens of model"),
        ("x" * 50 + "/" + "y" * 50, f"tokens of {'x' * 20}…{'y' * 20}"),
    ],
)
def test_a_tokenizer_is_named_in_short(tokenizer, unit):
    assert wording.token_unit(MeasuredWith(tokenizer, ("records",), (0.0,))) == unit
    assert wording.token_unit(None) == "tokens"


def test_of_how_many_a_sample_is_stands_in_the_sentence(synthetic):
    records = synthetic.judgments(synthetic.CURVES["short"], 1)
    plain = summarize(records, model="judge", bench="probe", resamples=100)
    plain["counts"]["sampled_from"] = 9000
    whole = f"probe: A sample of {len(records)} of 9,000 comparisons, spread over lengths, depths and tasks (--limit)."
    assert findings.parts(parse_evaluation(plain)) == [whole]
    part = findings.parts(parse_evaluation({**plain, "shard": "1/2"}))
    assert part == [
        "probe: A sample of 9,000 comparisons, spread over lengths, depths and tasks (--limit).",
        f"probe: shard 1/2 alone, {len(records)} comparisons (--shard).",
    ]
    del plain["counts"]["sampled_from"]
    assert findings.parts(parse_evaluation(plain)) == []
