"""Summarizes one evaluation; `summary_schema` defines the contents of a summary."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from longrm.evaluation import summary_schema as schema
from longrm.evaluation.agreement import gold_agreement, repeat_agreement
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
    self_preference,
    solve_to_judge,
    vote_curve,
)
from longrm.evaluation.metrics import METRICS
from longrm.evaluation.rules import RULES, rule_key
from longrm.evaluation.table import OUTCOMES, Bootstrap, IntArray, JudgmentTable
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome, Scale


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
    self_names: Sequence[str] = (),
    counted: Mapping[str, Any] | None = None,
    added: Mapping[str, Any] | None = None,
) -> schema.EvaluationSummary:
    """Counts, metrics with intervals, biases, and the context boundary of one model on one benchmark.

    `rule` names one of `rules.RULES`; `counted` are further fields of `counts`, `added` of the summary.
    """
    drawn: Bootstrap = {"seed": seed, "resamples": resamples}
    table = JudgmentTable.of(records)
    scored, trials = table.scored, table.trial
    metrics = breakdown(table, **drawn)
    # Without any answer, everything that describes the answers is null.
    answered = bool(scored.answered.any())
    missing, errors = missing_answers(table), table.outcome == OUTCOMES.index(Outcome.ERROR)
    baselines = against_baselines(scored, **drawn) if answered else {}
    cut = table.cut_tokens[table.cut_tokens >= 0]
    checks = Counter(check for check in table.context_check if check)
    padded = Counter(check for check in table.padding_check if check)
    rules = {rule_key(rule): RULES[rule].score(records, scale)} if rule else {}
    return schema.EvaluationSummary(
        model=model,
        bench=bench,
        scale=scale,
        complete=not errors.any() and not empty_cells(missing),
        counts=schema.EvaluationCounts(
            comparisons=len(table),
            groups=table.groups,
            outcomes=_by_outcome(table.outcome),
            without_gold=int((~table.has_gold_order).sum()),
            trials=schema.TrialCounts(total=trials.outcome.size, outcomes=_by_outcome(trials.outcome)),
            cut=schema.CutCounts(comparisons=cut.size, tokens=int(cut.sum())),
            retried=trials.retried,
            context_check={name: checks[name] for name in schema.CONTEXT_CHECKS} if checks else None,
            padding_check={name: padded[name] for name in schema.PADDING_CHECKS} if padded else None,
            **(counted or {}),
        ),
        chance={name: METRICS[name].chance_on(scored) for name in metrics.overall if len(scored)},
        metrics=metrics,
        outcome_rates=outcome_rates(table, **drawn),
        failures=failures(table, **drawn),
        accuracy=accuracy(scored, **drawn),
        position=position_bias(scored, **drawn) if answered else None,
        length_bias=length_bias(scored, **drawn),
        ties=ratio((scored.pairs.margin == 0) * 1.0, scored.pairs.answered, scored.pairs.group, **drawn),
        calibration=calibration(scored, scale, seed=seed),
        votes=vote_curve(scored, **drawn) if answered else None,
        baselines=baselines,
        beats_baselines=all(one.beaten for one in baselines.values()) if baselines else None,
        recommended=recommended(scored, **drawn) if answered else None,
        boundary=boundary_of(scored, threshold=accuracy_threshold, **drawn),
        missing=missing,
        solve_to_judge=solve_to_judge(table, **drawn),
        gold_agreement=gold_agreement(table, **drawn),
        repeats=repeat_agreement(table, **drawn),
        self_preference=self_preference(table, self_names, **drawn) if self_names else None,
        **(added or {}),
        **rules,
    )


def _by_outcome(codes: IntArray) -> dict[Outcome, int]:
    return dict(zip(OUTCOMES, np.bincount(codes, minlength=len(OUTCOMES)).tolist(), strict=True))
