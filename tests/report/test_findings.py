"""Findings in words, against sentences written by hand."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from longrm.evaluation.context_boundary import NO_CROSSING
from longrm.evaluation.summaries import (
    AuditedKind,
    AuditSummary,
    BaselineComparison,
    BoundaryStatus,
    ContextBoundary,
    CutCounts,
    EvaluationSummary,
    PositionBias,
    RuleScore,
    StageContrast,
)
from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import parse_evaluation
from longrm.report import findings
from longrm.report.load import EvaluatedModel, ReportData, load_report
from longrm.report.palette import Style
from longrm.report.sections.rules import rules as rules_section
from longrm.runs.records import UNDEFINED, Estimate, JudgmentRecord
from longrm.types import Outcome, Scale


@pytest.fixture
def material(demo: Path) -> ReportData:
    return load_report([demo])


def told(material: ReportData, short: ContextBoundary, long: ContextBoundary, gap: Estimate | None) -> str:
    """The finding of a demo with these boundaries and this difference at 4,096 tokens."""
    changed = {"short": short, "long": long}
    stages = tuple(
        replace(stage, summary=replace(stage.summary, boundary=changed.get(stage.label, short)))
        for stage in material.stages
    )
    assert material.demo is not None
    by_length = {"128": gap, "4096": gap} if gap else None
    contrasts = {"long_vs_control": StageContrast(by_length)} if by_length else {}
    demo = replace(material.demo, contrasts=contrasts)
    return findings.finding(replace(material, stages=stages, demo=demo))


def test_the_finding_follows_the_data(material: ReportData, synthetic: ModuleType) -> None:
    boundary = synthetic.boundary
    moved = told(
        material,
        boundary("resolved", 256, 512, 370.0),
        boundary("beyond_range", 4096, None, None),
        Estimate(0.413, 0.37, 0.46, 512, 64),
    )
    assert moved == (
        "Trained on short contexts, the model falls through 75% near 370 tokens [340, 410]; trained on long ones "
        "too, it holds 75% or more up to 4,096 tokens, the longest length measured; at 4,096 tokens that is "
        "41.3 points [37.0, 46.0] above equal training on short data."
    )
    unmoved = told(
        material,
        boundary("below_range", None, 128, None),
        boundary("unresolved", 128, None, 900.0),
        Estimate(0.01, -0.02, 0.04, 512, 64),
    )
    assert unmoved == (
        "Trained on short contexts, the model is below 75% already at 128 tokens, the shortest length measured; "
        "trained on long ones too, it holds 75% up to 128 tokens, with its boundary unresolved by these data, but "
        "no difference from equal training on short data is resolved (+1.0 points [−2.0, +4.0] at 4,096 tokens)."
    )
    worse = Estimate(-0.2, -0.3, -0.1, 512, 64)
    lost = told(
        material, boundary("unresolved", 128, 512, 300.0), boundary("unresolved", None, None, None), worse
    )
    assert "holds 75% up to 128 tokens and is below it from 512 on, with its boundary unresolved" in lost
    assert "is not shown to hold 75% at any length" in lost
    assert "20.0 points [10.0, 30.0] below equal training" in lost
    assert told(
        material, boundary("resolved", 128, 512, 300.0), boundary("beyond_range", 4096, None, None), None
    )
    other = told(
        material, boundary("rising", None, 128, None), boundary("not_monotone", 128, 512, None), None
    )
    assert other == (
        "Trained on short contexts, the model is below 75% at 128 tokens and holds it at a longer length, so there is "
        "no context boundary; trained on long ones too, it holds 75% up to 128 tokens, is below it at 512 and holds it "
        "at a longer length, so there is no single context boundary."
    )
    unfitted = boundary("unresolved", 128, 512, None)
    unfitted = replace(unfitted, estimate=NO_CROSSING)
    assert "holds 75% up to 128 tokens and is below it at 512, with its boundary unresolved" in told(
        material, unfitted, unfitted, None
    )


def test_every_status_of_a_boundary_is_told_and_an_unknown_one_is_an_error(
    material: ReportData, synthetic: ModuleType
) -> None:
    said = {
        told(
            material,
            synthetic.boundary(status, 128, 512, 300.0),
            synthetic.boundary("beyond_range", 4096, None, None),
            None,
        )
        for status in get_args(BoundaryStatus)
    }
    assert len(said) == len(get_args(BoundaryStatus))
    with pytest.raises(ValueError, match="status 'sideways' of a boundary"):
        told(material, *[synthetic.boundary("sideways", 128, 512, 300.0)] * 2, None)


def estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value, low, high, 120, 120)


@pytest.fixture(scope="module")
def summary() -> EvaluationSummary:
    """Of 120 pairs of which 75 are right: nothing is wrong, nothing was asked twice."""
    records = [
        JudgmentRecord(
            id=f"{n}",
            group=f"{n}",
            outcome=Outcome.ANSWERED,
            ranks=(1, 2),
            order=(0, 1),
            scores=(1.0, 0.0) if n < 75 else (0.0, 1.0),
        )
        for n in range(120)
    ]
    return parse_evaluation(summarize(records, model="judge", bench="probe", resamples=100))


@pytest.mark.parametrize(
    ("low", "high", "side"), [(0.55, 0.7, "above"), (0.3, 0.7, "not told from"), (0.3, 0.45, "below")]
)
def test_accuracy_is_told_against_chance(
    summary: EvaluationSummary, low: float, high: float, side: str
) -> None:
    changed = replace(summary, accuracy=replace(summary.accuracy, strict=estimate(0.4, low, high)))
    assert findings.accuracy(changed) == (
        f"Pair accuracy 40.0% [{100 * low:.1f}, {100 * high:.1f}] on 120 comparisons, {side} chance (50.0%)."
    )


def test_accuracy_of_nothing_is_said_to_be_none(summary: EvaluationSummary) -> None:
    nothing = replace(summary, accuracy=replace(summary.accuracy, strict=UNDEFINED))
    assert findings.accuracy(nothing).startswith("No judgment has a known gold order")


def test_a_model_that_does_not_beat_a_baseline_is_said_not_to(summary: EvaluationSummary) -> None:
    beaten = BaselineComparison(UNDEFINED, estimate(0.2, 0.1, 0.3), beaten=True)
    not_beaten = BaselineComparison(UNDEFINED, estimate(-0.012, -0.05, 0.026), beaten=False)
    cases = {
        "Beats longest.": {"longest": beaten},
        "Beats longest and overlap.": {"longest": beaten, "overlap": beaten},
        "Beats overlap; does not beat longest (−1.2 points [−5.0, +2.6]).": {
            "longest": not_beaten,
            "overlap": beaten,
        },
        "Does not beat longest (−1.2 points [−5.0, +2.6]).": {"longest": not_beaten},
        "": {},
    }
    for said, beside in cases.items():
        assert findings.baselines(replace(summary, baselines=beside)) == said


def test_missing_verdicts_and_cuts_are_told_and_errors_are_not_taken_for_them(
    summary: EvaluationSummary,
) -> None:
    assert findings.missing(summary) == findings.cuts(summary) == ""
    outcomes = dict.fromkeys(Outcome, 0) | {
        Outcome.ANSWERED: 110,
        Outcome.UNPARSED: 6,
        Outcome.TOO_LONG: 1,
        Outcome.ERROR: 3,
    }
    held = replace(summary, counts=replace(summary.counts, outcomes=outcomes, cut=CutCounts(1, 3400)))
    assert (
        findings.missing(held)
        == "7 of 120 comparisons without a verdict, counted as wrong: 6 unparsed, 1 too long."
    )
    assert findings.cuts(held) == "1 context cut to fit, by 3,400 tokens in all."


def test_order_is_told_where_it_was_asked(summary: EvaluationSummary) -> None:
    both = PositionBias(
        estimate(0.8, 0.7, 0.9),
        estimate(0.6, 0.5, 0.7),
        {},
        single_order=UNDEFINED,
        order_cancelled=UNDEFINED,
    )
    assert findings.order(summary) == ""
    assert (
        findings.order(replace(summary, position=both))
        == "The same verdict in every order 80.0% [70.0, 90.0]; the first shown preferred 60.0% [50.0, 70.0]."
    )
    assert (
        findings.order(replace(summary, position=replace(both, first_wins=UNDEFINED)))
        == "The same verdict in every order 80.0% [70.0, 90.0]."
    )


def test_rules_and_wrong_data_are_told(summary: EvaluationSummary) -> None:
    found = {
        "rising_scores": AuditedKind("items whose scores rise", 3, ("Cite/1",)),
        "duplicates": AuditedKind("comparisons that came before", 0, ()),
        "no_clear_gap": AuditedKind("questions without a clear gap; left out", 9, ()),
    }
    held = replace(
        summary,
        bench="judgebench:/data/x/pairs.jsonl",
        rules={"judgebench": RuleScore(62.2857, left_out=0)},
        audit=AuditSummary(120, found),
    )
    assert findings.rules(held) == ["JudgeBench's own rule: 62.29%."]
    assert findings.wrong_data(held) == ["judgebench:pairs.jsonl: items whose scores rise (3)."]
    assert findings.rules(summary) == findings.wrong_data(summary) == []


def test_a_rule_without_a_figure_tells_why() -> None:
    records = [
        JudgmentRecord(
            id=name,
            group=name,
            outcome=Outcome.ANSWERED,
            ranks=(1, 2),
            order=(0, 1),
            scores=(1.0, 0.0),
            task="Ties",
        )
        for name in ("tied:1", "ref:1")
    ]
    scales: tuple[Scale, ...] = ("verdict", "logit")
    told = {
        scale: findings.rules(
            parse_evaluation(
                summarize(records, model="m", bench="b", scale=scale, rule="rewardbench-2", resamples=20)
            )
        )
        for scale in scales
    }
    why = "Ties and the overall score need ratings: a scalar model, or judge.format = pointwise"
    assert told["verdict"] == [f"RewardBench 2's own rule: – ({why})."]
    assert told["logit"] == ["RewardBench 2's own rule: 101.00%."]  # the most that Ties gives


def test_parts_of_a_rule_stand_in_its_order(summary: EvaluationSummary) -> None:
    score = RuleScore(
        60.0,
        left_out=0,
        parts={
            "by_difficulty_percent": {"easy": 80.0, "normal": 60.0, "hard": 40.0},
            "by_domain_percent": {"chat": 70.0, "math": 50.0},
        },
    )
    held = replace(summary, rules={"rm-bench": score})
    section = rules_section([EvaluatedModel("one", Style(0), held, None)])
    assert section is not None
    (table,) = section.tables
    assert table.columns == ("model", "overall", "easy", "normal", "hard", "chat", "math")
    (row,) = table.rows
    assert [cell.text for cell in row.cells] == [
        "60.00%", "80.00%", "60.00%", "40.00%", "70.00%", "50.00%"
    ]  # fmt: skip


def test_of_many_models_the_first_are_told_and_the_others_counted(summary: EvaluationSummary) -> None:
    stages = tuple(
        EvaluatedModel(f"run {n}", Style(n), replace(summary, model=f"model-{n}"), None) for n in range(10)
    )
    material = ReportData((), stages, (), ())
    assert [entry.label for entry in findings.statements(material)] == [
        f"run {n} · model-{n}" for n in range(8)
    ]
    assert findings.finding(material) == "2 more models in the tables below."


def test_a_length_at_which_the_control_is_better_is_in_the_headline(material: ReportData) -> None:
    worse, better = Estimate(-0.383, -0.45, -0.3, 128, 16), Estimate(0.175, 0.1, 0.25, 120, 12)
    assert material.demo is not None
    contrast = material.demo.contrasts["long_vs_control"]

    def finding(gap: Estimate) -> str:
        contrasts = {"long_vs_control": replace(contrast, best_of_4={"128": gap, "4096": better})}
        return findings.finding(replace(material, demo=replace(material.demo, contrasts=contrasts)))

    assert "best of 4" in finding(worse)
    assert "−38.3" in finding(worse)
    assert "best of 4" not in finding(better)
    (long,) = (run for run in material.trained if run.label == "long")
    (control,) = (run for run in material.trained if run.label == "control")
    first = next(step.step for step in long.steps if step.length > max(one.length for one in control.steps))
    assert f"from step {first} of {len(long.steps)} on" in finding(worse)
    assert "training data" not in finding(better)
