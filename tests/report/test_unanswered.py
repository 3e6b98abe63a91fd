"""What was not answered, in the report and the terminal, and what leaves an interval in doubt.

The control of each is the same run with everything answered.
"""

import re
from dataclasses import replace
from typing import Any

import pytest

from longrm.cli.evaluate import print_evaluation
from longrm.evaluation.metrics import PAIR_ACCURACY
from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import EvaluationSummary, parse_summary
from longrm.reporting import _incomplete, charts, formatting
from longrm.reporting.formatting import Style
from longrm.reporting.load import Model
from longrm.reporting.sections.accuracy import depth_tables, length_table
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome

METRIC = PAIR_ACCURACY.name
NO_RUN: Any = None
SAID = "31,333 > 4,096 tokens; prompt and longest response have more than the model reads"


def pairs(
    lengths: tuple[int, ...], *, silent: tuple[int, ...] = (), groups: int = 12, partly: bool = False
) -> list[JudgmentRecord]:
    """Two pairs a group and length, 3 of 4 right; at silent lengths all too long, and partly one of four elsewhere."""
    found = []
    for length in lengths:
        for number in range(2 * groups):
            gone = length in silent or (partly and number % 4 == 3)
            found.append(
                JudgmentRecord(
                    id=f"r-{length}-{number:04}",
                    group=f"{length}-{number // 2}",
                    outcome=Outcome.TOO_LONG if gone else Outcome.ANSWERED,
                    ranks=(1, 2),
                    order=(0, 1),
                    scores=() if gone else (1.0, 0.0) if number % 4 else (0.0, 1.0),
                    length=length,
                    depth=(number % 3) / 2,
                    task=("Cite", "Code")[number % 2],
                    detail=SAID if gone else "",
                )
            )
    return found


def stage(records: list[JudgmentRecord], label: str = "one") -> Model:
    return Model(label, Style.number(3), summed(records), NO_RUN)


def summed(records: list[JudgmentRecord]) -> EvaluationSummary:
    return parse_summary(summarize(records, model="tiny", bench="probe", resamples=100).to_dict())


def test_tables_show_reasons_and_how_much_was_answered() -> None:
    shown = stage(pairs((1024, 31333), silent=(31333,), partly=True))
    by_length = length_table("t", [shown], METRIC)
    assert by_length is not None
    partly, silent, mean = by_length.rows[0].cells
    assert (silent.text, silent.detail) == ("no answer", "24 of 24 too long: 31,333 > 4,096 tokens")
    assert partly.detail.endswith("18 of 24 answered")
    assert partly.text == "50.0%", "strictly: 12 of 24"
    assert mean.text == formatting.MISSING, "a mean over lengths is that of no length less"
    (by_depth,) = depth_tables([shown], METRIC)
    assert [*by_depth.columns] == ["depth", "1,024", "31,333"]
    assert [row.cells[1].text for row in by_depth.rows] == ["no answer"] * 3
    whole = length_table("t", [stage(pairs((1024, 31333)))], METRIC)
    assert whole is not None
    assert not any("answer" in cell.text + cell.detail for cell in whole.rows[0].cells)


def test_figures_have_no_point_where_nothing_was_answered() -> None:
    silent, whole = stage(pairs((1024, 2048, 31333), silent=(31333,))), stage(pairs((1024, 2048, 31333)))
    drawn = charts.accuracy([silent], METRIC, charts.WIDE)
    control = charts.accuracy([whole], METRIC, charts.WIDE)
    assert drawn is not None and control is not None  # noqa: PT018  # both are drawn
    assert (drawn.svg.count(f">{formatting.NO_ANSWER}<"), control.svg.count(f">{formatting.NO_ANSWER}<")) == (
        1,
        0,
    )
    assert "no answer at 31,333" in drawn.alt
    points = [len(re.findall(r'aria-roledescription="point"', one.svg)) for one in (drawn, control)]
    assert points == [2, 3]
    heat, plain = (charts.heat_map(one, METRIC, 0) for one in (silent, whole))
    assert heat is not None and plain is not None  # noqa: PT018
    assert (heat.svg.count(">–<"), plain.svg.count(">–<")) == (3, 0)


def printed(summary: EvaluationSummary, capsys: Any) -> str:
    print_evaluation(summary)
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("groups", "marked"), [(9, True), (10, False)])
def test_intervals_from_fewer_than_ten_groups_are_marked(groups: int, marked: bool, capsys: Any) -> None:
    records = [replace(one, depth=None, task="") for one in pairs((1024, 2048), groups=groups)]
    shown = stage(records)
    by_length = length_table("t", [shown], METRIC)
    drawn = charts.accuracy([shown], METRIC, charts.WIDE)
    assert by_length is not None and drawn is not None  # noqa: PT018
    out = printed(shown.summary, capsys)
    for text in (
        out,
        formatting.headline(stage(records[: 2 * groups]).summary),
        by_length.rows[0].cells[0].detail,
        drawn.svg,
    ):
        assert (formatting.FEW in text) is marked
    assert (formatting.FEW_NOTE in out) is marked


@pytest.mark.parametrize(
    ("model", "advice"), [("tiny", "; the same command retries them"), ("recorded:file.jsonl", "")]
)
def test_errors_are_named_with_the_retry_that_a_record_cannot_do(model: str, advice: str) -> None:
    first, *others = pairs((1024,))
    failed = replace(first, outcome=Outcome.ERROR, scores=())

    def lines(records: list[JudgmentRecord]) -> list[str]:
        summary = parse_summary(summarize(records, model=model, bench="probe", resamples=100).to_dict())
        return _incomplete([Model("one", Style.number(3), summary, NO_RUN)])

    assert lines([failed, *others]) == [f"one: 1 error{advice}"]
    assert lines([first, *others]) == []
