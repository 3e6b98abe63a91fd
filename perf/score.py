"""Scores N candidates over one prompt: a shared prefix against full passes, and a reused KV cache."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from measuring import (
    Workload,
    circumstances,
    interleaved,
    make_workload,
    medians,
    model_arguments,
    rounded,
    show,
)
from torch import Tensor
from transformers import DynamicCache

from longrm.modeling.shared_prefix import pack, scores


def shared(work: Workload) -> Tensor:
    return scores(work.ours, pack([work.tree]))


def full_passes(work: Workload) -> Tensor:
    base = work.stock.model
    ends = [
        base(input_ids=torch.tensor([[*work.tree.tokens, *branch]]), use_cache=False).last_hidden_state[0, -1]
        for branch in work.tree.branches
    ]
    values: Tensor = work.stock.score(torch.stack(ends))[:, 0]
    return values


def cache_reuse(work: Workload) -> Tensor:
    """Encodes the prompt once into a cache; appends each response and removes it again."""
    base = work.stock.model
    cache = DynamicCache(config=work.stock.config)
    base(input_ids=torch.tensor([work.tree.tokens]), past_key_values=cache, use_cache=True)
    ends = []
    for branch in work.tree.branches:
        output = base(input_ids=torch.tensor([branch]), past_key_values=cache, use_cache=True)
        ends.append(output.last_hidden_state[0, -1])
        cache.crop(-len(branch))
    values: Tensor = work.stock.score(torch.stack(ends))[:, 0]
    return values


ARMS: dict[str, Callable[[Workload], Tensor]] = {
    "shared": shared,
    "full_passes": full_passes,
    "cache_reuse": cache_reuse,
}


@torch.inference_mode()
def measure(options: argparse.Namespace) -> dict[str, Any]:
    work = make_workload(options, options.prompt, [options.response] * options.candidates)
    work.stock.eval()
    work.ours.eval()
    values = {name: arm(work) for name, arm in ARMS.items()}  # warms up, and shows that all agree
    difference = max(float((values[name] - values["full_passes"]).abs().max()) for name in ARMS)
    seconds = interleaved({name: partial(arm, work) for name, arm in ARMS.items()}, options.repeats)
    median = medians(seconds)
    return {
        "prompt": options.prompt,
        "response": options.response,
        "candidates": options.candidates,
        "speedup": round(median["full_passes"] / median["shared"], 3),
        "speedup_cache_reuse": round(median["cache_reuse"] / median["shared"], 3),
        "largest_score_difference": difference,
        "seconds": rounded(median),
        "seconds_each": {name: [round(value, 3) for value in values] for name, values in seconds.items()},
        **circumstances(options),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    model_arguments(parser)
    parser.add_argument("--candidates", type=int, default=4)
    options = parser.parse_args()
    show(measure(options), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
