"""Memory of a training at its peak, counted from what autograd keeps, on one device of one or several.

The counts follow one layer of a decoder with gated feed-forward layers through its forward and backward pass; a test
compares them with what autograd saves. The peak is that of a step after the first, when the optimizer has its state.

With sharded weights, each device also has those that FSDP2 has gathered, and their gradients until they are reduced;
these are counted from the source of torch 2.13, and not measured on a GPU.

Letters: M devices, S tokens of a micro-batch, C hidden size, I feed-forward size, H query heads, D head size, V
vocabulary, T trained weights, b bytes of an element of a matrix product, r rank of the adapters.
"""

import math
from dataclasses import dataclass, replace

from longrm.errors import ConfigError
from longrm.modeling.shapes import LOGITS_AT_ONCE, PINNED_PIECE, tile_length
from longrm.training.plan import ModelSizes
from longrm.training.plan.workload import TrainedPart, Workload, trained_part
from longrm.training.settings import ParallelSettings, RolloutSettings, TrainingSettings

_FP32 = 4
_NF4 = 0.5 + 0.127 / 8  # bytes of a weight in 4 bits, with the scales of its block (Dettmers et al. 2023)
_BLOCK = 2048  # tokens of a prompt that are read at once; `modeling.group_sampling` has it, but imports torch
_PROCESS = 2**29  # resident bytes with torch and transformers imported: 0.47 GiB with torch 2.13
PER_MACHINE = 8  # devices of a machine, at most


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Bytes on a device at a moment of a step, by purpose; their sum is `total`."""

    when: str
    weights: float
    gradients: float  # those that exist at that moment
    optimizer: float  # the two moments of AdamW
    activations: float  # kept for the backward pass
    logits: float  # of the responses, and what their backward pass needs
    working: float  # what the layer being computed needs in addition
    offloaded: float = 0.0  # bytes in CPU memory, at most; not part of the sum
    checkpoint: float = 0.0  # bytes in the CPU memory of a machine while one is written; not part of the sum
    start: float = 0.0  # the weights at the start, with which GRPO's divergence compares
    keys: float = 0.0  # keys and values of a prompt and of its judgments, while GRPO samples
    process: float = 0.0  # Python and its libraries, in CPU memory

    @property
    def total(self) -> float:
        """The bytes on the device."""
        parts = (self.weights, self.gradients, self.optimizer, self.activations, self.logits, self.working)
        return sum(parts) + self.start + self.keys + self.process


@dataclass(frozen=True, slots=True)
class Sharding:
    """The layout of M devices: `sequence` neighbors share every sequence, and each such group reads its own rows."""

    devices: int
    parallel: ParallelSettings

    @property
    def groups(self) -> int:
        """Groups of devices with rows of their own."""
        return self.devices // self.parallel.sequence_parallel_size

    def share(self, tokens: int) -> int:
        """The tokens of a sequence that one device holds."""
        return -(-tokens // self.parallel.sequence_parallel_size)

    def key_copies(self, kv_heads: int) -> int:
        """The number of devices of a group that need each key head."""
        return math.lcm(kv_heads, self.parallel.sequence_parallel_size) // kv_heads

    def shards(self, size: float) -> tuple[float, float]:
        """Bytes on one device, and in CPU memory, of something of this size that is sharded if weights are."""
        if not self.parallel.shard:
            return size, 0.0
        own = size / self.devices
        return (0.0, own) if self.parallel.offload else (own, 0.0)

    def gathered(self, layer: float, layers: int, rest: float) -> float:
        """Bytes of the gathered weights, of a layer of this size or all of them, and of the rest of the model."""
        if not self.parallel.shard:
            return 0.0
        # One layer computes, and the next one is in the buffer that receives it and in the weights that it fills.
        return rest + layer * (3 if self.parallel.reshard_after_forward else layers + 1)

    def unreduced(self, layer: int, element: int, rest: int) -> float:
        """Bytes of gradients that are not reduced yet: of a layer's elements of this size, and of the rest in fp32."""
        if not self.parallel.shard:
            return 0.0
        # A layer's gradients, their fp32 copy to be reduced, and that of the layer before it.
        return (element + 2 * _FP32) * layer + _FP32 * rest


def sharding_of(parallel: ParallelSettings, devices: int, heads: int) -> Sharding:
    """The layout of a recipe; raises `ConfigError` if devices or heads cannot be divided so."""
    sequence = parallel.sequence_parallel_size
    if devices % sequence:
        raise ConfigError(
            f"parallel.sequence_parallel_size = {sequence} does not divide {devices} devices: use "
            f"--devices {sequence}, or a multiple"
        )
    if heads % sequence:
        raise ConfigError(
            f"parallel.sequence_parallel_size = {sequence} does not divide the model's {heads} attention heads"
        )
    return Sharding(devices, parallel)


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
    return replace(
        peak,
        offloaded=max(moment.offloaded for moment in moments),
        checkpoint=copied * share,
        process=_PROCESS if device == "cpu" else 0,
    )


def moments_of(
    settings: TrainingSettings, sizes: ModelSizes, workload: Workload, device: str, devices: int = 1
) -> list[PeakMemory]:
    """The moments at which memory may peak.

    In the backward pass at the head, the last layer, the first trained layer and the embedding; after it; while a 4-bit
    base is loaded that will be sharded; and with GRPO while judgments are sampled.
    """
    grid = sharding_of(settings.parallel, devices, sizes.heads)
    trained = trained_part(settings.model, sizes)
    layer = _layer_memory(settings, trained, workload, device, grid)
    full = not trained.rank
    checkpointing = settings.memory.gradient_checkpointing
    offload = settings.memory.activation_offloading and device != "cpu"
    embedding = sizes.vocabulary * sizes.hidden
    # Rows are distributed: with no more rows than groups, each group has one micro-batch.
    several = workload.several and (grid.groups == 1 or settings.data.per_step > grid.groups)

    # Trained weights are fp32; adapters come in addition to the weights of the model.
    frozen = 2 if settings.model.precision == "bfloat16" else _FP32
    adapters = trained.layers * trained.adapter_parameters
    weight_bytes = float(
        frozen * (sizes.parameters + adapters - trained.parameters) + _FP32 * trained.parameters
    )
    matrices = 0  # of a layer that are in 4 bits
    if settings.model.lora is not None and settings.model.lora.quantize:
        matrices = sizes.matrix_parameters
        weight_bytes -= (frozen - _NF4) * matrices * sizes.layers
    # Adapters are switched off to compute with the weights at the start.
    start = weight_bytes if full and settings.rollouts and settings.loss.options()["beta"] else 0.0
    shards, offloaded_weights = grid.shards(weight_bytes)
    b = 2 if settings.model.precision == "bfloat16" else _FP32
    one_layer = b * (sizes.layer_parameters + trained.adapter_parameters) - (b - _NF4) * matrices
    # Embeddings, the last norm and heads keep their own precision when they are gathered.
    rest = sizes.parameters - sizes.layers * sizes.layer_parameters
    rest_trained = trained.parameters - trained.layers * trained.layer_parameters
    rest_bytes = frozen * (rest - rest_trained) + _FP32 * rest_trained
    weights = shards + grid.gathered(one_layer, sizes.layers, rest_bytes)
    optimizer, offloaded_optimizer = grid.shards(2 * _FP32 * trained.parameters)
    # FSDP pins offloaded weights and gradients one by one, and torch rounds pinned memory up to powers of two.
    elements = [width * output for width, output in sizes.matrices.values()]
    own = [size / devices for size in elements * sizes.layers + [embedding]]
    pinned = sum(2 ** math.ceil(math.log2(max(1.0, size))) for size in own) / sum(own)
    pieces = offload * trained.layers * math.ceil(layer.input / PINNED_PIECE) * PINNED_PIECE

    def moment(when: str, gradients: float, activations: float, logits: float, working: float) -> PeakMemory:
        if several and full and working and not settings.parallel.shard:
            # The gradients of an earlier micro-batch exist already; each matrix is added to its own.
            working += _FP32 * max(elements)
        if matrices:  # one is dequantized at a time
            working += b * max(elements)
        present, offloaded_gradients = grid.shards(
            _FP32 * (trained.parameters if several else round(gradients))
        )
        if gradients and working:
            present += grid.unreduced(trained.layer_parameters, b, rest_trained)
        return PeakMemory(
            when=when,
            weights=weights,
            gradients=present,
            optimizer=optimizer,
            activations=activations,
            logits=logits,
            working=working,
            start=start,
            offloaded=pieces + pinned * (offloaded_weights + offloaded_gradients) + offloaded_optimizer,
        )

    def kept(layers: int) -> float:
        """What is kept of this many layers whose backward pass is still to come."""
        if checkpointing:
            # With offload, one input is in use and the next one is on its way to the device.
            return (min(2, layers) if offload else layers) * layer.input + layers * layer.attended
        return (
            layers * layer.kept
            - (layer.not_in_last if layers == trained.layers else 0.0)
            - (0.0 if trained.embeddings else layer.not_in_first)
        )

    # Logits or their softmax and two gradients of them; then the gradients of hidden states and head.
    logits = 0.0
    targets = grid.share(workload.targets) if sizes.kind == "language_model" else 0
    if targets:
        at_once = min(targets, max(1, LOGITS_AT_ONCE // sizes.vocabulary))
        chunk, matrix = _FP32 * at_once * sizes.vocabulary, _FP32 * embedding
        gradient = matrix * (1 + (at_once < targets)) if trained.head else 0
        # A frozen bf16 head has an fp32 copy in every chunk.
        chunks = (3 + sizes.soft_capped) * chunk
        logits = max(chunks, chunk + gradient) + (matrix if not trained.head and frozen < _FP32 else 0)

    def computing(number: int) -> float:
        """What the backward pass of a trained layer needs; the lowest one is number 1."""
        without_gradient = number == 1 and not trained.embeddings  # of its input
        working = layer.working_in_first if without_gradient else layer.working
        if checkpointing:
            working += layer.recomputed - layer.attended
            if without_gradient and layer.stream < _FP32:  # else its norm would share the input
                working -= layer.not_in_first
        return working

    last = sizes.head_parameters if sizes.kind == "scorer" else embedding if trained.head else sizes.hidden
    first = last + trained.layers * trained.layer_parameters
    rotation = layer.tokens * 2 * layer.stream * sizes.head_dim  # cosines and sines, which the layers share
    # What the last norm keeps, and the states from which tokens are predicted.
    final = layer.norm + _FP32 * targets * sizes.hidden
    moments = [
        moment("the head's backward", 0, kept(trained.layers) + rotation + final, logits, 0),
        moment(
            "the last layer's backward", last, kept(trained.layers) + rotation, 0, computing(trained.layers)
        ),
        moment("the first trained layer's backward", first, kept(1) + rotation, 0, computing(1)),
        moment("the optimizer's step", trained.parameters, 0, 0, 0),
    ]
    if trained.embeddings:
        # The embedding's gradient comes last, and is added to that of a tied head or of an earlier micro-batch.
        twice = several or (sizes.kind == "language_model" and sizes.tied)
        working = _FP32 * embedding * twice + layer.tokens * layer.stream * sizes.hidden
        moments.append(moment("the embedding's backward", trained.parameters, 0, 0, working))
    if matrices and settings.parallel.shard:  # quantized while it is read, then sharded
        moments.append(PeakMemory("loading the weights", weight_bytes, 0, 0, 0, 0, 0))
    if settings.rollouts is not None:
        idle = PeakMemory("", weights, 0, optimizer, 0, 0, 0, start=start)
        moments += _sampling_moments(settings, settings.rollouts, trained, workload, device, idle)
    return moments


def _sampling_moments(
    settings: TrainingSettings,
    rollouts: RolloutSettings,
    trained: TrainedPart,
    workload: Workload,
    device: str,
    idle: PeakMemory,
) -> list[PeakMemory]:
    """While the longest prompt is read, and while its judgments are written; `idle` is what a step begins with."""
    sizes, count, most = trained.sizes, rollouts.num_generations, rollouts.max_tokens
    b = 2 if settings.model.precision == "bfloat16" else _FP32
    longest = max(tree.prefix + max(tree.branches) - most for tree in workload.largest.trees)
    per_token = 2 * b * sizes.layers * sizes.keys
    frozen_head = 0 if trained.head or b == _FP32 else _FP32 * sizes.vocabulary * sizes.hidden
    # A sampled distribution is computed on the CPU: logits over the temperature, their logarithms, probabilities,
    # and two products for the entropy.
    logits = _FP32 * count * sizes.vocabulary * (6 if device == "cpu" else 1) + frozen_head
    # The residual stream, its norm, queries, keys and values, and three wide activations.
    layer = 3 * _FP32 * sizes.hidden + b * (2 * sizes.queries + 2 * sizes.keys + 3 * sizes.intermediate)
    keys = float(per_token * (longest + count * most))
    return [
        replace(
            idle,
            when=f"reading a prompt of {longest:,} tokens",
            keys=keys,
            logits=float(frozen_head),
            working=float(min(longest, _BLOCK) * layer),
        ),
        replace(
            idle,
            when=f"writing the judgments of a prompt of {longest:,} tokens",
            keys=keys,
            logits=float(logits),
        ),
    ]


@dataclass(frozen=True, slots=True)
class _LayerMemory:
    """Bytes of one layer for one micro-batch."""

    tokens: int  # S, or a device's share of them
    stream: int  # bytes of an element of the residual stream
    input: float  # the layer's input, which is what checkpointing keeps
    attended: float  # the output of attention and its log-sum-exps, if checkpointing keeps them
    norm: float  # what one norm keeps
    kept: float  # what autograd keeps
    not_in_last: float  # what it does not keep of the last layer
    not_in_first: float  # what it does not keep of the first trained layer if its input needs no gradient
    recomputed: float  # what it keeps in addition to the input when the layer is recomputed, and its output
    working: float  # gradients at the widest place of its backward pass, that of its output included
    working_in_first: float  # the same of the first trained layer if its input needs no gradient


def _layer_memory(
    settings: TrainingSettings, trained: TrainedPart, workload: Workload, device: str, grid: Sharding
) -> _LayerMemory:
    sizes, rank, full = trained.sizes, trained.rank, not trained.rank
    b = 2 if settings.model.precision == "bfloat16" else _FP32
    tokens = grid.share(workload.largest.tokens)
    keys = sizes.keys * grid.key_copies(sizes.kv_heads)
    # Frozen bf16 embeddings start a bf16 residual stream; trained ones, in fp32, an fp32 stream.
    stream = _FP32 if trained.embeddings else b
    layer_input = float(tokens * stream * sizes.hidden)
    # A norm keeps its input in fp32, one over its root mean square, and for the gradient of its gain the normed input.
    not_in_first = float(tokens * _FP32 * (sizes.hidden + 1))
    norm = not_in_first + tokens * stream * sizes.hidden * full

    def matrix_inputs(*modules: str) -> int:
        """Bytes per token of the kept input of some matrices and of their adapters; bf16 has a copy for each matrix."""
        width = sizes.matrices[modules[0]][0]
        return b * (width * (1 if b == _FP32 or rank else len(modules)) + rank * len(modules))

    def bf16_copies(*modules: str) -> int:
        """Bytes of the bf16 copies of trained fp32 matrices, which autograd keeps as they were multiplied."""
        if b == _FP32 or grid.parallel.shard:  # which are gathered in bf16
            return 0
        shapes = [sizes.matrices[name] for name in modules]
        return b * sum(rank * (width + output) if rank else width * output for width, output in shapes)

    # Attention: inputs of its matrices; queries, keys, values and log-sum-exps; norms of queries and keys. The
    # output is the input of a matrix.
    heads = b * (sizes.queries + 2 * keys) + _FP32 * sizes.heads
    if sizes.qk_norm:
        heads += (_FP32 + b * full) * (sizes.queries + sizes.keys) + _FP32 * (sizes.heads + sizes.kv_heads)
    attention_inputs = matrix_inputs("q_proj", "k_proj", "v_proj") + matrix_inputs("o_proj")
    attention = tokens * (attention_inputs + heads)
    kept = sizes.norms * norm + attention + bf16_copies("q_proj", "k_proj", "v_proj", "o_proj")
    # A scorer on a CPU computes the queries of the last layer only where scores are read.
    everywhere = device != "cpu" or sizes.kind != "scorer"
    not_in_last = 0.0 if everywhere else float(tokens * (b * sizes.queries + _FP32 * sizes.heads))

    # The feed-forward layer: inputs of its matrices, and three wide activations (gate, up, and their product).
    wide = matrix_inputs("gate_proj", "up_proj") + matrix_inputs("down_proj") + 3 * b * sizes.intermediate
    copies = bf16_copies("gate_proj", "up_proj", "down_proj")
    gradients = 2 * b * sizes.intermediate  # two wide gradients more than are freed
    if settings.memory.tiled_mlp:
        tile = min(tokens, tile_length(sizes.hidden))
        # Weight gradients are summed over tiles, next to those of one tile.
        summed = _FP32 * 4 * sizes.hidden * sizes.intermediate * full
        # Tiles are cut from what a norm returns, which with a trained gain is fp32.
        normed = tokens * sizes.hidden * (_FP32 if full else stream)
        feed_working, feed_kept = normed + tile * (wide + gradients) + copies + summed, normed
    else:
        feed_working, feed_kept = tokens * gradients, tokens * wide + copies

    # In attention's backward pass, when nothing of the feed-forward layer is kept any more: gradients of output,
    # queries, keys, values and input.
    attention_working = tokens * (2 * b * (sizes.queries + keys) + b * sizes.hidden)
    if device != "cpu" and b < _FP32:
        # A flash kernel sums the gradient of queries in fp32, and those of keys and values per query head.
        attention_working += tokens * sizes.queries * (_FP32 + 2 * b * (sizes.kv_heads < sizes.heads))
    # Between the two is the backward pass of a norm: fp32 gradients as wide as its input, in a bf16 stream also copies.
    norm_working = tokens * (3 if stream == _FP32 else 5) * _FP32 * sizes.hidden
    trees = workload.largest.trees
    if sizes.window_layers and sizes.window is not None and workload.largest.longest > sizes.window:
        # Within a window every branch has a copy of what it sees of its prefix, and the copies have gradients.
        copied = sum(min(sizes.window - 1, tree.prefix) * len(tree.branches) for tree in trees if tree.forks)
        attention_working += 4 * b * keys * (grid.share(copied) + tokens)
    kept += feed_kept
    return _LayerMemory(
        tokens=tokens,
        stream=stream,
        input=layer_input,
        attended=float(tokens * (b * sizes.queries + _FP32 * sizes.heads) * settings.memory.keep_attention),
        norm=norm,
        kept=float(kept),
        not_in_last=not_in_last,
        not_in_first=not_in_first,
        # An fp32 input is shared with the first norm.
        recomputed=kept - (layer_input if stream == _FP32 else 0.0) + layer_input,
        working=layer_input + max(feed_working, max(attention_working, norm_working) - feed_kept),
        # The gradient of its output goes nowhere around attention.
        working_in_first=max(layer_input + feed_working, max(attention_working, norm_working) - feed_kept),
    )
