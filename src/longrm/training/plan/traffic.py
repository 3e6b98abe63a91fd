"""Time in which devices do not compute: they wait for each other, or move data.

Copies of activations to CPU memory, the exchange of heads and the update of offloaded weights add to the time.
Sharded weights are gathered and their gradients reduced while other layers compute: only the excess over that time is
added. Computed from the peaks of data sheets, not measured.
"""

from bisect import bisect
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

from longrm.modeling.shapes import TreeShape
from longrm.training.batches import deal, duration, operations
from longrm.training.plan import Device
from longrm.training.plan.memory import PER_MACHINE, key_width
from longrm.training.plan.workload import TrainedPart, Workload
from longrm.training.sampling import Mixture
from longrm.training.settings import TrainingSettings

_STEPS = 50  # simulated
_HOST_BANDWIDTH = 100e9  # bytes per second of a machine's CPU memory; assumed
_UPDATE = 28  # bytes that AdamW reads and writes of every weight: weight, gradient and two moments, in fp32


def busy_share(settings: TrainingSettings, trained: TrainedPart, workload: Workload, groups: int) -> float:
    """The share of the time in which a group of devices computes and does not wait for the others; simulated."""
    if groups == 1 or settings.data.world is not None:  # the contexts of a step have one length
        return 1.0
    sizes, per_step = trained.sizes, settings.data.per_step
    matrices = sizes.layers * sizes.matrix_parameters
    pair_cost = 2 * sizes.queries * (sizes.layers - sizes.window_layers) / matrices
    # Every shape as often as in the data; there may be more shapes than simulated rows.
    trees, rows = sorted(workload.trees, key=lambda shape: shape.tokens), _STEPS * per_step
    ends = list(accumulate(workload.trees[shape] for shape in trees))
    shapes = [trees[bisect(ends, (row + 0.5) / rows * ends[-1])] for row in range(rows)]
    mixture = Mixture(
        [[shape.longest for shape in shapes]], [1.0], settings.seed, settings.data.group_by_length
    )
    aligned, budget = settings.parallel.shard, settings.memory.max_tokens_per_microbatch
    dealer = partial(deal, dp_size=groups, budget=budget, pair_cost=pair_cost, aligned=aligned)
    order = [shapes[row] for _, row in mixture.epoch(0)]
    return simulate(order, per_step, dealer, pair_cost, aligned=aligned)


def simulate(
    rows: Sequence[TreeShape],
    per_step: int,
    dealer: Callable[[Sequence[TreeShape]], list[list[list[int]]]],
    pair_cost: float,
    *,
    aligned: bool,
) -> float:
    """The share of the time in which a group computes. `dealer` returns the micro-batches of every group, as `deal`."""
    work = taken = 0.0
    for begin in range(0, len(rows), per_step):
        trees = sorted(rows[begin : begin + per_step], key=lambda shape: -shape.tokens)
        costs = [operations(shape, pair_cost) for shape in trees]
        dealt = dealer(trees)
        work += sum(costs) / len(dealt)
        taken += duration(dealt, costs, aligned=aligned)
    return work / taken


def traffic_seconds(
    settings: TrainingSettings, trained: TrainedPart, workload: Workload, device: Device, devices: int
) -> tuple[float, float]:
    """Seconds that moving data adds to the operations, and seconds of traffic that happens during them."""
    if device.to_host is None or device.to_neighbor is None or device.to_machines is None:
        return 0.0, 0.0
    sizes, parallel = trained.sizes, settings.parallel
    element = 2 if settings.model.bf16 else 4
    tokens = workload.tokens / devices  # of one device
    added = during = 0.0
    if settings.memory.activation_offloading:
        stream = 4 if trained.embeddings else element
        added += 2 * trained.layers * tokens * stream * sizes.hidden / device.to_host
    if parallel.sequence_parallel_size > 1:
        # Queries, keys and values to the devices of their heads, the output back; again backward, and recomputed.
        width = 2 * sizes.queries + 2 * key_width(settings, sizes)
        passes = 2 + bool(settings.memory.gradient_checkpointing)
        share = (parallel.sequence_parallel_size - 1) / parallel.sequence_parallel_size
        added += passes * sizes.layers * tokens * element * width * share / device.to_neighbor
    micro_batches = max(
        workload.steps,
        workload.tokens
        * parallel.sequence_parallel_size
        / devices
        / settings.memory.max_tokens_per_microbatch,
    )
    gathers = 1 + parallel.reshard_after_forward
    if devices > 1:
        link = device.to_neighbor if devices <= PER_MACHINE else device.to_machines
        share, reduced = (devices - 1) / devices, 4 * trained.parameters
        if parallel.shard:
            during += micro_batches * (gathers * element * sizes.parameters + reduced) * share / link
        else:
            added += workload.steps * 2 * reduced * share / link
    if parallel.offload:
        on_machine = min(devices, PER_MACHINE) / devices
        added += workload.steps * _UPDATE * trained.parameters * on_machine / _HOST_BANDWIDTH
        moved = 4 * (gathers * sizes.parameters + trained.parameters) / devices  # weights up, gradients down
        during += micro_batches * moved / device.to_host
    return added, during
