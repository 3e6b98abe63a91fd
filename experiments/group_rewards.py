"""How well group rewards rank the responses of a group, by judges of known error, and how many verdicts they cost.

Every group has N responses whose gold ranks are all different. A simulated judge errs in one of two ways: by pair, so
that both orders of a pair have the same wrong verdict (`simulated:0.2`), or by verdict, so that each of the two is
wrong on its own (`simulated:disagreement=0.2`). For each arm the script reports means over groups, with the half width
of their 95% interval: Kendall's tau-b and Spearman's rho with the gold order (0 if all scores tie), Kendall's tau-a, in
which ties count 0, and how often the best response is ranked first, where k responses that tie for it count 1 / k.

Errors by pair have expectations in closed form, which the script reports next to tau-a, and for anchor also next to the
best response. It fails if a measured mean is more than five standard errors away.
"""

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from recording import circumstances
from scipy.stats import kendalltau, spearmanr

import longrm
from longrm.reward_models.groups import GROUPS, verdicts_asked
from longrm.types import Comparison, query_of


def groups_of(size: int, groups: int) -> list[Comparison]:
    prompt = ({"role": "user", "content": "Which response is the best?"},)
    responses = tuple(({"role": "assistant", "content": f"response {rank}"},) for rank in range(1, size + 1))
    ranks = tuple(range(1, size + 1))
    return [Comparison(str(number), str(number), prompt, responses, ranks) for number in range(groups)]


def measure(method: str, size: int, error: float, by: str, options: argparse.Namespace) -> dict[str, Any]:
    rows = groups_of(size, options.groups)
    judge = {"group": method, "seed": options.seed}
    model = longrm.load(
        f"simulated:{error}" if by == "pair" else f"simulated:disagreement={error}", judge=judge, gold=rows
    )
    found: dict[str, list[float]] = {"kendall": [], "spearman": [], "kendall_tau_a": [], "best_first": []}
    errors = []
    for judgment in model.judge([query_of(row, range(size)) for row in rows]):
        truth, scores = -np.arange(size), np.array(judgment.scores)
        tied = len({*judgment.scores}) == 1  # then the correlations are not defined
        found["kendall"].append(0.0 if tied else kendalltau(truth, scores).statistic)
        found["spearman"].append(0.0 if tied else spearmanr(truth, scores).statistic)
        signs = np.sign(scores[:, None] - scores)[np.triu_indices(size, 1)]  # positive where gold agrees
        found["kendall_tau_a"].append(float(signs.mean()))
        best = np.flatnonzero(scores == scores.max())
        found["best_first"].append((0 in best) / len(best))
        errors.append(statistics.fmean(judgment.standard_errors))
    expected = expectations(method, size, error) if by == "pair" else {}
    result: dict[str, Any] = {
        "method": method,
        "n": size,
        "error": error,
        "error_by": by,
        "verdicts": verdicts_asked(method, size),
        "groups": options.groups,
        "seed": options.seed,
    }
    for name, values in found.items():
        mean, deviation = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
        result[name] = [round(mean, 4), round(1.96 * deviation, 4)]
        if name in expected:
            result[f"{name}_expected"] = round(expected[name], 4)
            assert abs(mean - expected[name]) <= 5 * deviation + 1e-9, (result, name, expected[name])
    return {**result, "standard_error": round(statistics.fmean(errors), 4)}


# ---- Closed forms for errors by pair ----


def expectations(method: str, size: int, error: float) -> dict[str, float]:
    if method == "anchor":
        # The N - 1 pairs with the anchor, and the (N - 1) (N - 2) / 6 that it separates on average, are ordered right
        # rather than wrong by 1 - 2 errors: (1 - error)^2 - error^2 is the same number. All others tie on average.
        tau = (1 - 2 * error) * (size + 4) / (3 * size)
        return {"kendall_tau_a": tau, "best_first": anchor_first(size, error)}
    # Strengths of a round-robin are ordered by wins. For each pair, the distribution of the difference of their wins.
    leads = []
    for better in range(size):
        for worse in range(better + 1, size):
            others = [rank for rank in range(size) if rank not in (better, worse)]
            difference = np.array([error, 0.0, 1 - error])  # of their own pair: -1, 0, 1
            for other in others:
                for beats in (better < other, not worse < other):  # a win of the better, a loss of the worse
                    chance = 1 - error if beats else error
                    difference = np.convolve(difference, [1 - chance, chance])
            at = np.arange(len(difference)) - 1 - len(others)
            leads.append(float((np.sign(at) * difference).sum()))
    return {"kendall_tau_a": statistics.fmean(leads)}


def anchor_first(size: int, error: float) -> float:
    """How often the best is first: the mean over the anchor's rank."""
    right = 1 - error
    total = right ** (size - 1)  # the anchor is the best
    for better in range(1, size):  # the best and `better` - 1 others are better than the anchor
        total += right * shared([right] * (better - 1) + [error] * (size - 1 - better))
    return total / size


def shared(chances: Sequence[float]) -> float:
    """The mean of 1 / (1 + K), where K counts the others that also beat the anchor."""
    distribution = np.ones(1)
    for chance in chances:
        distribution = np.convolve(distribution, [1 - chance, chance])
    return float((distribution / np.arange(1, len(distribution) + 1)).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, nargs="+", default=[4, 8], help="responses of a group")
    parser.add_argument("--error", type=float, nargs="+", default=[0.0, 0.1, 0.2, 0.3])
    parser.add_argument("--groups", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for size in options.n:
        for by in ("pair", "verdict"):
            for error in options.error:
                for method in GROUPS:
                    found = measure(method, size, error, by, options)
                    print(json.dumps(found | circumstances(options)), flush=True)


if __name__ == "__main__":
    main()
