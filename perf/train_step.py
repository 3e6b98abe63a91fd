"""One training step on one comparison: a shared prefix against other implementations, forward and backward.

`--against separate`: the code of a careful user: stock SDPA with `is_causal`, sequences one by one or as a batch
(padded at the end, where no token attends), whichever is faster; heads at the needed positions only. If it takes over
5% longer than the same number of bare transformers forward + backward passes, or if the share of the ideal is above
1.05, the baseline is handicapped and the script fails.

`--against trl`: TRL's own trainer on the same weights and tokens; K rejected responses are K pairs there, in one
batch or in K, whichever is faster. `speedup_trl` is its seconds over ours, `memory_ratio_trl` our peak growth over
its.

Memory is compared with the way that needs least, which may not be the faster one: their times are close, so the faster
one may change between machines. `--memory` measures nothing else.

For SimPO over one pair of equal lengths, `logits_share` is the share of the saved seconds that separate
sequences save too, by applying the vocabulary at response positions only; `logits_share_memory` is that of the saved
bytes.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from measuring import (
    PAD,
    Arm,
    Workload,
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
from torch.nn import functional

from longrm.data.joining import Encoded
from longrm.data.training_rows import Example
from longrm.training.batches import Batches
from longrm.training.objectives import BradleyTerry, Objective, Preference
from longrm.training.settings import LossSettings

BETA, GAMMA = 2.5, 0.5
OBJECTIVES: dict[str, Objective] = {
    "bradley_terry": BradleyTerry(LossSettings(loss_type="bradley_terry")),
    "simpo": Preference(LossSettings(loss_type="simpo", beta=BETA, gamma=GAMMA, nll_coef=0.0)),
}
AGREEMENT = 1e-4
"""Largest difference between two arms' losses, relative."""
SEPARATE = ("one_by_one", "batched")
MEMORY_RUNS = 3
"""Fresh processes per arm: their peaks differ by up to 40%, because glibc keeps freed tensors below 32 MiB."""


class _One:
    """A source with one comparison; the first response is chosen."""

    def __init__(self, work: Workload) -> None:
        ranks = (1, *[2] * (len(work.tree.branches) - 1))
        self._example = Example("one", Encoded(work.tree.tokens, work.tree.branches), ranks, digest="")

    def batch(self, step: int, length: int | None) -> list[Example]:
        return [self._example]


def shared(options: argparse.Namespace, work: Workload) -> Arm:
    """The engine: its objective over the micro-batches of a step."""
    objective = OBJECTIVES[options.objective]
    limit = work.ours.config.max_position_embeddings
    step = Batches(_One(work), objective, budget=1, limit=limit, curriculum=None).prepare(0)

    def arm() -> Tensor:
        (micro,) = step.micro_batches
        return _step(work.ours, objective.loss(work.ours, micro)[0])

    return arm


def one_by_one(options: argparse.Namespace, work: Workload) -> Arm:
    count = len(work.tree.branches)
    parts = lambda: [rewards(options, work, [index]) for index in range(count)]  # noqa: E731 (a line's worth)
    return lambda: _step(work.stock, pairwise(options, torch.cat(parts())))


def batched(options: argparse.Namespace, work: Workload) -> Arm:
    indices = range(len(work.tree.branches))
    return lambda: _step(work.stock, pairwise(options, rewards(options, work, indices)))


def bare(options: argparse.Namespace, work: Workload) -> Arm:
    """Transformers' own forward and backward, once for every sequence, each freed before the next."""

    def arm() -> Tensor:
        for branch in work.tree.branches:
            keep = {"logits_to_keep": len(branch) + 1} if _writes(options) else {}
            output = work.stock(
                input_ids=torch.tensor([[*work.tree.tokens, *branch]]), use_cache=False, **keep
            )
            torch.autograd.backward(output.logits.sum())
        return _step(work.stock, None)

    return arm


def trl(options: argparse.Namespace, work: Workload) -> Arm:
    return _peer(options, work, options.rejected)


def trl_one_by_one(options: argparse.Namespace, work: Workload) -> Arm:
    return _peer(options, work, 1)


def _peer(options: argparse.Namespace, work: Workload, per_batch: int) -> Arm:
    # Importing TRL takes seconds and memory, which other arms do without.
    from trl_peer import make_peer

    return make_peer(options, work, per_batch, BETA, GAMMA)


ARMS: dict[str, Callable[[argparse.Namespace, Workload], Arm]] = {
    "shared": shared,
    "one_by_one": one_by_one,
    "batched": batched,
    "bare": bare,
    "trl": trl,
    "trl_one_by_one": trl_one_by_one,
}


def rewards(options: argparse.Namespace, work: Workload, indices: Sequence[int]) -> Tensor:
    """The values that the objective compares, for responses in separate sequences; one batch."""
    prefix, branches = work.tree.tokens, [work.tree.branches[index] for index in indices]
    longest = max(map(len, branches))
    rows = [[*prefix, *branch, *[PAD] * (longest - len(branch))] for branch in branches]
    states = work.stock.base_model(input_ids=torch.tensor(rows), use_cache=False).last_hidden_state
    ends = [len(prefix) + len(branch) - 1 for branch in branches]
    if not _writes(options):
        values: Tensor = work.stock.score(states[range(len(ends)), ends])[:, 0]
        return values
    before = torch.cat([row[len(prefix) - 1 : end] for row, end in zip(states, ends, strict=True)])
    targets = torch.tensor([token for branch in branches for token in branch])
    logprobs = -functional.cross_entropy(work.stock.lm_head(before), targets, reduction="none")
    return BETA * torch.stack([own.mean() for own in logprobs.split([len(branch) for branch in branches])])


def pairwise(options: argparse.Namespace, values: Tensor) -> Tensor:
    """The mean over pairs; the first value is the chosen one's."""
    margin = GAMMA if options.objective == "simpo" else 0.0
    return -functional.logsigmoid(values[0] - values[1:] - margin).mean()


def _writes(options: argparse.Namespace) -> bool:
    return bool(options.objective == "simpo")


def _step(model: Any, loss: Tensor | None) -> Tensor:
    if loss is not None:
        torch.autograd.backward(loss)
    model.zero_grad(set_to_none=True)
    return torch.zeros(()) if loss is None else loss.detach()


def lengths(options: argparse.Namespace, response: int) -> list[int]:
    return [response + index * options.unequal for index in range(options.rejected + 1)]


def ideal_speedup(options: argparse.Namespace) -> float:
    """The ratio of FLOPs, causal attention included: saving work alone cannot do better."""
    c, a = linear_flops_per_token(options), attention_flops_per_pair(options)
    p, own = options.prompt, lengths(options, options.response)
    head = 2 * options.hidden * options.vocabulary * sum(own) if _writes(options) else 0
    separate: float = sum(c * (p + r) + a * (p + r) ** 2 / 2 for r in own) + head
    pairs = p**2 / 2 + sum(r * p + r**2 / 2 for r in own)
    if not _writes(options):  # the last layer is asked where scores are read
        pairs = ((options.layers - 1) * pairs + sum(p + r for r in own)) / options.layers
    together: float = c * (p + sum(own)) + a * pairs + head
    return separate / together


def make_arm(options: argparse.Namespace, name: str, prompt: int, response: int) -> Arm:
    work = make_workload(options, prompt, lengths(options, response), writes=_writes(options))
    for model in (work.stock, work.ours):
        model.train()
        if options.checkpointing:
            model.activation_checkpointing_enable()
    return ARMS[name](options, work)


def measure(options: argparse.Namespace, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """Times the arms; returns the common fields of all results, and the median seconds.

    Raises:
        SystemExit: The arms disagree about the loss.
    """
    arms = {name: make_arm(options, name, options.prompt, options.response) for name in names}
    losses = {name: float(arm()) for name, arm in arms.items()}  # warms up
    apart = {name: abs(loss / losses["shared"] - 1) for name, loss in losses.items() if name != "bare"}
    if max(apart.values()) > AGREEMENT:
        raise SystemExit(f"the arms do not compute the same loss: {losses}")
    seconds = interleaved(arms, options.repeats)
    each = {name: [round(value, 3) for value in values] for name, values in seconds.items()}
    found = described(options) | {"loss_difference": max(apart.values()), "seconds_each": each}
    return found, medians(seconds)


def described(options: argparse.Namespace) -> dict[str, Any]:
    names = ("objective", "prompt", "response", "unequal", "rejected", "vocabulary", "checkpointing")
    return {name: getattr(options, name) for name in names}


def memory_of(options: argparse.Namespace, names: Sequence[str]) -> dict[str, int]:
    """Peak growth of each arm in bytes: the median of fresh processes."""
    runs = range(min(MEMORY_RUNS, options.repeats))
    return {name: int(statistics.median(peak_growth_in_fresh_process(name) for _ in runs)) for name in names}


def memory_ratio(memory: Mapping[str, int], others: Sequence[str]) -> float:
    return round(memory["shared"] / min(memory[name] for name in others), 3)


def against_separate(options: argparse.Namespace) -> dict[str, Any]:
    found, median = measure(options, ["shared", *SEPARATE, "bare"])
    baseline = min(SEPARATE, key=lambda name: median[name])
    memory = memory_of(options, ["shared", *SEPARATE])
    speedup, ideal = median[baseline] / median["shared"], ideal_speedup(options)
    return found | {
        "speedup": round(speedup, 3),
        "ideal": round(ideal, 3),
        "share": round(speedup / ideal, 3),
        "memory_ratio": memory_ratio(memory, SEPARATE),
        "baseline": baseline,
        "baseline_over_bare": round(median[baseline] / median["bare"], 3),
        "seconds": rounded(median),
        "memory_bytes": memory,
        **circumstances(options),
    }


def memory_alone(options: argparse.Namespace) -> dict[str, Any]:
    memory = memory_of(options, ["shared", *SEPARATE])
    ratio = memory_ratio(memory, SEPARATE)
    return described(options) | {"memory_ratio": ratio, "memory_bytes": memory, **circumstances(options)}


def against_trl(options: argparse.Namespace) -> dict[str, Any]:
    peers = ["trl", "trl_one_by_one"] if options.rejected > 1 else ["trl"]
    # Of one pair of equal lengths, `batched` is what TRL computes but for the logits; of others, not only for them.
    parts = ["batched"] if _writes(options) and options.rejected == 1 and not options.unequal else []
    found, median = measure(options, ["shared", *peers, *parts])
    peer = min(peers, key=lambda name: median[name])
    memory = memory_of(options, ["shared", *peers, *parts])
    shares = {
        key: round((of[peer] - of["batched"]) / (of[peer] - of["shared"]), 3)
        for key, of in (("logits_share", median), ("logits_share_memory", memory))
        if parts
    }
    import trl  # only now: it would add to the start of every arm

    around = circumstances(options)
    around["versions"] |= {"trl": trl.__version__}
    return found | {
        "speedup_trl": round(median[peer] / median["shared"], 3),
        "memory_ratio_trl": memory_ratio(memory, peers),
        **shares,
        "baseline": peer,
        "seconds": rounded(median),
        "memory_bytes": memory,
        **around,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model_arguments(parser)
    parser.add_argument("--against", choices=["separate", "trl"], default="separate")
    parser.add_argument(
        "--memory", action="store_true", help="compare memory with separate sequences, and no time"
    )
    parser.add_argument("--objective", choices=list(OBJECTIVES), default="bradley_terry")
    parser.add_argument("--rejected", type=int, default=1, help="K, the number of rejected responses")
    parser.add_argument(
        "--unequal", type=int, default=0, help="tokens by which each response is longer than the one before"
    )
    parser.add_argument("--checkpointing", action="store_true", help="activation checkpointing in all arms")
    parser.add_argument("--memory-of", choices=list(ARMS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        warm = make_arm(options, options.memory_of, 64, 8)
        hand_over(peak_growth(warm, make_arm(options, options.memory_of, options.prompt, options.response)))
        return 0
    if options.memory:
        show(memory_alone(options), options.json)
        return 0
    if options.against == "trl":
        show(against_trl(options), options.json)
        return 0
    result = against_separate(options)
    show(result, options.json)
    if result["share"] > 1.05 or result["baseline_over_bare"] > 1.05:
        print("the baseline is handicapped: see share and baseline_over_bare (limits 1.05)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
