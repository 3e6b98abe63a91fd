"""Sums up one evaluation as plain JSON; `runs/summary.schema.json` describes the result."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from longrm.evaluation.accuracy import accuracy, outcome_rates
from longrm.evaluation.baselines import against_baselines
from longrm.evaluation.breakdown import breakdown
from longrm.evaluation.calibration import calibration
from longrm.evaluation.diagnosis import Boundary, boundary_of
from longrm.evaluation.failures import failures
from longrm.evaluation.gold_pairs import GoldPairs
from longrm.evaluation.length_bias import length_bias
from longrm.evaluation.metrics import RESAMPLES, chance_of, ratio
from longrm.evaluation.position import position
from longrm.evaluation.power import recommended
from longrm.evaluation.rules import figures_by_rule
from longrm.evaluation.scoring import has_gold_order, is_scored
from longrm.evaluation.table import ScoreTable
from longrm.evaluation.votes import votes
from longrm.runs.folder import SCHEMA_VERSION
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome, Scale


def summarize(
    records: Sequence[JudgmentRecord],
    *,
    model: str,
    bench: str,
    scale: Scale = "none",
    rule: str = "",
    release_rule: bool = False,
    seed: int = 0,
    resamples: int = RESAMPLES,
    tau: float | None = None,
) -> dict[str, Any]:
    """Counts, metrics with intervals, biases, and the context boundary of one model on one benchmark.

    Args:
        records: All judgments of the run.
        model: The reward model's name.
        bench: The benchmark's name.
        scale: What a difference of two scores means.
        rule: A published rule, one of `rules.RULES`, by which to sum up as well; empty for none.
        release_rule: Whether to add how the LongRM release would score the same outputs.
        seed: Of the bootstrap.
        resamples: Of the bootstrap.
        tau: Level that defines the boundary; (1 + chance) / 2 if None.

    Returns:
        A dictionary of JSON values. `complete` is false where a record is an error. Buckets without a scored
        record have metrics of null with n = 0.

    Raises:
        ValueError: If a depth lies outside [0, 1], tau outside (0, 1), or an answer does not fit its gold.
    """
    table = ScoreTable.of(records)
    # Where nothing was answered there is no judgment whose reach could be told.
    answered = any(record.outcome is Outcome.ANSWERED for record in records)
    boundary = boundary_of(table, tau=tau, seed=seed, resamples=resamples) if answered else None
    rules = [*([rule] if rule else []), *(["release"] if release_rule else [])]
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "evaluation",
        "model": model,
        "bench": bench,
        "scale": scale,
        "complete": all(record.outcome is not Outcome.ERROR for record in records),
        "counts": _counts(records),
        "chance": {name: chance_of(table, name) for name in table.names()} if table.size.size else {},
        "metrics": breakdown(records, table, seed=seed, resamples=resamples),
        "outcome_rates": outcome_rates(records, seed=seed, resamples=resamples),
        "failures": failures(records, seed=seed, resamples=resamples),
        **_of_scored(records, table, scale, seed, resamples),
        "boundary": None if boundary is None else _boundary(boundary),
        **figures_by_rule(rules, records, scale),
    }


def _of_scored(
    records: Sequence[JudgmentRecord], table: ScoreTable, scale: Scale, seed: int, resamples: int
) -> dict[str, Any]:
    """What is measured on the comparisons with gold."""
    scored = [record for record in records if is_scored(record)]
    pairs = GoldPairs.of(scored, table)
    ties = ratio((pairs.margin == 0) * 1.0, pairs.answered, pairs.group, seed=seed, resamples=resamples)
    beside = against_baselines(scored, table, seed=seed, resamples=resamples)
    return {
        "accuracy": accuracy(scored, table, seed=seed, resamples=resamples),
        "position": position(scored, table, seed=seed, resamples=resamples),
        "length_bias": length_bias(pairs, seed=seed, resamples=resamples),
        "ties": asdict(ties),
        "calibration": calibration(scored, pairs, scale, seed=seed),
        "votes": votes(scored, table, seed=seed, resamples=resamples),
        "baselines": beside,
        "beats_baselines": all(found["beaten"] for found in beside.values()) if beside else None,
        "recommended": recommended(table, seed=seed, resamples=resamples),
    }


def _counts(records: Sequence[JudgmentRecord]) -> dict[str, Any]:
    askings = [trial for record in records for trial in record.askings()]
    cuts = [record.cut for record in records if record.cut is not None]
    return {
        "comparisons": len(records),
        "groups": len({record.group for record in records}),
        "outcomes": _outcomes(record.outcome for record in records),
        "without_gold": sum(not has_gold_order(record) for record in records),
        "trials": {"total": len(askings), "outcomes": _outcomes(trial.outcome for trial in askings)},
        "cut": {"comparisons": len(cuts), "tokens": sum(cut.tokens for cut in cuts)},
        "retried": sum(trial.attempts > 1 for trial in askings),
        "context_check": _checks(records),
    }


def _checks(records: Sequence[JudgmentRecord]) -> dict[str, int] | None:
    states = Counter[str](record.context_check for record in records)
    asked = ("same", "changed", "unanswered", "impossible")
    return {state: states[state] for state in asked} if any(states[state] for state in asked) else None


def _outcomes(found: Iterable[Outcome]) -> dict[str, int]:
    counts = Counter(found)
    return {outcome.value: counts[outcome] for outcome in Outcome}


def _boundary(boundary: Boundary) -> dict[str, Any]:
    effective = {str(length): n for length, n in boundary.effective_n.items()}
    return asdict(boundary) | {"effective_n": effective}
