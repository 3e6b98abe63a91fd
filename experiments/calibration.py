"""Calibration of the statistics: coverage of the intervals, power at the recommended n, chance levels.

Simulated judges are right at a stated rate, on comparisons that are independent or come in groups of four whose
rates are drawn (Beta, intra-group correlation 0.3). Over many seeds the 95% intervals should cover that rate in
93-97% of the runs, the paired interval against a judge 10 points worse should exclude 0 in at least 95% at the
recommended n, and random orders should reach the chance level. The script fails if they do not.

`designs` has more kinds of groups, up to an accuracy of 99%: the correct comparisons of a group are beta-binomial, with
the stated accuracy and intra-group correlation, and intervals should cover it in 93% of the runs at least.

Two arms run end to end: a simulated reward model in an evaluation, with one order or both, whose metrics should cover
its stated rate; and the n that a pilot of 200 recommends, which should have the power.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
from recording import circumstances

from longrm.evaluation.estimates import metrics_for, ratio
from longrm.evaluation.judge_behavior import DIFFERENCE, POWER, comparisons_needed, recommended
from longrm.evaluation.metrics import exact_order_credit, position_match_credit
from longrm.evaluation.table import scored_table
from longrm.evaluation.trials import JudgingSettings, TrialJudge
from longrm.reward_models.simulated import ErrorRates, SimulatedRewardModel
from longrm.runs.records import Estimate, JudgmentRecord
from longrm.types import Comparison, Outcome

RATES = (0.55, 0.75, 0.9)
SMALL = 200
ERROR = 0.25
CORRELATION = 0.3
GROUPS = {"independent": 1, "groups of 4": 4}
COVERAGE = (0.93, 0.97)
CHANCE = {2: (0.5, 0.5), 3: (1 / 3, 1 / 6), 4: (0.25, 1 / 24)}
"""Number of responses -> what a random order earns position by position, and as a whole."""
_ORDERS = 100  # random orders a seed

DESIGNS = tuple(product((16, 32, 64), (2, 4, 16), (0.5, 0.7, 0.9, 0.97, 0.99), (0.0, 0.05, 0.3)))
"""Groups, comparisons in each, accuracy and correlation."""

Outcomes = npt.NDArray[np.float64]


def judge(rng: np.random.Generator, rate: float, n: int, per_group: int) -> Outcomes:
    """1 for each comparison judged right, 0 for each other."""
    rates = np.full(n, rate)
    if per_group > 1:
        spread = (1 - CORRELATION) / CORRELATION
        rates = np.repeat(rng.beta(rate * spread, (1 - rate) * spread, n // per_group), per_group)
    return (rng.random(n) < rates).astype(np.float64)


def interval(
    outcomes: Outcomes, per_group: int, resamples: int, span: tuple[float, float] = (0, 1)
) -> Estimate:
    group = np.arange(outcomes.size) // per_group
    # One bootstrap seed for all: its draws are made once, and the outcomes differ.
    return ratio(outcomes, np.ones_like(outcomes), group, span=span, seed=0, resamples=resamples)


def holds(metric: Estimate, value: float) -> bool:
    assert metric.low is not None, "there are outcomes"
    assert metric.high is not None, "there are outcomes"
    return metric.low <= value <= metric.high


def coverage_and_power(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for structure, per_group in GROUPS.items():
        for rate in RATES:
            needed = comparisons_needed(rate, 1 + (per_group - 1) * CORRELATION)
            needed += -needed % per_group
            for n in (SMALL, needed):
                covered = apart = 0
                for seed in range(options.seeds):
                    rng = np.random.default_rng(seed)
                    ours, theirs = (judge(rng, p, n, per_group) for p in (rate, rate - DIFFERENCE))
                    covered += holds(interval(ours, per_group, options.resamples), rate)
                    paired = interval(ours - theirs, per_group, options.resamples, (-1, 1))
                    apart += not holds(paired, 0.0)
                share, power = covered / options.seeds, apart / options.seeds
                yield {
                    "judge": structure,
                    "rate": rate,
                    "n": n,
                    "recommended": n == needed,
                    "coverage": share,
                    "told_apart": power,
                    "holds": COVERAGE[0] <= share <= COVERAGE[1] and (n != needed or power >= POWER),
                }


def designs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Coverage and mean length of the interval of an accuracy in `DESIGNS`, and how often it is too high or too low."""
    for groups, size, rate, correlation in DESIGNS:
        rng = np.random.default_rng((groups, size, round(1000 * rate), round(1000 * correlation)))
        shape = (options.seeds, groups)
        rates = np.full(shape, rate)
        if correlation:
            spread = (1 - correlation) / correlation
            rates = rng.beta(rate * spread, (1 - rate) * spread, shape)
        outcomes = (rng.random((*shape, size)) < rates[..., None]).astype(np.float64)
        found = [interval(one.ravel(), size, options.resamples) for one in outcomes]
        limits = np.array([(one.low, one.high) for one in found], np.float64)
        high, low = (limits[:, 0] > rate).mean(), (limits[:, 1] < rate).mean()
        yield {
            "judge": "beta-binomial",
            "groups": groups,
            "size": size,
            "rate": rate,
            "correlation": correlation,
            "coverage": float(1 - high - low),
            "too_high": float(high),
            "too_low": float(low),
            "length": float(np.ptp(limits, axis=1).mean()),
            "holds": bool(1 - high - low >= COVERAGE[0] - 2 * (0.93 * 0.07 / options.seeds) ** 0.5),
        }


def asked(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Coverage of the metrics of a simulated reward model in an evaluation."""
    pairs = [_pair(number) for number in range(SMALL)]
    for orders in ("one", "both"):
        covered = 0
        for seed in range(options.asked_seeds):
            model = SimulatedRewardModel(ErrorRates(error=ERROR), pairs, seed)
            asker = TrialJudge(model, JudgingSettings(seed=seed, orders=orders, baselines=()))
            records = [replace(record, ranks=(1, 2)) for record in asker.records(pairs)]
            covered += holds(
                metrics_for(scored_table(records), resamples=options.resamples)["pair_accuracy"], 1 - ERROR
            )
        share = covered / options.asked_seeds
        yield {
            "judge": f"simulated, asked in {orders} order{'s' * (orders == 'both')}",
            "rate": 1 - ERROR,
            "n": SMALL,
            "coverage": share,
            "holds": _in_coverage(share, options.asked_seeds),
            "seeds": options.asked_seeds,
        }


def piloted(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Power at the n that a pilot recommends, with a new pilot each time."""
    apart, sizes = 0, []
    rate = 1 - ERROR
    for seed in range(options.seeds):
        rng = np.random.default_rng(seed)
        pilot = scored_table([_judged(k, right) for k, right in enumerate(judge(rng, rate, SMALL, 1))])
        found = recommended(pilot, seed=0, resamples=options.resamples)
        assert found is not None, "the pilot is scored"
        n = found.comparisons
        ours, theirs = (judge(rng, p, n, 1) for p in (rate, rate - DIFFERENCE))
        apart += not holds(interval(ours - theirs, 1, options.resamples, (-1, 1)), 0.0)
        sizes.append(n)
    power = apart / options.seeds
    yield {
        "judge": "independent, n from a pilot",
        "rate": rate,
        "pilot": SMALL,
        "n": float(np.mean(sizes)),
        "told_apart": power,
        "holds": power >= POWER,
    }


def _in_coverage(share: float, seeds: int) -> bool:
    """Within three standard errors of 95%: with few seeds the share itself is noisy."""
    allowed = 3 * (0.95 * 0.05 / seeds) ** 0.5
    return COVERAGE[0] - allowed <= share <= COVERAGE[1] + allowed


def _pair(number: int) -> Comparison:
    prompt = ({"role": "user", "content": f"Question {number}?"},)
    responses = tuple(({"role": "assistant", "content": text},) for text in ("right", "wrong"))
    return Comparison(f"{number}", f"{number}", prompt, responses, (1, 2))


def _judged(number: int, right: float) -> JudgmentRecord:
    name = f"{number}"
    return JudgmentRecord(
        id=name, group=name, outcome=Outcome.ANSWERED, ranks=(1, 2), order=(0, 1), scores=(right, 1 - right)
    )


def chance(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for n, levels in CHANCE.items():
        rng = np.random.default_rng(n)
        ranks = tuple(range(1, n + 1))
        orders = rng.permuted(np.tile(np.arange(float(n)), (options.seeds * _ORDERS, 1)), axis=1)
        earned = [
            float(np.mean([credit(order, ranks) for order in orders.tolist()]))
            for credit in (position_match_credit, exact_order_credit)
        ]
        errors = [(level * (1 - level) / len(orders)) ** 0.5 for level in levels]
        yield {
            "judge": "random orders",
            "responses": n,
            "n": len(orders),
            "position_match": earned[0],
            "exact_order": earned[1],
            "holds": all(
                abs(found - level) < 4 * error
                for found, level, error in zip(earned, levels, errors, strict=True)
            ),
        }


CHECKS = {check.__name__: check for check in (coverage_and_power, designs, asked, piloted, chance)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=list(CHECKS))
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--asked-seeds", type=int, default=300)
    parser.add_argument("--resamples", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of text")
    options = parser.parse_args()
    around = circumstances(options)
    around["versions"] |= {"numpy": np.__version__, "scipy": scipy.__version__}
    good = True
    for name in options.checks:
        for found in CHECKS[name](options):
            good &= bool(found["holds"])
            rounded = {key: round(v, 4) if isinstance(v, float) else v for key, v in found.items()}
            if options.json:
                print(json.dumps({"seeds": options.seeds} | rounded | around), flush=True)
            else:
                print("  ".join(f"{key} {value}" for key, value in rounded.items()), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
