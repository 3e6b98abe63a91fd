"""Tiny GGUF files of known weights and vocabularies, written by the `gguf` package as llama.cpp's converter does."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

CONTROL, NORMAL = 3, 1
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXTS = (
    "The access code of Corimo is bucket; that of Lanu was 4711 until 1999-12-31, then  7   and 12,345.50.\n"
    "def f(x):\n    return x **  2  # it's what we'll do, THEY'RE done\r\n"
    "\tÜber naïve façades: 北京は 3 度、½ and ٣٤!\n"
)
COMMON_PIECES = [*SPECIALS, *TEXTS.split(" "), " ", "  ", "\n", "\n\n", "\t ", "7", "'s", "|>"]
"""What texts for tokenizers are put together from."""
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = {  # as llama.cpp states them, by the name in the file: patterns that are applied one after another
    "gpt-2": (GPT2_WORDS,),
    "smollm": (r"\p{N}", GPT2_WORDS),
    "llama-bpe": (LLAMA3_WORDS,),
    "qwen2": (LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}"),),
}


def train_backend(name: str = "smollm", size: int = 420) -> tokenizers.Tokenizer:
    """A byte-level tokenizer of the texts above, whose words are split as the name says."""
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=name == "llama-bpe"))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in WORDS[name]]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([TEXTS] * 2, trainer)
    return backend


def write_gguf(
    file: Path,
    model: Any,
    backend: tokenizers.Tokenizer | None = None,
    *,
    words: str = "smollm",
    quantize: GGMLQuantizationType = GGMLQuantizationType.F32,
    keys: Mapping[str, Any] | None = None,
    more: Mapping[str, np.ndarray] | None = None,
    left_out: str | None = None,
    permute: bool = True,
    template: str | None = TEMPLATE,
) -> Path:
    """Writes a model of transformers.

    Args:
        file: Where to.
        model: A causal language model.
        backend: Its tokenizer; that of `train_backend` by default.
        words: The name of how it splits words.
        quantize: The type of matrices; vectors are F32.
        keys: Further keys, or others than the model's.
        more: Further tensors.
        left_out: The name of a tensor that is not written.
        permute: Whether Llama's queries and keys are written in the order that llama.cpp reads.
        template: The chat template.
    """
    config, kind = model.config, model.config.model_type
    writer = GGUFWriter(file, kind)
    writer.add_name("tiny")
    for key, value in {**_sizes(config), **(keys or {})}.items():
        _add(
            writer,
            key if "." in key and key.split(".")[0] in ("general", "split", "tokenizer") else f"{kind}.{key}",
            value,
        )
    _add_vocabulary(writer, backend or train_backend(words), words, template)
    names = gguf.get_tensor_name_map(_architecture(kind), config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        stem, _, suffix = name.rpartition(".")
        stored = f"{names.get_name(stem)}.{suffix}"
        tied = config.tie_word_embeddings and stored == "output.weight"
        if tied or stored == left_out:
            continue
        values = tensor
        if kind == "llama" and permute and (".attn_q." in stored or ".attn_k." in stored):
            heads = config.num_attention_heads if ".attn_q." in stored else config.num_key_value_heads
            values = _as_llama_cpp_has_it(tensor, heads)
        _add_tensor(writer, stored, values.float().numpy(), quantize)
    for name, values in (more or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _sizes(config: Any) -> dict[str, Any]:
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": (
            head := getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        ),
        "attention.value_length": head,
        "rope.dimension_count": head,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "vocab_size": config.vocab_size,
    }


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _add_vocabulary(
    writer: GGUFWriter, backend: tokenizers.Tokenizer, words: str, template: str | None
) -> None:
    held = json.loads(backend.to_str())
    vocabulary = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words)
    writer.add_token_list([token for token, _ in vocabulary])
    special = {token.content for token in backend.get_added_tokens_decoder().values()}
    writer.add_token_types([CONTROL if token in special else NORMAL for token, _ in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in held["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    if template is not None:
        writer.add_chat_template(template)


def _architecture(kind: str) -> Any:
    return next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)


def _as_llama_cpp_has_it(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rotation in llama.cpp turns neighbors, and in transformers halves: rows of a head are interleaved."""
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape).contiguous()


def _add_tensor(writer: GGUFWriter, name: str, values: np.ndarray, kind: GGMLQuantizationType) -> None:
    if values.ndim == 1 or kind is GGMLQuantizationType.F32:
        writer.add_tensor(name, values.astype(np.float32))
    else:
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
