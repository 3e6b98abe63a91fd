"""Floating-point operations of a training, and the time that they take on a device.

A multiplication and an addition count as two operations.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from longrm.modeling.shapes import LOGITS_AT_ONCE, seen_pairs
from longrm.training.plan import UTILIZATION, Device, ModelSizes
from longrm.training.plan.workload import TrainedPart, Workload, trained_part
from longrm.training.settings import TrainingSettings


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating-point operations by kind."""

    linear: float  # products with the matrices of the layers
    attention: float  # scores and weighted values, of the pairs of tokens that see each other
    head: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.linear + self.attention + self.head

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(self.linear + other.linear, self.attention + other.attention, self.head + other.head)

    def times(self, factor: float) -> "Flops":
        """The operations of this many repetitions."""
        return Flops(self.linear * factor, self.attention * factor, self.head * factor)


@dataclass(frozen=True, slots=True)
class RolloutCost:
    """What GRPO computes in addition to its updates, if all judgments have `rollouts.max_completion_length` tokens."""

    judgments: float
    tokens: float  # of all judgments
    flops: Flops
    seconds: float | None  # None if the device's peaks are unknown


def _in_all_layers(sizes: ModelSizes, pairs: Callable[[int | None], float]) -> float:
    """Pairs in all layers, from those of one layer with a window and without."""
    windowed = sizes.window_layers * pairs(sizes.window) if sizes.window_layers else 0.0
    return (sizes.layers - sizes.window_layers) * pairs(None) + windowed


def forward_flops(sizes: ModelSizes, workload: Workload) -> Flops:
    """Operations of one forward pass over everything that a training reads."""
    trees = workload.trees.items()
    pairs = _in_all_layers(sizes, lambda window: sum(n * tree.pairs(window) for tree, n in trees))
    if sizes.kind == "scorer":
        responses = sum(count * len(shape.leaves) for shape, count in workload.trees.items())
        head = sizes.head_parameters * responses
    else:
        head = sizes.hidden * sizes.vocabulary * workload.response_tokens
    return Flops(
        linear=2.0 * sizes.layers * sizes.matrix_parameters * workload.tokens,
        attention=4.0 * sizes.queries * pairs,  # two products: scores, and weighted values
        head=2.0 * head,
    )


def training_flops(
    forward: Flops,
    trained: TrainedPart,
    workload: Workload,
    *,
    checkpointing: bool,
    reference: bool,
    tiled: bool = False,
    keep_attention: bool = False,
) -> Flops:
    """Operations of a training: forward, backward, what is recomputed, and a reference model's forward pass.

    A backward pass takes as much as a forward pass for the gradients of inputs, and as much again for those of weights;
    frozen weights have none, and frozen layers below the first trained one no backward pass at all. A checkpointed
    layer is recomputed up to its last product, of which nothing is kept except by adapters. With `tiled`, feed-forward
    layers are computed once more; with `keep_attention`, attention is not. A reference model reads one epoch. The input
    of the lowest adapters needs no gradient, which is counted.
    """
    sizes, again, reference_epochs = trained.sizes, int(checkpointing), int(reference) / workload.epochs
    targets = workload.targets if sizes.kind == "language_model" else 0
    chunked = int(targets * sizes.vocabulary > LOGITS_AT_ONCE)  # chunks of logits are recomputed
    weights = int(not trained.rank)
    share = trained.layers / sizes.layers
    per_token = 2.0 * trained.layers * workload.tokens
    width, output = sizes.matrices["down_proj"]
    not_recomputed = per_token * width * output * weights * (again or tiled)
    return Flops(
        linear=forward.linear * (1 + share * (1 + weights + again) + reference_epochs)
        + per_token * 3 * width * output * tiled
        - not_recomputed
        + per_token * trained.adapter_parameters * (3 + again),
        attention=forward.attention * (1 + share * (2 + again - keep_attention) + reference_epochs),
        head=forward.head * (2 + trained.head + chunked + reference_epochs),
    )


def utilization_of(settings: TrainingSettings, device: str) -> Mapping[str, float]:
    """The shares of a device's peak that a training is assumed to reach, by attention kernel.

    The first kernel is the one of every installation.
    """
    known: dict[str, dict[str, float]] = {}
    if settings.model.bf16:
        known = tomllib.loads(Path(__file__).with_name("utilization.toml").read_text())
    return known.get(device, {"any kernel": UTILIZATION})


def rate_of(settings: TrainingSettings, device: Device, utilization: float) -> float | None:
    """Operations per second that a training is assumed to reach; None if the device's peak is unknown."""
    peak = device.bfloat16 if settings.model.bf16 else device.float32
    return None if peak is None else peak * utilization


def rollout_cost(
    settings: TrainingSettings,
    sizes: ModelSizes,
    workload: Workload,
    device: Device,
    devices: int = 1,
    utilization: float = UTILIZATION,
) -> RolloutCost:
    """Operations and time of sampling and of the log-probabilities that the loss compares with.

    Sampling computes what a forward pass of the update does, so that what a prompt does not share with the others of
    its tree is counted for each of its G judgments. They are written G tokens at a time, or 2 G for two prompts in a
    tree: each such step reads all weights, and for each prompt its keys and values and those written so far. It takes
    the time of its operations or of its reads, whichever is longer.
    """
    rollouts, part = settings.rollouts, trained_part(settings.model, sizes)
    assert rollouts is not None, "only GRPO has rollouts"
    count, most = rollouts.num_generations, rollouts.max_completion_length
    head = sizes.hidden * sizes.vocabulary
    element = 2 if settings.model.bf16 else 4
    # Trained weights are fp32: with bf16 products, every step writes and reads a copy. A frozen head is bf16, and every
    # step writes and reads an fp32 copy.
    copied = 8 if element == 2 and not part.rank else element
    weight_bytes = sizes.matrix_parameters * (part.layers * copied + part.frozen_layers * element)
    weight_bytes += head * (4 if element == 4 or part.head else 10)
    rate, bandwidth = rate_of(settings, device, utilization), device.bandwidth

    writing = seconds = prompts = 0.0
    for tree, reads in workload.trees.items():
        times = reads / rollouts.num_iterations
        together = min(2, len(tree.leaves) // count)  # both orders of a comparison
        for length in tree.leaves[::count]:  # a prompt and a judgment of it
            prompts += times
            seen = _in_all_layers(sizes, partial(seen_pairs, length - most, most))
            written = _in_all_layers(sizes, partial(seen_pairs, 0, most))
            matrices = sizes.layers * sizes.matrix_parameters + head
            computed = count * (2.0 * matrices * most + 4.0 * sizes.queries * seen)
            moved = most * weight_bytes / together + 2 * element * sizes.keys * (seen + (count - 1) * written)
            writing += times * computed
            if rate and bandwidth:
                seconds += times * max(computed / rate, moved / (bandwidth * UTILIZATION))
    # Also the log-probabilities of the weights that sampled, and of those at the start.
    passes = 1 + (rollouts.num_iterations > 1) + bool(settings.loss.options()["beta"])
    flops = forward_flops(sizes, workload).times(passes / rollouts.num_iterations)
    return RolloutCost(
        judgments=prompts * count,
        tokens=prompts * count * most,
        flops=flops,
        seconds=(seconds + (flops.total - writing) / rate) / devices if rate and bandwidth else None,
    )
