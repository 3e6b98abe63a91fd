"""A training step of a small Qwen3.5, three of four layers Gated DeltaNet: one packed tree against separate sequences.

Separate sequences are transformers' own, with SDPA, one by one, and logits of response tokens alone. `ideal` is the
ratio of operations: matrices for every token, and attention in one of four layers; the recurrences are not counted.
"""

import argparse
import copy
import json
import random
import sys
from typing import Any

import torch
from measuring import END, circumstances, interleaved, medians, model_arguments, rounded
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.recurrent import pack_states
from longrm.modeling.shapes import PackedLayout, TokenTree
from longrm.modeling.shared_prefix import pack, response_logprobs

AGREEMENT = 1e-4
"""Largest difference between two arms' losses, relative."""


def hybrid(options: argparse.Namespace, responses: int) -> dict[str, Any]:
    """Times forward and backward passes of a prompt and its responses."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    size = options.hidden // options.heads
    config = Qwen3_5TextConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_hidden_layers=4,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        head_dim=size,
        linear_num_key_heads=options.heads,
        linear_num_value_heads=options.heads,
        linear_key_head_dim=size,
        linear_value_head_dim=size,
    )
    stock = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    ours = copy.deepcopy(stock)
    ours.set_attn_implementation(SHARED_PREFIX)
    pack_states(ours)
    draw = random.Random(1)
    prompt, *branches = (
        [draw.randrange(END + 1, options.vocabulary) for _ in range(length)]
        for length in (options.prompt, *[options.response] * responses)
    )
    packed = pack([TokenTree(prompt, branches)])

    def together() -> Tensor:
        loss = torch.cat(response_logprobs(ours, packed)).sum()
        torch.autograd.backward(loss)
        ours.zero_grad(set_to_none=True)
        return loss.detach()

    def separate() -> Tensor:
        total = torch.zeros(())
        for branch in branches:
            ids = torch.tensor([[*prompt, *branch]])
            logits = stock(ids, use_cache=False, logits_to_keep=len(branch) + 1).logits[0, :-1]
            loss = -torch.nn.functional.cross_entropy(logits, torch.tensor(branch), reduction="sum")
            torch.autograd.backward(loss)
            total += loss.detach()
        stock.zero_grad(set_to_none=True)
        return total

    matrices = sum(
        2 * part.weight.numel() for part in stock.model.modules() if isinstance(part, torch.nn.Linear)
    )
    pair = 4 * config.num_attention_heads * size  # of the one layer with attention

    def operations(layout: PackedLayout) -> float:
        return matrices * layout.tokens + pair * sum(tree.pairs() for tree in layout.trees)

    losses = float(together()), float(separate())  # warms up, too
    if abs(losses[0] - losses[1]) > AGREEMENT * abs(losses[1]):
        raise SystemExit(f"the tree has loss {losses[0]}, separate sequences {losses[1]}")
    median = medians(interleaved({"tree": together, "separate": separate}, options.repeats))
    alone = pack([TokenTree(prompt, [branch]) for branch in branches]).layout
    return {
        "speedup": round(median["separate"] / median["tree"], 3),
        "ideal": round(operations(alone) / operations(packed.layout), 3),
        "seconds": rounded(median),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model_arguments(parser)
    options = parser.parse_args()
    result = {f"hybrid, {count} responses": hybrid(options, count) for count in (3, 8)}
    if options.json:
        print(json.dumps(result | circumstances(options)))
        return 0
    for name, own in result.items():
        print(f"{name}: {own['speedup']} times as fast as separate sequences; ideal {own['ideal']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
