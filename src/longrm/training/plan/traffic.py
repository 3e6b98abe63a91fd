"""Time that devices spend on other work than operations: waiting for each other, and moving data.

Copies of activations to CPU memory, the exchange of heads and the update of offloaded weights add to the time.
Gathering sharded weights and reducing their gradients happens during the operations of other layers: only what takes
longer than these is added. Counted from the peaks of data sheets, not measured.
"""

from longrm.modeling.shapes import TreeShape
from longrm.training.batches import deal, duration, operations
from longrm.training.plan import Device
from longrm.training.plan.memory import sharding_of
from longrm.training.plan.workload import TrainedPart, Workload
from longrm.training.sampling import Mixture
from longrm.training.settings import TrainingSettings

PER_MACHINE = 8  # devices of a machine, at most
_STEPS = 50  # simulated
_HOST_BANDWIDTH = 100e9  # bytes per second of a machine's CPU memory; assumed
_UPDATE = 28  # bytes that AdamW reads and writes of every weight: weight, gradient and two moments, in fp32


def busy_share(settings: TrainingSettings, trained: TrainedPart, workload: Workload, groups: int) -> float:
    """The share of the time in which a group of devices computes, and does not wait for others; simulated."""
    if groups == 1 or settings.data.world is not None:  # the contexts of a step have one length
        return 1.0
    sizes, per_step = trained.sizes, settings.data.per_step
    matrices = sizes.layers * sum(width * output for width, output in sizes.matrices.values())
    pair_cost = 2 * sizes.queries * (sizes.layers - sizes.window_layers) / matrices
    rows, total = _STEPS * per_step, sum(workload.trees.values())
    shapes: list[TreeShape] = []
    for shape, count in workload.trees.items():
        shapes += [shape] * round(rows * count / total)
    order = Mixture([[s.tokens for s in shapes]], [1.0], settings.seed, settings.data.group_by_length).epoch(
        0
    )
    work = taken = 0.0
    aligned = settings.parallel.zero > 1
    for begin in range(0, len(order) - per_step + 1, per_step):
        step = [shapes[row] for _, row in order[begin : begin + per_step]]
        step.sort(key=lambda shape: -shape.tokens)
        costs = [operations(shape, pair_cost) for shape in step]
        dealt = deal(step, groups, settings.memory.tokens_per_forward, pair_cost, aligned=aligned)
        work += sum(costs) / groups
        taken += duration(dealt, costs, aligned=aligned)
    return work / taken if taken else 1.0


def traffic_seconds(
    settings: TrainingSettings, trained: TrainedPart, workload: Workload, device: Device, devices: int
) -> tuple[float, float]:
    """Seconds that moving data adds to the operations, and seconds of traffic that happens during them."""
    if device.type == "cpu" or device.to_host is None or device.to_neighbor is None:
        return 0.0, 0.0
    sizes, parallel = trained.sizes, settings.parallel
    grid = sharding_of(parallel, devices, sizes.heads)
    element = 2 if settings.model.precision == "bfloat16" else 4
    tokens = workload.tokens / devices  # of one device
    added = during = 0.0
    if settings.memory.activation_offloading:
        stream = 4 if trained.embeddings else element
        added += 2 * trained.layers * tokens * stream * sizes.hidden / device.to_host
    if parallel.sequence > 1:
        # Queries, keys and values to the devices of their heads, the output back; again backward, and recomputed.
        width = 2 * sizes.queries + 2 * sizes.keys * grid.key_copies(sizes.kv_heads)
        passes = 2 + settings.memory.gradient_checkpointing
        share = (parallel.sequence - 1) / parallel.sequence
        added += passes * sizes.layers * tokens * element * width * share / device.to_neighbor
    if devices > 1:
        link = device.to_neighbor if devices <= PER_MACHINE else device.to_machines or device.to_neighbor
        share, reduced = (devices - 1) / devices, 4 * trained.parameters
        micro_batches = max(
            workload.steps, workload.tokens / grid.groups / settings.memory.tokens_per_forward
        )
        if parallel.zero == 3:
            during += micro_batches * (2 * element * sizes.parameters + reduced) * share / link
        elif parallel.zero:
            during += (micro_batches if parallel.zero == 2 else workload.steps) * 2 * reduced * share / link
        else:
            added += workload.steps * 2 * reduced * share / link
    if parallel.offload != "none":
        on_machine = min(devices, PER_MACHINE) / devices
        added += workload.steps * _UPDATE * trained.parameters * on_machine / _HOST_BANDWIDTH
        moved = 4 * trained.parameters / devices  # gradients down, weights up
        during += 2 * workload.steps * moved / device.to_host
    return added, during
