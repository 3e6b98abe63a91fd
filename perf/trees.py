"""Trees of several levels: forward and backward passes against what a user would do without them.

- `levels3`: a long context, two orders of the responses to judge, sampled judgments of each. Against one tree per
  order, which reads the context twice.
- `chain`: a trajectory with a score after every step. Against a sequence per step, and against one level, where all
  steps share the first one only.
- `one_level`: a prompt and its responses, against separate sequences.
- `hybrid`: 8 responses to a prompt in a small Qwen3.5, three of four layers Gated DeltaNet, against separate sequences;
  recurrences are not counted in `ideal`.

Separate sequences are transformers' own, with SDPA, one by one: each is freed before the next, and only the last
position goes through the head. `ideal` is the ratio of operations, causal attention included.
"""

import argparse
import copy
import json
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from measuring import (
    END,
    Arm,
    Workload,
    attention_flops_per_pair,
    circumstances,
    hybrid_config,
    interleaved,
    linear_flops_per_token,
    make_workload,
    medians,
    model_arguments,
    rounded,
)
from torch import Tensor
from transformers import AutoModelForCausalLM

from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.recurrent import pack_states
from longrm.modeling.shapes import PackedLayout, TokenTree
from longrm.modeling.shared_prefix import pack, response_logprobs, scores

AGREEMENT = 1e-4
"""Largest difference between two arms' losses, relative."""
CLOSING = 4
"""Tokens that close a turn, where a step is scored."""


def together(work: Workload, trees: Sequence[TokenTree], written: bool) -> Arm:
    """The engine: scores of all leaves, or log-probabilities of their tokens."""
    packed = pack(trees)

    def arm() -> Tensor:
        values = response_logprobs(work.ours, packed) if written else [scores(work.ours, packed)]
        loss = torch.cat(values).sum()
        torch.autograd.backward(loss)
        work.ours.zero_grad(set_to_none=True)
        return loss.detach()

    return arm


def separate(work: Workload, sequences: Sequence[Sequence[int]]) -> Arm:
    """The scores of one sequence after the other; their sum needs no graph of two of them at once."""

    def arm() -> Tensor:
        total = torch.zeros(())
        for ids in sequences:
            states = work.stock.base_model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state
            loss = work.stock.score(states[0, -1]).sum()
            torch.autograd.backward(loss)
            total += loss.detach()
        work.stock.zero_grad(set_to_none=True)
        return total

    return arm


def operations(options: argparse.Namespace, layout: PackedLayout, *, engine: bool, writes: bool) -> float:
    """Operations of a forward pass. The engine's last layer attends only from where scores are read."""
    pairs = sum(tree.pairs() for tree in layout.trees)
    if engine and not writes:
        ends = sum(sum(tree.leaves) for tree in layout.trees)
        pairs = ((options.layers - 1) * pairs + ends) / options.layers
    return linear_flops_per_token(options) * layout.tokens + attention_flops_per_pair(options) * pairs


def sequences_of(tree: TokenTree) -> list[list[int]]:
    """The sequence of every leaf."""
    packed = pack([tree])
    ids = packed.input_ids[0].tolist()
    return [[ids[index] for part in path for index in part] for path in packed.layout.paths()]


def compare(
    options: argparse.Namespace,
    work: Workload,
    tree: TokenTree,
    others: dict[str, list[TokenTree]],
    written: bool = False,
) -> dict[str, Any]:
    """Times a tree against other trees of the same sequences and, if these are scored, against them one by one."""
    arms = {"tree": together(work, [tree], written)}
    arms |= {name: together(work, trees, written) for name, trees in others.items()}
    layouts = {name: pack(trees).layout for name, trees in {"tree": [tree], **others}.items()}
    cost = {
        name: operations(options, layout, engine=True, writes=written) for name, layout in layouts.items()
    }
    if not written:
        plain = sequences_of(tree)
        arms["separate"] = separate(work, plain)
        alone = pack([TokenTree(ids) for ids in plain]).layout
        cost["separate"] = operations(options, alone, engine=False, writes=False)
    losses = {name: float(arm()) for name, arm in arms.items()}  # warms up, too
    for name, loss in losses.items():
        if abs(loss - losses["tree"]) > AGREEMENT * abs(losses["tree"]):
            raise SystemExit(f"{name} has loss {loss}, the tree {losses['tree']}")
    seconds = interleaved(arms, options.repeats)
    median = medians(seconds)
    base = "separate" if "separate" in arms else next(iter(others))
    found: dict[str, Any] = {
        "speedup": round(median[base] / median["tree"], 3),
        "ideal": round(cost[base] / cost["tree"], 3),
        "against": base,
        "tokens": {name: layout.tokens for name, layout in layouts.items()},
        "seconds": rounded(median),
        "seconds_each": {name: [round(value, 3) for value in own] for name, own in seconds.items()},
    }
    for name in others:
        if name != base:
            found[f"speedup_{name}"] = round(median[name] / median["tree"], 3)
            found[f"ideal_{name}"] = round(cost[name] / cost["tree"], 3)
    return found


def levels3(options: argparse.Namespace) -> dict[str, Any]:
    work, draw = make_workload(options, options.prompt, [options.response], writes=True), words(options)
    context, length = draw(options.prompt), options.response
    orders = [TokenTree(draw(options.order), [draw(length) for _ in range(options.judgments)]) for _ in "ab"]
    today = [TokenTree([*context, *order.tokens], order.branches) for order in orders]
    return compare(options, work, TokenTree(context, orders), {"two_prompts": today}, written=True)


def chain(options: argparse.Namespace) -> dict[str, Any]:
    work, draw = make_workload(options, options.prompt, [options.response]), words(options)
    turns = [draw(options.prompt // options.steps - CLOSING) for _ in range(options.steps)]
    closing = [*draw(CLOSING - 1), END]
    tree: TokenTree | Sequence[int] = TokenTree(turns[-1], [closing])
    for turn in turns[-2::-1]:
        tree = TokenTree(turn, [closing, tree])
    assert isinstance(tree, TokenTree)
    first, *_ = turns
    rests = [ids[len(first) :] for ids in sequences_of(tree)]
    return compare(options, work, tree, {"one_level": [TokenTree(first, rests)]})


def one_level(options: argparse.Namespace) -> dict[str, Any]:
    work = make_workload(options, options.prompt, [options.response] * 4)
    return compare(options, work, work.tree, {})


def words(options: argparse.Namespace) -> Callable[[int], list[int]]:
    draw = random.Random(1)
    return lambda count: [draw.randrange(END + 1, options.vocabulary) for _ in range(count)]


def hybrid(options: argparse.Namespace, responses: int = 8) -> dict[str, Any]:
    """Times forward and backward passes of a prompt and its responses."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    config = hybrid_config(options)
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
    pair = 4 * config.num_attention_heads * config.head_dim  # of the one layer with attention

    def operations(layout: PackedLayout) -> float:
        return matrices * layout.tokens + pair * sum(tree.pairs() for tree in layout.trees)

    losses = float(together()), float(separate())  # warms up, too
    if abs(losses[0] - losses[1]) > AGREEMENT * abs(losses[1]):
        raise SystemExit(f"the tree has loss {losses[0]}, separate sequences {losses[1]}")
    median = medians(interleaved({"tree": together, "separate": separate}, options.repeats))
    alone = pack([TokenTree(prompt, [branch]) for branch in branches]).layout
    return {
        "against": "separate",
        "speedup": round(median["separate"] / median["tree"], 3),
        "ideal": round(operations(alone) / operations(packed.layout), 3),
        "seconds": rounded(median),
    }


CASES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "levels3": levels3,
    "chain": chain,
    "one_level": one_level,
    "hybrid": hybrid,
    "hybrid, 4 responses": partial(hybrid, responses=4),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model_arguments(parser)
    parser.add_argument("--order", type=int, default=256, help="tokens of an order of the responses")
    parser.add_argument("--judgments", type=int, default=8, help="sampled for each order")
    parser.add_argument(
        "--steps", type=int, default=20, help="of the trajectory, which is as long as the prompt"
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    result = {name: CASES[name](options) for name in options.cases}
    if options.json:
        print(json.dumps(result | circumstances(options)))
        return 0
    for name, own in result.items():
        print(f"{name}: {own['speedup']} times as fast as {own['against']}; ideal {own['ideal']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
