"""Summarizes one evaluation; `summary_schema` defines the contents of a summary."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from longrm.evaluation import summary_schema as schema
from longrm.evaluation.breakdown import breakdown, empty_cells, missing_answers
from longrm.evaluation.context_boundary import boundary_of
from longrm.evaluation.estimates import RESAMPLES, ratio
from longrm.evaluation.judge_behavior import (
    accuracy,
    against_baselines,
    calibration,
    failures,
    length_bias,
    outcome_rates,
    position_bias,
    recommended,
    solve_to_judge,
    vote_curve,
)
from longrm.evaluation.metrics import METRICS
from longrm.evaluation.rules import RULES, rule_key
from longrm.evaluation.table import Bootstrap, GoldPairs, ScoreTable, has_gold_order
from longrm.runs.records import JudgmentRecord
from longrm.types import Judgment, Outcome, Scale


def summarize(
    records: Sequence[JudgmentRecord],
    *,
    model: str,
    bench: str,
    scale: Scale = "none",
    rule: str = "",
    seed: int = 0,
    resamples: int = RESAMPLES,
    accuracy_threshold: float | None = None,
    counted: Mapping[str, Any] | None = None,
    added: Mapping[str, Any] | None = None,
) -> schema.EvaluationSummary:
    """Counts, metrics with intervals, biases, and the context boundary of one model on one benchmark.

    `rule` names one of `rules.RULES`; `counted` are further fields of `counts`, `added` of the summary.
    """
    drawn: Bootstrap = {"seed": seed, "resamples": resamples}
    table = ScoreTable(records)
    metrics = breakdown(records, table, **drawn)
    # Without any answer, everything that describes the answers is null.
    answered = bool(table.answered.any())
    missing = missing_answers(records)
    pairs = GoldPairs(table)
    baselines = against_baselines(table, **drawn) if answered else {}
    trials = [trial for record in records for trial in record.trials]
    cuts = [record.cut for record in records if record.cut is not None]
    checks = Counter(record.context_check for record in records if record.context_check)
    rules = {rule_key(rule): RULES[rule].score(records, scale)} if rule else {}
    return schema.EvaluationSummary(
        model=model,
        bench=bench,
        scale=scale,
        complete=all(record.outcome is not Outcome.ERROR for record in records) and not empty_cells(missing),
        counts=schema.EvaluationCounts(
            comparisons=len(records),
            groups=len({record.group for record in records}),
            outcomes=_by_outcome(records),
            without_gold=sum(not has_gold_order(record) for record in records),
            trials=schema.TrialCounts(total=len(trials), outcomes=_by_outcome(trials)),
            cut=schema.CutCounts(comparisons=len(cuts), tokens=sum(cut.tokens for cut in cuts)),
            retried=sum(trial.attempts > 1 for trial in trials),
            context_check={name: checks[name] for name in schema.CONTEXT_CHECKS} if checks else None,
            **(counted or {}),
        ),
        chance={name: METRICS[name].chance_on(table) for name in metrics.overall if table.records},
        metrics=metrics,
        outcome_rates=outcome_rates(records, **drawn),
        failures=failures(records, **drawn),
        accuracy=accuracy(table, **drawn),
        position=position_bias(table, **drawn) if answered else None,
        length_bias=length_bias(pairs, **drawn),
        ties=ratio((pairs.margin == 0) * 1.0, pairs.answered, pairs.group, **drawn),
        calibration=calibration(table, pairs, scale, seed=seed),
        votes=vote_curve(table, **drawn) if answered else None,
        baselines=baselines,
        beats_baselines=all(one.beaten for one in baselines.values()) if baselines else None,
        recommended=recommended(table, **drawn) if answered else None,
        boundary=boundary_of(table, threshold=accuracy_threshold, **drawn),
        missing=missing,
        solve_to_judge=solve_to_judge(records, table, **drawn),
        **(added or {}),
        **rules,
    )


def _by_outcome(judgments: Sequence[Judgment]) -> dict[Outcome, int]:
    counts = Counter(judgment.outcome for judgment in judgments)
    return {outcome: counts[outcome] for outcome in Outcome}
