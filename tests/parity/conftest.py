"""The same rows, weights and token ids for us and for the reference; what both computed, side by side."""

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

from longrm.data.joining import encode
from longrm.data.tokenizing import Tokenizer
from longrm.data.training_rows import Example
from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.shapes import build_trees
from longrm.modeling.shared_prefix import pack
from longrm.rng import Rng
from longrm.training.batches import MicroBatch
from longrm.training.objectives import Objective
from longrm.types import Message

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # a notice that its interface may change, which we know

VOCABULARY = 97
TOLERANCE = 2e-5  # fp32, relative to the largest value of a tensor; up to 1.2e-5 on a CPU without AVX-512
SHAPES = [(101, 19, 7), (101, 5, 12), (67, 11, 30)]  # words of prompt, chosen, rejected: nothing aligned


@pytest.fixture(scope="session")
def rows() -> list[dict[str, str]]:
    """Preferences as a user writes them: two questions about one document, and another prompt; texts are of words."""
    rng = Rng("parity")

    def words(count: int) -> str:
        return " ".join(f"w{rng.below(VOCABULARY - 4)}" for _ in range(count))

    document = words(80)
    prompts = [f"{document} {words(SHAPES[0][0] - 80)}", f"{document} {words(SHAPES[1][0] - 80)}"]
    prompts.append(words(SHAPES[2][0]))
    return [
        {"prompt": prompt, "chosen": f" {words(chosen)}", "rejected": f" {words(rejected)}"}
        for prompt, (_, chosen, rejected) in zip(prompts, SHAPES, strict=True)
    ]


@pytest.fixture(scope="session")
def backend() -> tokenizers.Tokenizer:
    special = ["<pad>", "<bos>", "<eos>", "<unk>"]
    words = {word: at for at, word in enumerate([*special, *(f"w{i}" for i in range(VOCABULARY - 4))])}
    backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


@pytest.fixture
def stock_tokenizer(backend) -> PreTrainedTokenizerFast:
    """For the reference."""
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )


def say(role: str, text: str) -> tuple[Message, ...]:
    return ({"role": role, "content": text},)


@pytest.fixture(scope="session")
def tokenizer(backend) -> Tokenizer:
    return Tokenizer.from_backend(backend, eos="<eos>", pad="<pad>")


@pytest.fixture(scope="session")
def examples(rows, tokenizer) -> list[Example]:
    """The rows as we tokenize them."""
    examples = []
    for number, row in enumerate(rows):
        responses = [say("assistant", row[name]) for name in ("chosen", "rejected")]
        tokens = encode(tokenizer, say("user", row["prompt"]), responses)
        examples.append(Example(str(number), tokens, (1, 2), str(number)))
    return examples


def tiny_config(kv_heads: int) -> LlamaConfig:
    """A Llama whose weights are large enough that a wrong mask shows."""
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        num_labels=1,
    )


def twins(kind: str, *, kv_heads: int = 4, seed: int = 0) -> tuple[Any, Any]:
    """A model for the reference, under stock attention, and ours with equal weights."""
    config = tiny_config(kv_heads)
    auto: Any = {"scores": AutoModelForSequenceClassification, "logprobs": AutoModelForCausalLM}[kind]
    torch.manual_seed(seed)
    stock = auto.from_config(copy.deepcopy(config), attn_implementation="sdpa")
    ours = auto.from_config(copy.deepcopy(config), attn_implementation=SHARED_PREFIX)
    ours.load_state_dict(stock.state_dict())
    return stock, ours


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    """The loss, and the gradient of every parameter."""
    model.zero_grad()
    loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return {"loss": loss.detach(), **found}


def engine(
    objective: Objective,
    model: Any,
    examples: list[Example],
    change: Callable[[MicroBatch], MicroBatch] = lambda micro: micro,
) -> dict[str, Tensor]:
    """Loss and gradients of the examples in one packed sequence, over shared prefixes."""
    micro = MicroBatch(pack(build_trees([example.tokens for example in examples])), examples, 1.0)
    return gradients(model, objective.loss(model, change(micro))[0])


def deviation(found: dict[str, Tensor], truth: dict[str, Tensor]) -> float:
    """The largest difference over the loss and all gradients, each relative to its largest element."""
    assert found.keys() == truth.keys()
    return max(float((found[k] - truth[k]).abs().max() / truth[k].abs().max()) for k in truth)


def assert_equal_but_for_faults(
    found: dict[str, Tensor], truth: dict[str, Tensor], faults: dict[str, dict[str, Tensor]]
) -> None:
    """The faults are negative controls: each must be seen."""
    assert deviation(found, truth) < TOLERANCE
    for name, other in faults.items():
        assert deviation(other, truth) > 100 * TOLERANCE, name
