"""Tiny models of the supported families, with weights large enough that a wrong mask shows."""

import copy
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Cohere2Config,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from longrm.data.tokenizing import Tokenizer
from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.shapes import TokenTree

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.25,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=16),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=None),
}

WINDOW = 24
MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
WINDOWED = {
    "mistral, windows": lambda: MistralConfig(**SIZES, sliding_window=WINDOW),
    "qwen2, windows": lambda: Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    # Caps so low that most scores are near them, and a scale that is not that of the head size.
    "gemma2": lambda: Gemma2Config(
        **SIZES,
        **MIXED,
        head_dim=16,
        query_pre_attn_scalar=9,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=5.0,
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **SIZES, **MIXED, head_dim=16, query_pre_attn_scalar=9, final_logit_softcapping=5.0
    ),
    "gpt-oss": lambda: GptOssConfig(
        **SIZES, **MIXED, head_dim=16, num_local_experts=4, num_experts_per_tok=2
    ),
    "cohere2": lambda: Cohere2Config(**SIZES, **MIXED, logit_scale=2.0),
}
"""Windows, soft caps and sinks; Cohere2 has no sequence classifier."""

FAMILIES = CONFIGS | WINDOWED
SCORERS = [family for family in FAMILIES if family != "cohere2"]


ROUNDING = 1e-5
"""By how much scores and log-probabilities may differ where one computation is done in two orders of adding: with the
same weights elsewhere in memory (a file that is mapped, and what was saved into it), or by another path. Kernels choose
their order by how the weights are aligned, on one machine so and on another so."""


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def make_pair(family: str | PreTrainedConfig, kind: str) -> tuple[Any, Any]:
    """One model under stock attention (SDPA if it has that) and its twin, with equal weights, under ours."""
    config = FAMILIES[family]() if isinstance(family, str) else family
    config.num_labels = 1
    auto: Any = AutoModelForSequenceClassification if kind == "scores" else AutoModelForCausalLM
    torch.manual_seed(0)
    stock = auto.from_config(copy.deepcopy(config))
    ours = auto.from_config(copy.deepcopy(config), attn_implementation=SHARED_PREFIX)
    ours.load_state_dict(stock.state_dict())
    return stock, ours


def write_model(config: Any, tokenizer: Tokenizer, folder: Path, auto: Any = AutoModelForCausalLM) -> Path:
    """Writes a random model, always the same for a config, and its tokenizer, as transformers does."""
    torch.manual_seed(0)
    auto.from_config(config).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def plain_logprobs(model: Any, tree: TokenTree) -> torch.Tensor:
    """The log-probabilities of all responses by transformers' own forward, one sequence per response."""
    found = []
    for branch in tree.branches:
        ids = torch.tensor([[*tree.tokens, *branch]])
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[0, len(tree.tokens) - 1 : -1].float().log_softmax(-1)
        found.append(logprobs.gather(1, torch.tensor(branch)[:, None])[:, 0])
    return torch.cat(found)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    words = {
        "<pad>": 0,
        "<bos>": 1,
        "<eos>": 2,
        "<unk>": 3,
        **{f"w{i}": 4 + i for i in range(VOCABULARY - 4)},
    }
    backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer.from_backend(backend, bos="<bos>", eos="<eos>", pad="<pad>")
