"""What an evaluation prints: the summary's figures, nothing that is empty, and no line too long."""

import pytest

from longrm.cli.summary_text import print_evaluation
from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import parse_evaluation
from longrm.runs.records import JudgmentRecord
from longrm.types import Cut, Outcome, Trial


def records(tasks=("Cite", "Code"), **changes):
    """24 pairs in both orders; the first shown wins in a third of them, the better one in the others."""
    found = []
    for number in range(24):
        biased = number % 3 == 0
        trials = tuple(
            Trial(
                order=order,
                outcome=Outcome.ANSWERED,
                scores=(1.0, 0.0) if not biased or order[0] == 0 else (0.0, 1.0),
            )
            for order in ((0, 1), (1, 0))
        )
        found.append(
            JudgmentRecord(
                id=f"{number}",
                group=f"{number}",
                outcome=Outcome.ANSWERED,
                ranks=(1, 2),
                order=(0, 1),
                scores=(0.5, 0.5) if biased else (1.0, 0.0),
                length=1024 << number % 2,
                task=tasks[number % len(tasks)],
                trials=trials,
                **changes,
            )
        )
    return found


def printed(capsys, monkeypatch, summary, columns=80):
    monkeypatch.setenv("COLUMNS", str(columns))
    print_evaluation(parse_evaluation(summary))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    return " ".join(out.split())


def summed(found, **options):
    return summarize(found, model="judge", bench="probe", resamples=100, **options)


@pytest.mark.parametrize("columns", [80, 50])
def test_every_line_is_the_summarys_and_fits(capsys, monkeypatch, columns):
    found = records(
        cut=Cut("middle", 10), baselines={"longest": (0.0, 1.0), "overlap": (1.0, 0.0)}, characters=(5, 9)
    )
    summary = summed(found, scale="verdict", rule="judgebench")
    summary["audit"] = {
        "comparisons": 24,
        "findings": {"duplicates": {"what": "comparisons that came before", "count": 2, "examples": []}},
    }
    out = printed(capsys, monkeypatch, summary, columns)
    for said in (
        "judge on probe",
        "all 83.3 [",
        "1024 83.3 [",
        "Cite 83.3 [",
        "mean 83.3 [",
        "Outcomes: 24 answered, in 48 trials",
        "24 contexts cut to fit, by 240 tokens in all.",
        "The same verdict in every order 66.7% [",
        "the first shown preferred 66.7% [",
        "Beats longest; does not beat overlap, which reads the context (−16.7 points [",
        "JudgeBench's own rule: 66.67%.",
        "probe: comparisons that came before (2).",
        "Context boundary:",
    ):
        assert said in out, said


def test_nothing_that_is_empty_is_printed(capsys, monkeypatch):
    plain = [
        JudgmentRecord(
            id=f"{n}",
            group=f"{n}",
            outcome=Outcome.ANSWERED,
            ranks=(1, 2),
            order=(0, 1),
            scores=(1.0, 0.0),
            task="one",
        )
        for n in range(10)
    ]
    out = printed(capsys, monkeypatch, summed(plain))
    assert out.endswith("Outcomes: 10 answered")
    for absent in ("By task", "order", "eat", "rule", "cut", "trials", "boundary", "None"):
        assert absent not in out, absent
    out = printed(capsys, monkeypatch, summed(records(("one",))))
    assert "By task" not in out
    assert "in 48 trials" in out


def test_errors_missing_verdicts_and_missing_gold_are_said(capsys, monkeypatch):
    found = [
        JudgmentRecord(id="a", group="a", outcome=Outcome.ERROR, ranks=(1, 2), order=(0, 1)),
        JudgmentRecord(id="b", group="b", outcome=Outcome.TOO_LONG, ranks=(1, 2), order=(0, 1)),
    ]
    out = printed(capsys, monkeypatch, summed(found))
    assert "Outcomes: 1 too long, 1 error" in out
    without_gold = JudgmentRecord(
        id="a", group="a", outcome=Outcome.ANSWERED, ranks=None, order=(0, 1), scores=(1.0, 0.0)
    )
    out = printed(capsys, monkeypatch, summed([without_gold]))
    assert (
        out
        == "judge on probe No gold order tells responses apart, so there is no accuracy. Outcomes: 1 answered"
    )


def test_names_are_printed_as_they_are(capsys, monkeypatch):
    summary = summed(records(("[bold]x[/bold]", "[/]")))
    out = printed(capsys, monkeypatch, summary | {"model": "[red]m[/red]"})
    assert "[bold]x[/bold]" in out
    assert "[red]m[/red] on probe" in out
