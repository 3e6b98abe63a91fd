"""Memory of a training at its peak, counted from what autograd keeps.

The counts follow one layer of a decoder with gated feed-forward layers through its forward and backward; a test
compares them with what autograd saves. The peak is that of a step that is not the first: the optimizer has its state.

Letters: S tokens of a micro-batch, N of its branches, C hidden size, I feed-forward size, H query heads, D head size,
V vocabulary, b bytes of an element of a matrix product, r rank of the adapters.
"""

from collections.abc import Collection
from dataclasses import dataclass

from longrm.modeling.attention import choose_path
from longrm.modeling.heads import LOGITS_AT_ONCE
from longrm.modeling.shared_prefix import Layout
from longrm.training.planning.rows import Reading
from longrm.training.planning.sizes import ModelSizes, targets_of
from longrm.training.settings import Training

_FP32 = 4


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the device at the peak, by what they hold; their sum is the peak.

    Attributes:
        when: Where in a step the peak is.
        weights: The model.
        gradients: Of trained weights, as far as they exist at the peak.
        optimizer: The two moments of AdamW.
        activations: What is kept for the way back.
        logits: Of the responses, and what their backward needs.
        working: What the layer being computed needs beside that.
        offloaded: Bytes in the CPU's memory instead; no part of the sum.
    """

    when: str
    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    working: float
    offloaded: float = 0.0

    @property
    def total(self) -> float:
        """The peak."""
        parts = (self.weights, self.gradients, self.optimizer, self.activations, self.logits, self.working)
        return sum(parts)


def memory_of(settings: Training, sizes: ModelSizes, reading: Reading, device: str) -> Memory:
    """The peak of a training.

    Args:
        settings: What is trained how.
        sizes: The model's.
        reading: What is read; its largest micro-batch counts.
        device: "cpu" or "cuda".
    """
    return max(moments_of(settings, sizes, reading, device), key=lambda moment: moment.total)


def moments_of(settings: Training, sizes: ModelSizes, reading: Reading, device: str) -> list[Memory]:
    """The moments of a step at which memory may peak; the arguments are `memory_of`'s."""
    return _Account(settings, sizes, reading, device).moments()


class _Account:
    """The moments of a step at which memory may peak."""

    def __init__(self, settings: Training, sizes: ModelSizes, reading: Reading, device: str) -> None:
        targets = targets_of(settings, sizes)
        rank = settings.model.lora.rank if settings.model.lora else 0
        self._sizes = sizes
        self._layer = _Layer(sizes, reading.largest, targets, rank, settings.model.precision, device)
        self._several = reading.several
        self._targets = reading.targets if sizes.kind == "language_model" else 0
        self._checkpointing = settings.memory.checkpointing
        self._offload = settings.memory.offload and device != "cpu"
        self._full = not targets
        self._frozen = 2 if settings.model.precision == "bfloat16" else _FP32
        self._adapters = sizes.adapter_parameters(rank, targets)

    def moments(self) -> list[Memory]:
        """On the way back at the head, at the last and at the first layer and at the embedding; and after it."""
        sizes, layer = self._sizes, self._layer
        computing = layer.working + (layer.again if self._checkpointing else 0)
        last, first = self._head_gradient(), self._head_gradient() + sizes.layers * self._layer_gradient()
        kept = self._kept(sizes.layers) + self._shared()
        moments = [
            self._moment("the head's backward", 0, kept + self._final(), self._logits(), 0),
            self._moment("the last layer's backward", last, kept, 0, computing),
            self._moment("the first layer's backward", first, self._kept(1) + self._shared(), 0, computing),
            self._moment("the optimizer's step", self._trained(), 0, 0, 0),
        ]
        if self._full:
            # The embedding's gradient comes last, and is added to that of a tied head or of an earlier micro-batch.
            twice = self._several or (sizes.kind == "language_model" and sizes.tied)
            embedding = _FP32 * sizes.vocabulary * sizes.hidden * twice
            residual = layer.tokens * layer.stream * sizes.hidden
            moments.append(
                self._moment("the embedding's backward", self._trained(), 0, 0, embedding + residual)
            )
        return moments

    def _moment(
        self, when: str, gradients: float, activations: float, logits: float, working: float
    ) -> Memory:
        trained = self._trained()
        if self._several:
            # Gradients of the micro-batch before are there; one matrix at a time is added to its own.
            largest = max(read * write for read, write in self._sizes.matrices.values())
            working += _FP32 * largest if self._full and working else 0
        return Memory(
            when=when,
            weights=self._weights(),
            gradients=_FP32 * (trained if self._several else gradients),
            optimizer=2 * _FP32 * trained,
            activations=activations,
            logits=logits,
            working=working,
            offloaded=self._sizes.layers * self._layer.input if self._offload else 0.0,
        )

    def _trained(self) -> int:
        sizes = self._sizes
        if self._full:
            return sizes.parameters
        head = sizes.head_parameters if sizes.kind == "scorer" else 0
        return sizes.layers * self._adapters + head

    def _weights(self) -> float:
        if self._full:
            return _FP32 * self._sizes.parameters
        head = self._sizes.head_parameters if self._sizes.kind == "scorer" else 0
        return self._frozen * (self._sizes.parameters - head) + _FP32 * self._trained()

    def _layer_gradient(self) -> int:
        return self._sizes.layer_parameters if self._full else self._adapters

    def _head_gradient(self) -> int:
        sizes = self._sizes
        if not self._full or sizes.kind == "scorer":
            return sizes.hidden
        return sizes.vocabulary * sizes.hidden

    def _kept(self, layers: int) -> float:
        """Of so many layers whose backward is still to come."""
        layer = self._layer
        if not self._checkpointing:
            # Frozen embeddings need no gradient, so the first layer's first norm keeps nothing.
            return layers * layer.kept - (0 if self._full else layer.tokens * layer.norm)
        # One more is on its way to the device while a layer is computed.
        on_device = min(2, layers) if self._offload else layers
        return on_device * layer.input

    def _shared(self) -> float:
        """What the layers share: the rotation's cosines and sines, and the mask."""
        layer = self._layer
        return layer.tokens * 2 * layer.stream * self._sizes.head_dim + layer.mask

    def _final(self) -> float:
        """What the last norm keeps, and the states from which tokens are predicted."""
        return self._layer.tokens * self._layer.norm + _FP32 * self._targets * self._sizes.hidden

    def _logits(self) -> float:
        """Logits or their softmax, and two gradients of theirs; then the gradients of states and head."""
        sizes = self._sizes
        if not self._targets:
            return 0.0
        at_once = min(self._targets, max(1, LOGITS_AT_ONCE // sizes.vocabulary))
        part = _FP32 * at_once * sizes.vocabulary
        matrix = _FP32 * sizes.vocabulary * sizes.hidden
        gradient = matrix * (1 + (at_once < self._targets)) if self._full else 0
        # A frozen head in bf16 has an fp32 copy, one for every part.
        copy = matrix if not self._full and self._frozen < _FP32 else 0
        return max(3 * part, part + gradient) + copy


class _Layer:
    """Bytes of one layer for one micro-batch.

    Attributes:
        tokens: S.
        stream: Bytes of an element of the residual stream.
        input: The layer's input: what checkpointing keeps.
        norm: Of what a norm keeps, for one token.
        kept: What autograd keeps.
        again: What it keeps beside the input, when the layer is computed again; and its output.
        working: Gradients at the widest place of its backward.
        mask: The mask of the joint path, kept once for all layers.
    """

    def __init__(
        self,
        sizes: ModelSizes,
        layout: Layout,
        targets: Collection[str],
        rank: int,
        precision: str,
        device: str,
    ) -> None:
        full = not targets
        b = 2 if precision == "bfloat16" else _FP32
        self._sizes, self._b = sizes, b
        self._trained = tuple(sizes.matrices) if full else tuple(targets)
        self.tokens = layout.tokens
        # Frozen bf16 embeddings begin a bf16 stream; trained ones, in fp32, an fp32 stream.
        self.stream = _FP32 if full else b
        self.input = float(self.tokens * self.stream * sizes.hidden)
        # Its input in fp32, one over its root mean square, and for the gradient of its gain the normed input.
        self.norm = _FP32 * (sizes.hidden + 1 + sizes.hidden * full)
        own, self.mask = self._attention(layout, device)
        # Matrices that are not in bf16 are kept as they were multiplied.
        copies = 0 if b == _FP32 else b * self._multiplied(full, rank)
        adapters = 0 if full else b * rank * len(self._trained)
        states = 2 * self.norm + self._inputs() + self._heads(full) + 3 * b * sizes.intermediate + adapters
        self.kept = self.tokens * states + own + copies
        shared = self.input if self.stream == _FP32 else 0.0
        self.again = self.kept - shared + self.input
        # The feed-forward layer's: of its output, and of what is multiplied there, two wide ones more than are freed.
        self.working = float(self.tokens * (self.stream * sizes.hidden + 2 * b * sizes.intermediate))

    def _inputs(self) -> int:
        """What trained matrices read, for one token: one copy in fp32, one for every reader in bf16."""
        total = 0
        for readers in (
            ("q_proj", "k_proj", "v_proj"),
            ("o_proj",),
            ("gate_proj", "up_proj"),
            ("down_proj",),
        ):
            trained = sum(name in self._trained for name in readers)
            width = self._sizes.matrices[readers[0]][0]
            total += self._b * width * (min(trained, 1) if self._b == _FP32 else trained)
        return total

    def _heads(self, full: bool) -> int:
        """Queries, keys, values, the output, its log-sum-exps and the norms of queries and keys, for one token."""
        sizes = self._sizes
        rows = self._b * 2 * (sizes.queries + sizes.keys) + _FP32 * sizes.heads
        if not sizes.qk_norm:
            return rows
        normed = (_FP32 + self._b * full) * (sizes.queries + sizes.keys)
        return rows + normed + _FP32 * (sizes.heads + sizes.kv_heads)

    def _multiplied(self, full: bool, rank: int) -> int:
        """Elements of the trained matrices."""
        if not full:
            return self._sizes.adapter_parameters(rank, self._trained)
        return sum(read * write for read, write in self._sizes.matrices.values())

    def _attention(self, layout: Layout, device: str) -> tuple[float, float]:
        """What the paths of the shared prefix keep beside: copies of keys and values, and masks."""
        own = shared = 0.0
        for shape, count in layout.runs():
            if choose_path(shape, device) == "joint":
                shared += self._b * shape.branch_tokens * shape.tokens
                continue
            for length in shape.branches:
                seen = shape.prefix + length
                own += count * self._b * 2 * self._sizes.keys * seen
                # A kernel of a CPU knows no lower-right causal mask: it is written out.
                own += self._b * length * seen if device == "cpu" else 0
        return own, shared
