"""One of several processes that share sequences: gradients of layers with windows, soft caps and sinks.

    python windowed_gradients.py FAULT OUT

A fault is what a negative control breaks; none is "".
"""

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification, Gemma2Config, GptOssConfig

from longrm.modeling import attention
from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.sequence_parallel import share_sequences
from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import pack, scores
from longrm.training.distributed import DistributedContext, join_processes
from longrm.training.settings import ParallelSettings

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.25,
    "pad_token_id": 0,
    "sliding_window": 12,
    "num_labels": 1,
    "layer_types": ["sliding_attention", "full_attention"],
}
CONFIGS = {
    "gemma2": lambda: Gemma2Config(**SIZES, attn_logit_softcapping=2.0),
    "gpt-oss": lambda: GptOssConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
}


def token_ids(count: int) -> list[int]:
    return [3 + (7 * at * at + count) % 90 for at in range(count)]


def gradients(context: DistributedContext) -> dict[str, torch.Tensor]:
    """Scores and gradients by every weight, of one micro-batch."""
    found = {}
    order = TokenTree(token_ids(17), [token_ids(4), token_ids(14)])
    packed = pack(
        [TokenTree(token_ids(41), [token_ids(3), order, [7]]), TokenTree(token_ids(9), [token_ids(5)])]
    )
    for family, config in CONFIGS.items():
        torch.manual_seed(0)
        auto: Any = AutoModelForSequenceClassification
        model = auto.from_config(config(), attn_implementation=SHARED_PREFIX)
        if context.sequence is not None:
            share_sequences(model, context.sequence)
        values = scores(model, packed)
        (values * torch.tensor([1.0, -2.0, 0.5, 1.5, -0.7])).sum().backward()
        context.average_gradients(model)
        found[f"{family} scores"] = values.detach()
        found |= {
            f"{family} {name}": one.grad for name, one in model.named_parameters() if one.grad is not None
        }
    return found


def main() -> None:
    fault, out = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    if fault == "sinks of other heads":
        attention.own_part = lambda sinks, group: torch.tensor_split(sinks, group.size())[group.rank() - 1]
    with join_processes(ParallelSettings(sequence_parallel_size=2)) as context:
        found = gradients(context)
        if context.is_main_process:
            save_file(found, out)


if __name__ == "__main__":
    main()
