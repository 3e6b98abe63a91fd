"""One training step on one comparison: a shared prefix against separate sequences, forward and backward.

The baseline is what a careful user writes: unpadded sequences, stock SDPA with `is_causal`, only the last
state through the head; one by one or as a batch, whichever is faster here. Where it takes over 5% longer than
as many bare transformers forward + backward passes, or where the share of the ideal is above 1.05, the
baseline is handicapped and the script fails.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
from measuring import (
    Arm,
    Workload,
    attention_flops_per_pair,
    circumstances,
    interleaved,
    linear_flops_per_token,
    make_workload,
    medians,
    model_arguments,
    peak_growth,
    peak_growth_in_fresh_process,
    rounded,
    show,
)
from torch import Tensor
from torch.nn import functional

from longrm.modeling.heads import scores
from longrm.modeling.shared_prefix import pack


def bradley_terry(values: Tensor) -> Tensor:
    """The first response is the chosen one."""
    return -functional.logsigmoid(values[0] - values[1:]).mean()


def shared(work: Workload) -> Tensor:
    return _step(work.ours, bradley_terry(scores(work.ours, pack([work.tree]))))


def one_by_one(work: Workload) -> Tensor:
    ends = [_states(work, [index])[0, -1] for index in range(len(work.tree.branches))]
    return _step(work.stock, bradley_terry(work.stock.score(torch.stack(ends))[:, 0]))


def batched(work: Workload) -> Tensor:
    states = _states(work, list(range(len(work.tree.branches))))
    return _step(work.stock, bradley_terry(work.stock.score(states[:, -1])[:, 0]))


def bare(work: Workload) -> Tensor:
    """Transformers' own forward and backward, once for every sequence, each freed before the next."""
    for branch in work.tree.branches:
        output = work.stock(input_ids=torch.tensor([[*work.tree.prefix, *branch]]))
        torch.autograd.backward(output.logits.sum())
    return _step(work.stock, None)


def _states(work: Workload, indices: list[int]) -> Tensor:
    ids = torch.tensor([[*work.tree.prefix, *work.tree.branches[index]] for index in indices])
    states: Tensor = work.stock.model(input_ids=ids, use_cache=False).last_hidden_state
    return states


def _step(model: Any, loss: Tensor | None) -> Tensor:
    if loss is not None:
        torch.autograd.backward(loss)
    model.zero_grad(set_to_none=True)
    return torch.zeros(()) if loss is None else loss.detach()


ARMS: dict[str, Callable[[Workload], Tensor]] = {
    "shared": shared,
    "one_by_one": one_by_one,
    "batched": batched,
    "bare": bare,
}


def ideal_speedup(options: argparse.Namespace) -> float:
    """The ratio of FLOPs, causal attention included: no implementation can do better by saving work alone."""
    c, a = linear_flops_per_token(options), attention_flops_per_pair(options)
    p, r, n = options.prompt, options.response, options.rejected + 1
    separate: float = n * (c * (p + r) + a * (p + r) ** 2 / 2)
    together: float = c * (p + n * r) + a * (p**2 / 2 + n * (r * p + r**2 / 2))
    return separate / together


def make_arm(options: argparse.Namespace, name: str, prompt: int, response: int) -> Arm:
    work = make_workload(options, options.rejected + 1, prompt, response)
    for model in (work.stock, work.ours):
        model.train()
        if options.checkpointing:
            model.activation_checkpointing_enable()
    return lambda: ARMS[name](work)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    arms = {name: make_arm(options, name, options.prompt, options.response) for name in ARMS}
    for arm in arms.values():
        arm()  # warms up
    seconds = interleaved(arms, options.repeats)
    median = medians(seconds)
    baseline = min(("one_by_one", "batched"), key=lambda name: median[name])
    memory = {name: peak_growth_in_fresh_process(name) for name in ("shared", baseline)}
    speedup, ideal = median[baseline] / median["shared"], ideal_speedup(options)
    return {
        "objective": options.objective,
        "prompt": options.prompt,
        "response": options.response,
        "rejected": options.rejected,
        "checkpointing": options.checkpointing,
        "speedup": round(speedup, 3),
        "ideal": round(ideal, 3),
        "share": round(speedup / ideal, 3),
        "memory_ratio": round(memory["shared"] / memory[baseline], 3),
        "baseline": baseline,
        "baseline_over_bare": round(median[baseline] / median["bare"], 3),
        "seconds": rounded(median),
        "seconds_each": {name: [round(value, 3) for value in values] for name, values in seconds.items()},
        "memory_bytes": memory,
        **circumstances(options),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    model_arguments(parser)
    parser.add_argument("--objective", choices=["bradley_terry"], required=True)
    parser.add_argument("--rejected", type=int, default=1, help="K, the number of rejected responses")
    parser.add_argument("--checkpointing", action="store_true", help="activation checkpointing in both arms")
    parser.add_argument("--memory-of", choices=list(ARMS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        warm = make_arm(options, options.memory_of, 64, 8)
        print(peak_growth(warm, make_arm(options, options.memory_of, options.prompt, options.response)))
        return 0
    result = measure(options)
    show(result, options.json)
    if result["share"] > 1.05 or result["baseline_over_bare"] > 1.05:
        print("the baseline is handicapped: see share and baseline_over_bare (limits 1.05)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
