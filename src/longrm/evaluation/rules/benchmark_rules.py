"""The rules of JudgeBench, RM-Bench, IF-RewardBench, Long-form RewardBench and Plan-RewardBench.

In every rule `left_out` is the number of comparisons that ended in an error: these are never scored. Other comparisons
without an answer are wrong.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from longrm.evaluation.table import FloatArray, is_scored, left_out
from longrm.reward_models.trials import points
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome, Scale, Trial, margin


def judgebench(records: Sequence[JudgmentRecord], scale: Scale) -> dict[str, Any]:
    """JudgeBench (Tan et al. 2024, arXiv 2410.12784): pairs with more trials for the gold order than against it.

    Each trial adds 1 if it agrees, -1 if it disagrees, and 0 for a tie or without an answer. A sum of 0 is not correct;
    `undecided` counts these. Pairs whose gold ties (identical responses) can not be correct.
    """
    # The counter of compute_final_metrics in utils/metrics.py, github.com/ScalerLab/JudgeBench at e2c52c2.
    known = [record for record in records if record.ranks is not None]
    sums: dict[str, list[int]] = defaultdict(list)
    for record in known:
        if record.outcome is not Outcome.ERROR:
            sums[record.task].append(sum(_sign(_lead(trial, record)) for trial in record.trials))
    votes = [vote for found in sums.values() for vote in found]
    return {
        "overall_percent": percent([vote > 0 for vote in votes]),
        "by_category_percent": percents({name: [vote > 0 for vote in found] for name, found in sums.items()}),
        "pairs": len(votes),
        "correct": sum(vote > 0 for vote in votes),
        "undecided": sum(vote == 0 for vote in votes),
        "left_out": len(known) - len(votes),
    }


# compute_accuracy in scripts/utils.py, github.com/THU-KEG/RM-Bench at 73c52d7, with its MATRIX_SIZE.
_STYLES = 3  # of the right responses, which come first, and of the wrong ones; the richer, the later


def rm_bench(records: Sequence[JudgmentRecord], scale: Scale) -> dict[str, Any]:
    """RM-Bench (Liu et al. 2024, arXiv 2410.16184): accuracies by difficulty.

    An item has nine pairs: hard where the right response has the poorer style, normal where both have the same, easy
    where it has the richer one. A pair is right if the right response scores strictly higher. Accuracies are means over
    the items of a domain, then over domains; a domain's accuracy is the mean of its difficulties.
    """
    matrices: dict[str, list[FloatArray]] = defaultdict(list)
    for record in records:
        if is_scored(record):
            values = np.array(points(record) or (0.0,) * (2 * _STYLES))
            # Rows are styles of the right response, columns of the wrong one.
            matrices[record.task].append((values[:_STYLES, None] > values[None, _STYLES:]).astype(np.float64))
    above = np.triu_indices(_STYLES, 1)
    domains, difficulties = {}, defaultdict[str, list[float]](list)
    for name, found in sorted(matrices.items()):
        matrix = np.mean(found, axis=0)
        easy, normal, hard = matrix.T[above].mean(), np.diag(matrix).mean(), matrix[above].mean()
        domains[name] = 100 * float(np.mean([easy, normal, hard]))
        for difficulty, accuracy in (("easy", easy), ("normal", normal), ("hard", hard)):
            difficulties[difficulty].append(float(accuracy))
    return {
        "overall_percent": float(np.mean([*domains.values()])) if domains else None,
        "by_difficulty_percent": {name: 100 * float(np.mean(found)) for name, found in difficulties.items()},
        "by_domain_percent": domains,
        "left_out": left_out(records),
    }


def if_rewardbench(records: Sequence[JudgmentRecord], scale: Scale) -> dict[str, Any]:
    """IF-RewardBench (Wen et al. 2026, arXiv 2603.04738): accuracy and Kendall's tau-b over the edges of items.

    With C edges judged as in gold, D reversed and T tied or unanswered, an item's accuracy is C / (C + D + T) and its
    tau-b (C - D) / sqrt((C + D) (C + D + T)), 0 if all tie (gold has no ties). Means are over items, then over types of
    instructions.
    """
    # calculate_metric_stats in metrics/analysis_overall_assessment.py, github.com/thu-coai/IF-RewardBench at c192fe9;
    # the means over items and then types are at the end of that file.
    edges: dict[tuple[str, str], list[int]] = defaultdict(list)
    for record in records:
        if is_scored(record):
            edges[record.task, record.group].append(_sign(_lead(record, record)))
    accuracies, taus = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for (kind, _), signs in edges.items():
        right, wrong = signs.count(1), signs.count(-1)
        accuracies[kind].append(right / len(signs))
        taus[kind].append((right - wrong) / math.sqrt(max(1, (right + wrong) * len(signs))))
    by_type = {kind: fmean(found) for kind, found in sorted(accuracies.items())}
    tau_by_type = {kind: fmean(found) for kind, found in sorted(taus.items())}
    return {
        "overall_percent": 100 * fmean(by_type.values()) if by_type else None,
        "kendall_tau_b": fmean(tau_by_type.values()) if by_type else None,
        "by_type_percent": {kind: 100 * accuracy for kind, accuracy in by_type.items()},
        "kendall_tau_b_by_type": tau_by_type,
        "items": len(edges),
        "edges": sum(map(len, edges.values())),
        "left_out": left_out(records),
    }


def long_form_rewardbench(records: Sequence[JudgmentRecord], scale: Scale) -> dict[str, Any]:
    """Long-form RewardBench (Huang et al. 2026, arXiv 2603.12963): items whose right responses beat all wrong ones."""
    # "Traditional accuracy" in evaluation/cal_accuracy_from_file.py, github.com/HuihuiChyan/Long-formRMB at e30933a.
    right: dict[str, list[bool]] = defaultdict(list)
    for record in records:
        if is_scored(record):
            judged = list(zip(points(record), record.ranks or (), strict=False))
            chosen = [value for value, rank in judged if rank == 1]
            rejected = [value for value, rank in judged if rank != 1]
            right[record.task].append(bool(judged) and min(chosen) > max(rejected))
    everything = [one for found in right.values() for one in found]
    return {
        "overall_percent": percent(everything),
        "by_subset_percent": percents(right),
        "items": len(everything),
        "left_out": left_out(records),
    }


_TIE = 1e-4  # tie_eps in eval/evaluate_benchmark_final.py, github.com/wyy-1112/Plan-RewardBench at ffe6fbe


def plan_rewardbench(records: Sequence[JudgmentRecord], scale: Scale) -> dict[str, Any]:
    """Plan-RewardBench (arXiv 2604.08178): the accuracy of every split over all trials, and the mean over splits.

    A trial earns 1 if the better trajectory scores higher, 1/2 if the scores differ by at most 0.0001, and 0 without a
    verdict.
    """
    splits: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if is_scored(record):
            for trial in record.trials:
                lead = _lead(trial, record)
                earned = 0.0 if lead is None else 0.5 if abs(lead) <= _TIE else float(lead > 0)
                splits[record.task].append(earned)
    accuracies = percents(splits)
    return {
        "overall_percent": sum(accuracies.values()) / len(accuracies) if accuracies else None,
        "by_split_percent": accuracies,
        "left_out": left_out(records),
    }


def _lead(trial: Trial, record: JudgmentRecord) -> float | None:
    """By how much the better response of a pair leads; None if unanswered, 0 if gold ties."""
    values = points(trial)
    return (margin(values, record.ranks or ()) or 0.0) if values else None


def _sign(lead: float | None) -> int:
    return 0 if lead is None else int(lead > 0) - int(lead < 0)


def percent(credits: Sequence[float]) -> float | None:
    """The mean credit in percent; None without any."""
    return 100 * sum(credits) / len(credits) if credits else None


def percents(parts: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The mean credit of every part in percent, in ascending order of names."""
    return {name: 100 * sum(credits) / len(credits) for name, credits in sorted(parts.items())}
