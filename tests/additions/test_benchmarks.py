"""A benchmark and its scoring rule are added by one function and one entry each."""

import pytest

from longrm.benchmarks import BENCHMARKS, BenchmarkEntry
from longrm.evaluation.rules import RULES, ScoringRule

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


def test_an_added_benchmark_and_its_rule_are_in_summary_and_report(riddles, evaluated):
    summary, page = evaluated("baseline:longest", f"riddles:{riddles}")
    assert summary["riddles_rule"]["overall_percent"] == 100
    assert summary["audit"]["findings"]["stale_riddles"]["count"] == 1
    assert "The riddlers&#39; own rule" in page
    assert "Solved riddles count one each." in page
    assert "well-known riddles; left out" in page
