"""Memory of a training at its peak on one device, counted from what autograd keeps of one layer.

The peak is that of a step after the first, when the optimizer has its state. With sharded weights, each device also has
those that FSDP2 has gathered, and their gradients until they are reduced; these are counted from the source of torch
2.13, and not measured on a GPU.

Why the step is not run on tensors without data (FakeTensorMode) instead: `perf/plan_fake.py` does that. Of eight
measured trainings on a CPU these counts predict 0.93 to 1.02 of the peak (median 0.97), a fake step 0.87 to 0.99
(median 0.97): it does not see what the allocator cannot give back, and is lowest where layers are computed in tiles.
Without checkpointing both agree within 0.5%. A fake step of an 8B model takes 7 seconds, and a plan compares up to
thirty peaks; it also shows neither sampling, 4-bit weights, and buffers of FSDP, nor the workspaces of kernels.
"""

import math
from dataclasses import dataclass, replace

from longrm.errors import ConfigError
from longrm.modeling.shapes import LOGITS_AT_ONCE, PINNED_PIECE, tile_length
from longrm.training.plan import ModelSizes
from longrm.training.plan.workload import TrainedPart, Workload, trained_part
from longrm.training.settings import RolloutSettings, TrainingSettings

_FP32 = 4
_NF4 = 0.5 + 0.127 / 8  # bytes of a weight in 4 bits, with the scales of its block (Dettmers et al. 2023)
_BLOCK = 2048  # tokens of a prompt that are read at once; `modeling.group_sampling` has it, but imports torch
PER_MACHINE = 8  # devices of a machine, at most


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Bytes on a device at a moment of a step, by purpose; their sum is `total`."""

    when: str
    weights: float
    optimizer: float  # the two moments of AdamW
    gradients: float = 0.0  # those that exist at that moment
    activations: float = 0.0  # kept for the backward pass
    logits: float = 0.0  # of the responses, and what their backward pass needs
    working: float = 0.0  # what the layer being computed needs in addition
    keys: float = 0.0  # keys and values of a prompt and of its judgments, while GRPO samples
    process: float = 0.0  # Python and its libraries, on a CPU, for a training that has yet to start
    offloaded: float = 0.0  # bytes in CPU memory, at most; not part of the sum
    checkpoint: float = 0.0  # bytes in the CPU memory of a machine while one is written; not part of the sum

    @property
    def total(self) -> float:
        """The bytes on the device."""
        state = self.weights + self.optimizer + self.gradients
        return state + self.activations + self.logits + self.working + self.keys + self.process


def check_layout(settings: TrainingSettings, sizes: ModelSizes, devices: int) -> None:
    """Raises `ConfigError` if a sequence cannot be shared by so many devices or heads."""
    sequence = settings.parallel.sequence_parallel_size
    if devices % sequence:
        raise ConfigError(
            f"parallel.sequence_parallel_size = {sequence} does not divide {devices} devices: use "
            f"--devices {sequence}, or a multiple"
        )
    if sizes.heads % sequence:
        raise ConfigError(
            f"parallel.sequence_parallel_size = {sequence} does not divide the model's {sizes.heads} attention heads"
        )


def key_width(settings: TrainingSettings, sizes: ModelSizes) -> int:
    """The width of the keys that the devices of a sequence need together: a key head may be sent to several."""
    return sizes.head_dim * math.lcm(sizes.kv_heads, settings.parallel.sequence_parallel_size)


def peak_memory(
    settings: TrainingSettings, sizes: ModelSizes, workload: Workload, device: str, devices: int = 1
) -> PeakMemory:
    """The peak on one device, "cpu" or "cuda", in the largest micro-batch."""
    moments = moments_of(settings, sizes, workload, device, devices)
    peak = max(moments, key=lambda moment: moment.total)
    # CPU memory has a peak of its own. A checkpoint is a copy while it is written, unless the state is there anyway.
    # Without shards one process writes it.
    copied = 0.0 if device == "cpu" or settings.parallel.offload else 3.0 * _FP32
    copied *= trained_part(settings.model, sizes).parameters
    share = min(devices, PER_MACHINE) / devices if settings.parallel.shard else 1
    return replace(peak, offloaded=max(moment.offloaded for moment in moments), checkpoint=copied * share)


def moments_of(
    settings: TrainingSettings, sizes: ModelSizes, workload: Workload, device: str, devices: int = 1
) -> list[PeakMemory]:
    """The moments at which memory may peak.

    In the backward pass at the head, the last layer, the first trained layer and the embedding; after it; while a 4-bit
    base is loaded that will be sharded; and with GRPO while judgments are sampled.
    """
    check_layout(settings, sizes, devices)
    model, memory, parallel = settings.model, settings.memory, settings.parallel
    part, embedding = trained_part(model, sizes), sizes.vocabulary * sizes.hidden
    layer = _layer_memory(settings, part, workload, device)
    offload = memory.activation_offloading and device != "cpu"
    # Rows are distributed: with no more rows than groups of devices, each group has one micro-batch.
    groups = devices // parallel.sequence_parallel_size
    several = workload.several and (groups == 1 or settings.data.per_step > groups)

    # Weights: trained ones are fp32; adapters come in addition to the weights of the model.
    b = 2 if model.bf16 else _FP32
    adapters = part.layers * part.adapter_parameters
    weights = float(b * (sizes.parameters + adapters - part.parameters) + _FP32 * part.parameters)
    quantized = sizes.matrix_parameters if model.lora is not None and model.lora.load_in_4bit else 0
    weights -= (b - _NF4) * quantized * sizes.layers
    optimizer = 2.0 * _FP32 * part.parameters
    # Gradients and logits of a head: the embedding may be one.
    rest_trained = part.parameters - part.layers * part.layer_parameters
    unsharded, gathered, unreduced, on_cpu = weights, 0.0, 0, 0.0
    if parallel.shard:
        # One layer computes, and the next one is in the buffer that receives it and in the weights that it fills.
        rest = sizes.parameters - sizes.layers * sizes.layer_parameters
        gathered = (3 if parallel.reshard_after_forward else sizes.layers + 1) * (
            b * (sizes.layer_parameters + part.adapter_parameters) - (b - _NF4) * quantized
        )
        gathered += b * (rest - rest_trained) + _FP32 * rest_trained
        # A layer's gradients, their fp32 copy to be reduced, and that of the layer before it.
        unreduced = (b + 2 * _FP32) * part.layer_parameters + _FP32 * rest_trained
        weights, optimizer = weights / devices, optimizer / devices
    if parallel.offload:
        # FSDP pins offloaded weights and gradients one by one, and torch rounds pinned memory up to powers of two.
        own = [width * output / devices for width, output in sizes.matrices.values()] * sizes.layers
        own.append(embedding / devices)
        pinned = sum(2 ** math.ceil(math.log2(max(1.0, size))) for size in own) / sum(own)
        on_cpu = pinned * weights + optimizer
        weights = optimizer = 0.0
    elif not part.rank and settings.rollouts and settings.loss.options()["beta"]:
        weights *= (
            2  # GRPO's divergence compares with the weights at the start; adapters are switched off for that
        )
    weights += gathered
    pieces = offload * part.layers * math.ceil(layer.input / PINNED_PIECE) * PINNED_PIECE

    def moment(
        when: str, gradients: float, activations: float = 0.0, logits: float = 0.0, working: float = 0.0
    ) -> PeakMemory:
        """`gradients` are elements; those of an earlier micro-batch exist all the time."""
        own = _FP32 * (part.parameters if several else gradients) / (devices if parallel.shard else 1)
        return PeakMemory(
            when=when,
            weights=weights,
            optimizer=optimizer,
            gradients=own * (not parallel.offload) + unreduced * (gradients > 0 and working > 0),
            activations=activations,
            logits=logits,
            working=working,
            offloaded=pieces + on_cpu + (pinned * own if parallel.offload else 0.0),
        )

    def kept(layers: int) -> float:
        """What is kept of this many layers whose backward pass is still to come."""
        if not memory.gradient_checkpointing:
            return layers * layer.kept
        # With offload, one input is in use and the next one is on its way to the device.
        return (min(2, layers) if offload else layers) * layer.input + layers * layer.attended

    working = layer.working
    if memory.gradient_checkpointing:
        working += layer.recomputed - layer.attended
    head = sizes.head_parameters if sizes.kind == "scorer" else embedding if part.head else sizes.hidden
    moments = [
        # The last norm keeps about twice its input.
        moment(
            "the head's backward",
            0,
            kept(part.layers) + 2 * layer.input,
            _logits_memory(settings, part, workload),
        ),
        moment("the last layer's backward", head, kept(part.layers), working=working),
        moment(
            "the first trained layer's backward",
            head + part.layers * part.layer_parameters,
            kept(1),
            working=working,
        ),
        moment("the optimizer's step", part.parameters),
    ]
    if part.embeddings:
        # The embedding's gradient comes last, and is added to that of a tied head or of an earlier micro-batch.
        twice = several or (sizes.kind == "language_model" and sizes.tied)
        moments.append(
            moment(
                "the embedding's backward", part.parameters, working=_FP32 * embedding * twice + layer.input
            )
        )
    if quantized and parallel.shard:  # quantized while it is read, then sharded
        moments.append(PeakMemory("loading the weights", unsharded, 0.0))
    if settings.rollouts is not None:
        idle = PeakMemory("", weights, optimizer)
        moments += _sampling_moments(settings, settings.rollouts, part, workload, device, idle)
    return moments


def _logits_memory(settings: TrainingSettings, part: TrainedPart, workload: Workload) -> float:
    """Bytes at the head of a language model: logits or their softmax and two gradients of them, then the head's."""
    sizes, head = part.sizes, _FP32 * part.sizes.vocabulary * part.sizes.hidden
    if sizes.kind == "scorer":
        return 0.0
    targets = -(-workload.targets // settings.parallel.sequence_parallel_size)
    at_once = min(targets, max(1, LOGITS_AT_ONCE // sizes.vocabulary))
    chunk = _FP32 * at_once * sizes.vocabulary
    gradient = head * (1 + (at_once < targets)) * part.head
    # A frozen bf16 head has an fp32 copy in every chunk.
    copy = head * (not part.head and settings.model.bf16)
    return max(3 * chunk, chunk + gradient) + copy + _FP32 * targets * sizes.hidden


def _sampling_moments(
    settings: TrainingSettings,
    rollouts: RolloutSettings,
    part: TrainedPart,
    workload: Workload,
    device: str,
    idle: PeakMemory,
) -> list[PeakMemory]:
    """While the longest prompt is read, and while its judgments are written; `idle` is what a step begins with."""
    sizes, most = part.sizes, rollouts.max_completion_length
    # Both orders of a comparison are written together.
    leaves = max(len(tree.leaves) for tree in workload.largest.trees)
    count = min(2 * rollouts.num_generations, leaves)
    b = 2 if settings.model.bf16 else _FP32
    longest = max(tree.longest - most for tree in workload.largest.trees)
    idle = replace(idle, keys=2.0 * b * sizes.layers * sizes.keys * (longest + count * most))
    head = 0 if part.head or b == _FP32 else _FP32 * sizes.vocabulary * sizes.hidden
    # A sampled distribution is computed on the CPU: logits over the temperature, their logarithms, probabilities,
    # and two products for the entropy.
    logits = _FP32 * count * sizes.vocabulary * (6 if device == "cpu" else 1)
    # The residual stream, its norm, queries, keys and values, and three wide activations.
    layer = 3 * _FP32 * sizes.hidden + b * (2 * sizes.queries + 2 * sizes.keys + 3 * sizes.intermediate)
    reading, writing = (
        f"{doing} a prompt of {longest:,} tokens" for doing in ("reading", "writing the judgments of")
    )
    return [
        replace(idle, when=reading, logits=float(head), working=float(min(longest, _BLOCK) * layer)),
        replace(idle, when=writing, logits=float(head + logits)),
    ]


@dataclass(frozen=True, slots=True)
class _LayerMemory:
    """Bytes of one layer for one micro-batch."""

    input: float  # the layer's input, which is what checkpointing keeps
    attended: float  # the output of attention, if checkpointing keeps it
    kept: float  # what autograd keeps
    recomputed: float  # what it keeps in addition to the input when the layer is recomputed, and its output
    working: float  # gradients at the widest place of its backward pass, that of its output included


def _layer_memory(
    settings: TrainingSettings, part: TrainedPart, workload: Workload, device: str
) -> _LayerMemory:
    sizes, full = part.sizes, not part.rank
    b = 2 if settings.model.bf16 else _FP32
    # Frozen bf16 embeddings start a bf16 residual stream; trained ones, in fp32, an fp32 stream.
    stream = _FP32 if part.embeddings else b
    tokens = -(-workload.largest.tokens // settings.parallel.sequence_parallel_size)
    hidden, queries, keys, wide = sizes.hidden, sizes.queries, key_width(settings, sizes), sizes.intermediate
    layer_input = float(tokens * stream * hidden)

    # What autograd keeps of a token. A norm: its input in fp32, and for the gradient of its gain the normed input.
    # Attention: inputs of its matrices, of which bf16 has a copy for each; queries, keys and values; norms of queries
    # and keys. Its output is the input of a matrix. The feed-forward layer: inputs, gate, up, and their product.
    separate = full and b < _FP32
    norm = (_FP32 + stream * full) * hidden
    attention = b * (hidden * (3 if separate else 1) + 2 * queries + 2 * keys)
    if sizes.qk_norm:
        attention += (_FP32 + b * full) * (queries + sizes.keys)
    feed = b * (hidden * (2 if separate else 1) + 4 * wide)
    # The bf16 copies of trained fp32 matrices, which autograd keeps as they were multiplied; FSDP gathers in bf16.
    copies, matrices = b * (separate and not settings.parallel.shard), 3 * hidden * wide
    copied, feed_copied = copies * (sizes.matrix_parameters - matrices), copies * matrices

    feed_kept, feed_working = tokens * feed + feed_copied, tokens * 2 * b * wide  # two wide gradients
    if settings.memory.tiled_mlp:
        tile = min(tokens, tile_length(hidden))
        # Tiles are cut from what a norm returns, which with a trained gain is fp32. Weight gradients are summed over
        # tiles, next to those of one tile.
        feed_kept = tokens * hidden * (_FP32 if full else stream)
        feed_working = (
            feed_kept + tile * (feed + 2 * b * wide) + feed_copied + 4 * _FP32 * hidden * wide * full
        )
    # In the backward pass of attention, when nothing of the feed-forward layer is kept any more: gradients of output,
    # queries, keys, values and input. A flash kernel sums that of queries in fp32, and those of keys and values per
    # query head. Between the two is a norm: fp32 gradients as wide as its input, in a bf16 stream also copies.
    attention_working = tokens * b * (2 * queries + 2 * keys + hidden)
    if device != "cpu" and b < _FP32:
        attention_working += tokens * queries * (_FP32 + 2 * b * (sizes.kv_heads < sizes.heads))
    if (
        sizes.window_layers
    ):  # within a window every branch has a copy of the keys that it sees, with a gradient
        attention_working += tokens * 4 * b * keys
    norm_working = tokens * (3 if stream == _FP32 else 5) * _FP32 * hidden
    kept = tokens * (sizes.norms * norm + attention) + copied + feed_kept
    return _LayerMemory(
        input=layer_input,
        attended=float(tokens * b * queries * settings.memory.keep_attention),
        kept=float(kept),
        recomputed=float(
            kept + layer_input * (stream < _FP32)
        ),  # an fp32 input is shared with the first norm
        working=layer_input + max(feed_working, max(attention_working, norm_working) - feed_kept),
    )
