"""A benchmark and its scoring rule, each added in one file and one entry, run to the summary and the report."""

import pytest

from longrm.benchmarks import BENCHMARKS, BenchmarkEntry
from longrm.evaluation.evaluation_run import Evaluation, run_evaluation
from longrm.evaluation.rules import RULES, ScoringRule
from longrm.evaluation.summaries import read_summary
from longrm.report import build

RIDDLES = """
from longrm.benchmarks.benchmark import UNREADABLE, Unrateable, load_rows, rateable_responses
from longrm.data.fields import messages_of, name_of
from longrm.types import Comparison

FINDINGS = {"stale_riddles": "well-known riddles; left out", **UNREADABLE}


def load_riddles(request):
    return load_rows(request, _comparison, FINDINGS)


def _comparison(row, number, names):
    if row.get("stale"):
        raise Unrateable("stale_riddles")
    given = {"right": row["right"], "wrong": row["wrong"]}
    return Comparison(
        id=f"riddle-{number}",
        group=f"riddle-{number}",
        prompt=messages_of(name_of(row, "riddle"), "riddle", "user"),
        responses=rateable_responses(given, (1, 2)),
        ranks=(1, 2),
        metadata={"task": "riddles"},
    )


def solved(records, scale):
    right = sum(record.scores[0] > record.scores[1] for record in records)
    percent = 100 * right / len(records)
    return {"overall_percent": percent, "by_task_percent": {"short": percent}, "left_out": 0}
"""
ROWS = [{"riddle": f"What is {n}?", "right": f"the number {n}", "wrong": "a"} for n in range(8)]


@pytest.fixture
def riddles(plugin, monkeypatch, put):
    """The benchmark and its rule, registered; its path."""
    added = plugin(RIDDLES)
    monkeypatch.setitem(BENCHMARKS, "riddles", BenchmarkEntry(added.load_riddles, rule="riddles"))
    rule = ScoringRule(
        added.solved, "The riddlers' own rule", "Solved riddles count one each.", ("by_task_percent",)
    )
    monkeypatch.setitem(RULES, "riddles", rule)
    return put("riddles.jsonl", *ROWS, {**ROWS[0], "stale": True})


def settings(path):
    told = {"model": "baseline:longest", "bench": f"riddles:{path}", "judging": {"resamples": 100}}
    return Evaluation.model_validate(told)


def test_an_added_benchmark_and_its_rule_stand_in_summary_and_report(riddles, tmp_path):
    run_evaluation(settings(riddles), tmp_path / "run")
    summary = read_summary(tmp_path / "run")
    assert summary["riddles_rule"]["overall_percent"] == 100
    assert summary["audit"]["findings"]["stale_riddles"]["count"] == 1
    build([tmp_path / "run"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "The riddlers&#39; own rule" in page
    assert "Solved riddles count one each." in page
    assert "well-known riddles; left out" in page
