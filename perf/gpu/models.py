"""Random scorers of real shapes, and the operations that they take."""

import copy
import gc
import math
from collections.abc import Sequence
from typing import Any

import torch
from arms import Work
from transformers import AutoModelForSequenceClassification, LlamaConfig, Qwen3Config

from longrm.modeling.adapters import adapt
from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.device_memory import checkpoint_activations, set_precision, tile_feed_forward
from longrm.modeling.shapes import PINNED_PIECE, tile_length
from longrm.modeling.shared_prefix import Packed

_COMMON = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
_LLAMA = {"num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 128_256}
_QWEN = {"num_hidden_layers": 36, "intermediate_size": 12288, "vocab_size": 151_936}
_TINY = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "vocab_size": 512,
}
SHAPES: dict[str, tuple[type[Any], dict[str, int]]] = {
    "llama-3.1-8b": (LlamaConfig, _COMMON | _LLAMA),
    "qwen3-8b": (Qwen3Config, _COMMON | _QWEN),
    "tiny": (LlamaConfig, _TINY),
}

RANK = 16


def build(
    name: str, mode: str, device: str, *, layers: int | None, offload: bool = False, tiled: bool = False
) -> Any:
    """A random scorer on the device, as training has it: trained weights in fp32, frozen ones in bf16."""
    if device == "cuda":
        gc.collect()  # the model before it
    kind, sizes = SHAPES[name]
    config = kind(**(sizes | ({"num_hidden_layers": layers} if layers else {})))
    config.num_labels, config.pad_token_id, config.max_position_embeddings = 1, 0, 2**21
    dtype = torch.float32 if mode == "full" else torch.bfloat16
    with torch.device(device):
        model = AutoModelForSequenceClassification.from_config(
            copy.deepcopy(config), attn_implementation=SHARED_PREFIX, dtype=dtype
        )
    if mode == "lora":
        adapt(model, base="random", rank=RANK, alpha=2 * RANK, seed=0)
    elif mode == "scoring":
        model.requires_grad_(False)
    model.score.float()
    set_precision(model, "bfloat16")
    if mode == "scoring":
        return model.eval()
    checkpoint_activations(model, offload=offload)
    if tiled:
        tile_feed_forward(model, tile_length(config.hidden_size))
    return model.train()


def pinned(name: str, mode: str, tokens: int) -> int:
    """Bytes of the CPU's memory that offloading takes: each layer's input, in whole pieces."""
    sizes = SHAPES[name][1]
    each = tokens * sizes["hidden_size"] * (2 if mode == "lora" else 4)
    return sizes["num_hidden_layers"] * math.ceil(each / PINNED_PIECE) * PINNED_PIECE


def operations(model: Any, work: Work, parts: Sequence[Packed], *, tiled: bool = False) -> float:
    """Multiplications and additions, counted as `longrm plan` counts them; what is computed again is in it."""
    config = model.config
    c, i, d = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * d, config.num_key_value_heads * d
    matrices = 2 * c * (queries + keys) + 3 * c * i
    adapters = RANK * (2 * (c + queries) + 2 * (c + keys) + 3 * (c + i))
    tokens = sum(part.layout.tokens for part in parts)
    pairs = sum(tree.pairs() for part in parts for tree in part.layout.trees)
    linear, attention = 2.0 * matrices * tokens, 4.0 * queries * pairs
    layers = config.num_hidden_layers
    if work.mode == "scoring":
        return layers * (linear + attention)
    again = 6.0 * c * i * tokens * tiled + 4 * attention
    if work.mode == "lora":
        return layers * (3 * linear + 2.0 * adapters * tokens * 4 + again)
    return layers * (4 * linear - 2.0 * c * i * tokens + again)
