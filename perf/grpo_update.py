"""Training a judge by GRPO: one update compared with TRL, and rollouts of a group compared with one at a time.

`update`: forward, loss and backward on the same rollouts, weights, old log-probabilities and advantages. TRL's
`GRPOTrainer` reads every completion with its own copy of the prompt: one at a time (`trl`) or all as one batch
(`trl_batched`). On a CPU it computes logits of all tokens; `trl_compact` reads one at a time and computes those of
completions only, as it does on a GPU. `speedup` compares with the faster of the first two, `speedup_compact` with
`trl_compact`, and `share` is its share of the ideal, the ratio of FLOPs

    G [c (P+R) + a (P+R)^2/2 + h R] / [c (P+GR) + a (P^2/2 + G (RP + R^2/2)) + G h R]

with c, a and h the FLOPs per token, per pair of tokens and per row of logits. `ideal_linear` and `ideal_attention` are
the ratios of c and of a alone. The script fails if losses or gradient norms differ by more than 1e-4, or if `share` is
above 1.05.

`orders`: the update of a comparison in both orders, G completions each, on a context of `--prompt` tokens and two
responses: as one tree (`both`), with the two prompts read separately (`apart`), and by TRL, one completion at a time.
Its continuations are sampled together, with one order after the other on the keys of the context (`in_turn`), or apart.

`rollouts`: G continuations of one prompt, sampled together (`together`) and one by one (`singly`). Both read the prompt
once; the second reads its last token again for each continuation. `seconds_per_token` is the time of all over their
tokens; without the prompt, it is the difference to one token each. The script fails if the texts differ.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from measuring import (
    END,
    Arm,
    Workload,
    as_text,
    attention_flops_per_pair,
    circumstances,
    hand_over,
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

from longrm.data.joining import Encoded
from longrm.data.training_rows import Example
from longrm.modeling.group_sampling import Continuation, GroupSampler
from longrm.modeling.shapes import TokenTree, TreeShape, build_trees
from longrm.modeling.shared_prefix import pack, response_logprobs
from longrm.runs.records import RolloutRecord
from longrm.training.batches import MicroBatch
from longrm.training.objectives import GRPO
from longrm.training.rollouts import advantages
from longrm.training.settings import LossSettings, RolloutSettings

AGREEMENT = 1e-4
"""Largest difference of losses and of gradient norms, relative."""

BATCHINGS = ("trl", "trl_batched")
UPDATE_MEMORY = ("shared", *BATCHINGS)
UPDATES = (*UPDATE_MEMORY, "trl_compact")
ORDERS = ("both", "apart", "trl", "trl_compact")
SAMPLED_ORDERS = ("both", "in_turn", "apart")
ROLLOUTS = ("together", "singly")
QUICK = """
--prompt 640 --response 12 --generations 4 --prompts 640 --tokens 6 --repeats 1
--layers 1 --hidden 32 --heads 2 --kv-heads 2 --intermediate 48 --vocabulary 128
"""


# --- One update ------------------------------------------------------------------------------------------------------


def group_advantages(count: int) -> list[float]:
    """Of a group in which every third judgment is right, and every fourth has no verdict."""
    rewards = [0.0 if at % 4 == 3 else 1.1 if at % 3 == 0 else 0.1 for at in range(count)]
    return advantages(rewards, scale=True)


@torch.inference_mode()
def old_logprobs(work: Workload) -> list[list[float]]:
    """As before a few updates: with those of the model itself, the loss would not depend on the model."""
    found = response_logprobs(work.ours, pack([work.tree]))
    noise = torch.Generator().manual_seed(0)
    return [
        (own - 0.1 * advantage + 0.1 * torch.randn(len(own), generator=noise)).tolist()
        for own, advantage in zip(found, group_advantages(len(found)), strict=True)
    ]


Prompts = Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]
"""Prompts and their completions."""


def shared(work: Workload, old: list[list[float]] | None) -> Arm:
    """The objective on a micro-batch with one group."""
    return updates(work, [[(work.tree.tokens, work.tree.branches)]], old)


def updates(work: Workload, micro_batches: Sequence[Prompts], old: list[list[float]] | None) -> Arm:
    """The objective on micro-batches of equal weight; all their completions are a group."""
    prompts = [one for prompts in micro_batches for one in prompts]
    count = len(prompts[0][1])
    scaled, before = group_advantages(count * len(prompts)), old or [[]] * count * len(prompts)
    objective = GRPO(LossSettings(loss_type="grpo"))
    objective.rollouts = RolloutSettings(
        num_generations=count, max_completion_length=max(len(own) for _, own in prompts)
    )
    objective.groups = {
        str(at): RolloutRecord(
            step=1,
            id=str(at),
            gold="A",
            length=len(prompt),
            tokens=tuple(map(tuple, completions)),
            texts=(),
            outcomes=(),
            rewards=(),
            advantages=tuple(scaled[at * count : (at + 1) * count]),
            terms=(),
            entropies=(),
            old_logprobs=tuple(map(tuple, before[at * count : (at + 1) * count])) if old else (),
        )
        for at, (prompt, completions) in enumerate(prompts)
    }
    examples = iter(
        Example(str(at), Encoded(prompt, tuple(map(tuple, completions))), (1,) * count, digest="")
        for at, (prompt, completions) in enumerate(prompts)
    )
    micros = []
    for own in micro_batches:
        held = [next(examples) for _ in own]
        packed = pack(build_trees([example.tokens for example in held]))
        micros.append(MicroBatch(packed, held, 1.0 / len(micro_batches)))

    def arm() -> Tensor:
        total = torch.zeros(())
        for micro in micros:
            loss, _ = objective.loss(work.ours, micro)
            torch.autograd.backward(loss * micro.weight)
            total += micro.weight * loss.detach()
        norm = torch.nn.utils.get_total_norm([weight.grad for weight in work.ours.parameters()])
        work.ours.zero_grad(set_to_none=True)
        return torch.stack([total, norm])

    return arm


def update_arm(name: str, work: Workload, old: list[list[float]] | None) -> Arm:
    work.ours.train()
    work.stock.train()
    if name == "shared":
        return shared(work, old)
    # Importing TRL takes seconds and memory, which other arms do without.
    from trl_peer import make_grpo_peer

    count = len(work.tree.branches)
    per_batch = count if name == "trl_batched" else 1
    return make_grpo_peer(work, group_advantages(count), old, per_batch, compact=name == "trl_compact")


def ideals(options: argparse.Namespace, own: list[int]) -> dict[str, float]:
    """The ratios of FLOPs; of those that TRL computes on a CPU, all of `ideal_all_logits`."""
    c, a = linear_flops_per_token(options), attention_flops_per_pair(options)
    h, p = 2 * options.hidden * options.vocabulary, options.prompt
    tokens = sum(p + r for r in own), p + sum(own)
    pairs = sum((p + r) ** 2 / 2 for r in own), p**2 / 2 + sum(r * p + r**2 / 2 for r in own)
    separate, together = (c * t + a * q + h * sum(own) for t, q in zip(tokens, pairs, strict=True))
    return {
        "ideal": separate / together,
        "ideal_linear": tokens[0] / tokens[1],
        "ideal_attention": pairs[0] / pairs[1],
        "ideal_all_logits": (separate + h * (tokens[0] - sum(own))) / together,
    }


def response_lengths(options: argparse.Namespace, response: int, count: int) -> list[int]:
    return [response + index * options.unequal for index in range(count)]


def update_seconds(arms: Mapping[str, Arm], repeats: int) -> dict[str, list[float]]:
    """Interleaved repetitions; the slower of TRL's two batch sizes, which takes minutes, has only one."""
    seconds = interleaved(arms, 1)
    slower = max(BATCHINGS, key=seconds.__getitem__)
    repeated = {name: arm for name, arm in arms.items() if name != slower}
    return seconds | {name: seconds[name] + more for name, more in interleaved(repeated, repeats - 1).items()}


def measure_update(options: argparse.Namespace, count: int) -> dict[str, Any]:
    """One group of `count` completions.

    Raises:
        SystemExit: The arms disagree about the loss or the gradient.
    """
    own = response_lengths(options, options.response, count)
    works = {name: make_workload(options, options.prompt, own, writes=True) for name in UPDATES}
    old = old_logprobs(works["shared"])
    computed: dict[str, list[float]] = {}

    def kept(name: str, arm: Arm) -> Arm:
        return lambda: computed.__setitem__(name, arm().tolist())

    arms = {name: kept(name, update_arm(name, works[name], old)) for name in UPDATES}
    seconds: dict[int, dict[str, list[float]]] = {}
    for threads in thread_counts(options):
        torch.set_num_threads(threads)
        seconds[threads] = update_seconds(arms, options.repeats)
    apart = [
        max(abs(values[at] / computed["shared"][at] - 1) for values in computed.values()) for at in (0, 1)
    ]
    if not max(apart) <= AGREEMENT:
        raise SystemExit(f"the arms do not compute the same loss and gradient norm: {computed}")
    memory = {name: peak_growth_in_fresh_process(name, "--generations", str(count)) for name in UPDATE_MEMORY}
    ideal = ideals(options, own)
    median = {threads: medians(values) for threads, values in seconds.items()}
    peer = {threads: min(BATCHINGS, key=values.__getitem__) for threads, values in median.items()}
    compact = {threads: values["trl_compact"] / values["shared"] for threads, values in median.items()}

    import trl  # only now: it would add to the start of every arm

    around = circumstances(options)
    around["versions"] |= {"trl": trl.__version__}
    return {
        "part": "update",
        **{name: getattr(options, name) for name in ("prompt", "response", "unequal", "vocabulary")},
        "generations": count,
        "speedup": rounded({t: values[peer[t]] / values["shared"] for t, values in median.items()}),
        "speedup_compact": rounded(compact),
        "share": rounded({threads: ratio / ideal["ideal"] for threads, ratio in compact.items()}),
        **rounded(ideal),
        "baseline": peer,
        "memory_ratio": rounded({name: memory["shared"] / memory[name] for name in BATCHINGS}),
        "loss_difference": apart[0],
        "gradient_norm_difference": apart[1],
        "seconds": {threads: rounded(values) for threads, values in median.items()},
        "seconds_each": each(seconds),
        "memory_bytes": memory,
        **around,
    }


# --- Both orders -----------------------------------------------------------------------------------------------------


def make_orders(options: argparse.Namespace, context: int, response: int, count: int) -> Workload:
    """A context, two responses in both orders, and `count` completions for each order."""
    work = make_workload(options, context, [response] * (2 * count + 2), writes=True)
    one, other, *completions = work.tree.branches
    orders = [
        TokenTree([*one[:-1], *other[:-1]], completions[:count]),
        TokenTree([*other[:-1], *one[:-1]], completions[count:]),
    ]
    return replace(work, tree=TokenTree(work.tree.tokens, orders))


def orders_of(work: Workload) -> Prompts:
    return [([*work.tree.tokens, *order.tokens], order.branches) for order in work.tree.branches]


def orders_arm(name: str, work: Workload, old: list[list[float]] | None) -> Arm:
    work.ours.train()
    work.stock.train()
    if name in ("both", "apart"):
        prompts = orders_of(work)
        return updates(work, [prompts] if name == "both" else [[one] for one in prompts], old)
    from trl_peer import make_grpo_peer

    count = sum(len(own) for _, own in orders_of(work))
    return make_grpo_peer(work, group_advantages(count), old, 1, compact=name == "trl_compact")


def sampling_arm(name: str, work: Workload, count: int, most: int) -> Arm:
    """Samples `count` continuations of every order; returns their tokens."""
    prompts = [prompt for prompt, _ in orders_of(work)]
    work.ours.eval()

    def sample() -> list[tuple[int, ...]]:
        sampler, found = GroupSampler(work.ours, {END}), []
        calls = [prompts] if name == "both" else [[prompt] for prompt in prompts]
        for own in calls:
            if name == "apart":
                sampler.forget()
            asked = [Continuation(prompt, most, seed, 1.0) for prompt in own for seed in range(count)]
            found += [sample.tokens for sample in sampler.write(asked)]
        return found

    return sample


def measure_orders(options: argparse.Namespace) -> dict[str, Any]:
    """One comparison in both orders.

    Raises:
        SystemExit: The arms disagree about the loss, the gradient or the tokens.
    """
    count = max(options.generations)
    work = make_orders(options, options.prompt, options.response, count)
    old = old_logprobs(work)
    computed: dict[str, list[float]] = {}

    def kept(name: str, arm: Arm) -> Arm:
        return lambda: computed.__setitem__(name, arm().tolist())

    arms = {
        name: kept(name, orders_arm(name, make_orders(options, options.prompt, options.response, count), old))
        for name in ORDERS
    }
    sampling = {name: sampling_arm(name, work, count, options.tokens) for name in SAMPLED_ORDERS}
    texts = {name: arm() for name, arm in sampling.items()}  # warms up
    if any(own != texts["both"] for own in texts.values()):
        raise SystemExit(f"the arms sample different tokens: {texts}")
    seconds, sampled = {}, {}
    for threads in thread_counts(options):
        torch.set_num_threads(threads)
        seconds[threads] = interleaved(arms, options.repeats)
        work.ours.eval()
        sampled[threads] = interleaved(sampling, options.repeats)
    apart = [max(abs(own[at] / computed["both"][at] - 1) for own in computed.values()) for at in (0, 1)]
    if not max(apart) <= AGREEMENT:
        raise SystemExit(f"the arms do not compute the same loss and gradient norm: {computed}")
    c, a = linear_flops_per_token(options), attention_flops_per_pair(options)

    def flops(*shapes: TreeShape) -> float:
        return sum(c * shape.tokens + a * shape.pairs() for shape in shapes)

    own = [len(tokens) for tokens in work.tree.branches[0].branches]
    prompt = len(orders_of(work)[0][0])
    head = 2 * options.hidden * options.vocabulary * 2 * sum(own)
    ideal = flops(work.tree.shape) + head
    median = {threads: medians(values) for threads, values in seconds.items()}
    memory = {name: peak_growth_in_fresh_process(f"orders_{name}") for name in ORDERS[:3]}
    return {
        "part": "orders",
        **{name: getattr(options, name) for name in ("prompt", "response", "vocabulary", "tokens")},
        "generations": count,
        **{
            name: rounded({threads: values[arm] / values["both"] for threads, values in median.items()})
            for name, arm in (
                ("speedup", "trl"),
                ("speedup_compact", "trl_compact"),
                ("speedup_apart", "apart"),
            )
        },
        **rounded(
            {
                "ideal": (2 * sum(flops(TreeShape(prompt, (n,))) for n in own) + head) / ideal,
                "ideal_apart": (2 * flops(TreeShape(prompt, tuple(own))) + head) / ideal,
            }
        ),
        "speedup_sampling": {
            threads: rounded(ratios(medians(values), "both")) for threads, values in sampled.items()
        },
        "memory_ratio": rounded({name: memory["both"] / memory[name] for name in ORDERS[1:3]}),
        "loss_difference": apart[0],
        "gradient_norm_difference": apart[1],
        "seconds": {threads: rounded(values) for threads, values in median.items()},
        "seconds_sampling": {threads: rounded(medians(values)) for threads, values in sampled.items()},
        "seconds_each": each(seconds),
        "seconds_sampling_each": each(sampled),
        "memory_bytes": memory,
        **circumstances(options),
    }


# --- Rollouts --------------------------------------------------------------------------------------------------------


def rollout_arm(name: str, work: Workload, count: int, most: int) -> Arm:
    """Samples the continuations anew, and returns their texts and the number of tokens of each."""
    prompt, seeds = work.tree.tokens, range(count)
    work.ours.eval()

    def sample() -> list[tuple[str, int]]:
        sampler = GroupSampler(work.ours, {END})
        groups = [seeds] if name == "together" else [[seed] for seed in seeds]
        samples = [
            own
            for group in groups
            for own in sampler.sample(prompt, group, temperature=1.0, top_p=1.0, max_tokens=most)
        ]
        return [(as_text(t for t in own.tokens if t != END), len(own.tokens)) for own in samples]

    return sample


def measure_rollouts(options: argparse.Namespace, prompt: int) -> dict[str, Any]:
    """One group with a prompt of this length.

    Raises:
        SystemExit: The arms sample different texts.
    """
    count = max(options.generations)
    work = make_workload(options, prompt, [1], writes=True)
    arms = {name: rollout_arm(name, work, count, options.tokens) for name in ROLLOUTS}
    begun = {name: rollout_arm(name, work, count, 1) for name in ROLLOUTS}
    texts = {name: arm() for name, arm in arms.items()}  # warms up
    if any(own != texts["together"] for own in texts.values()):
        raise SystemExit(f"the arms sample different texts: {texts}")
    tokens = sum(number for _, number in texts["together"])
    seconds = interleaved(arms, options.repeats)
    first = interleaved(begun, options.repeats)
    per_token = {name: value / tokens for name, value in medians(seconds).items()}
    without = {
        name: (statistics.median(seconds[name]) - statistics.median(first[name])) / (tokens - count)
        for name in ROLLOUTS
    }
    memory = {name: peak_growth_in_fresh_process(name, "--prompts", str(prompt)) for name in ROLLOUTS}
    return {
        "part": "rollouts",
        "prompt": prompt,
        "generations": count,
        "tokens": tokens,
        "speedup": rounded(ratios(per_token, "together")),
        "speedup_without_prompt": rounded(ratios(without, "together")),
        "memory_ratio": rounded({name: memory["together"] / memory[name] for name in ROLLOUTS[1:]}),
        "seconds_per_token": rounded_more(per_token),
        "seconds_per_token_without_prompt": rounded_more(without),
        "seconds_each": each({"all": seconds, "one_token": first}),
        "memory_bytes": memory,
        **circumstances(options),
    }


def ratios(values: Mapping[str, float], to: str) -> dict[str, float]:
    return {name: value / values[to] for name, value in values.items() if name != to}


def rounded_more(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}


# --- Both ------------------------------------------------------------------------------------------------------------


def each(seconds: Mapping[Any, Mapping[str, Iterable[float]]]) -> dict[Any, dict[str, list[float]]]:
    return {
        key: {name: [round(value, 3) for value in values] for name, values in arms.items()}
        for key, arms in seconds.items()
    }


def thread_counts(options: argparse.Namespace) -> list[int]:
    return sorted({1, options.threads})


def memory_of(options: argparse.Namespace) -> int:
    """Peak growth of one arm with the last of the numbers of completions or of the prompts."""
    name, count = options.memory_of, options.generations[-1]

    def arm(prompt: int, response: int, tokens: int) -> Arm:
        if name.startswith("orders_"):
            both = make_orders(options, prompt, response, count)
            return orders_arm(name.removeprefix("orders_"), both, None)
        lengths = response_lengths(options, response, count)
        work = make_workload(options, prompt, lengths, writes=True)
        return update_arm(name, work, None) if name in UPDATES else rollout_arm(name, work, count, tokens)

    prompt = options.prompts[-1] if name in ROLLOUTS else options.prompt
    return peak_growth(arm(64, 8, 4), arm(prompt, options.response, options.tokens))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model_arguments(parser)
    parser.set_defaults(repeats=2, threads=os.cpu_count())
    parts = ["update", "orders", "rollouts"]
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--generations", nargs="+", type=int, default=[4, 8], help="G; rollouts use the last")
    parser.add_argument(
        "--unequal", type=int, default=0, help="tokens by which each response is longer than the one before"
    )
    parser.add_argument("--prompts", nargs="+", type=int, default=[1024, 8192], help="tokens, for rollouts")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each rollout")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options = parser.parse_args([*QUICK.split(), *sys.argv[1:]])
    if options.memory_of:
        hand_over(memory_of(options))
        return 0
    handicapped = False
    if "update" in options.parts:
        for count in options.generations:
            found = measure_update(options, count)
            show(found, options.json)
            # Padding is a handicap that TRL has; small sizes take too little time.
            exact = not options.unequal and not options.quick
            handicapped |= exact and max(found["share"].values()) > 1.05
    if "orders" in options.parts:
        show(measure_orders(options), options.json)
    if "rollouts" in options.parts:
        for prompt in options.prompts:
            show(measure_rollouts(options, prompt), options.json)
    if handicapped:
        print("TRL is handicapped: share is above 1.05", file=sys.stderr)
    return int(handicapped)


if __name__ == "__main__":
    sys.exit(main())
