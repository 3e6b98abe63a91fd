"""Judges the same pairs by one language model in several ways: its likelihood, token scores, and verdicts in words."""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from measuring import circumstances, show

from longrm.data.tokenizing import Tokenizer
from longrm.evaluation.estimates import wilson
from longrm.reward_models import JudgeSettings, RewardModel, load
from longrm.reward_models.trials import best
from longrm.types import Comparison, Outcome, presented_order, query_of
from longrm.worlds import WorldPlan, generate

ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "likelihood": ("likelihood:", {}),
    "likelihood, mean": ("likelihood:", {"likelihood": "mean"}),
    "tokens, pairwise": ("tokens:", {"format": "pairwise"}),
    "tokens, pointwise": ("tokens:", {"format": "pointwise"}),
    "writing, pairwise": ("", {"format": "pairwise", "retries": 0}),
    "writing, pointwise": ("", {"format": "pointwise", "retries": 0}),
}


def measure(name: str, pairs: Sequence[Comparison], options: argparse.Namespace) -> dict[str, Any]:
    kind, settings = ARMS[name]
    judge = JudgeSettings(max_tokens=options.max_tokens, **settings)
    model = load(f"{kind}{options.model}", judge=judge)
    _correct(model, pairs[:1])  # warms up
    start = time.perf_counter()
    found = [_correct(model, [pair]) for pair in pairs]  # one by one, so that no arm gains by batches
    seconds = time.perf_counter() - start
    points = [value for value in found if value is not None]
    share = sum(found_ or 0.0 for found_ in found) / len(pairs)
    return {
        "arm": name,
        "pairs": len(pairs),
        "tokens": options.length,
        "accuracy_strict": round(share, 4),
        "interval": [round(limit, 4) for limit in wilson(share, len(pairs))],
        "accuracy_of_answered": round(sum(points) / len(points), 4) if points else None,
        "without_verdict": round(1 - len(points) / len(pairs), 4),
        "seconds_an_item": round(seconds / len(pairs), 3),
        "max_tokens": options.max_tokens if not kind else 0,
        **circumstances(options),
    }


def _correct(model: RewardModel, pairs: Sequence[Comparison]) -> float | None:
    """Whether only the chosen response is judged best, in both orders if the order matters; None without a verdict."""
    (pair,) = pairs
    order = presented_order(pair, 0)
    (trial,) = model.judge_in_all_orders([query_of(pair, order)])
    if trial.outcome is not Outcome.ANSWERED:
        return None
    return float({order[place] for place in best(trial)} == {pair.best_first()[0]})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a folder with a causal language model")
    parser.add_argument("--world", default="records")
    parser.add_argument("--length", type=int, default=512, help="tokens of a context")
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64, help="most tokens of a verdict in words")
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="print one JSON line per arm instead of text")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plan = WorldPlan(options.world, options.length, responses=2)
    pairs = list(generate(plan, options.pairs, Tokenizer.load(options.model)))
    for name in options.arms:
        show(measure(name, pairs, options), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
