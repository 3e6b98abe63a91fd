import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
)

from longrm.data.tokenizing import Tokenizer
from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.device_memory import set_precision
from longrm.modeling.loading import (
    LanguageModel,
    load_language_model,
    load_scorer,
    new_language_model,
    new_scorer,
)
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape, TokenTree
from longrm.modeling.shared_prefix import evaluation_mode, pack, response_logprobs, scores

from .conftest import ROUNDING, SIZES, distance, plain_logprobs, write_model

SHAPE = ModelShape(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=48, init_std=0.3)
TREE = TokenTree(list(range(3, 40)), [[5, 9, 8, 2], [7, 2]])


def logprobs(language_model: LanguageModel) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat(response_logprobs(language_model.model, pack([TREE])))


@pytest.fixture
def folder(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    save(new_language_model(SHAPE, tokenizer, seed=1), tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_language_model_is_loaded_by_transformers_with_plain_attention(
    tokenizer: Tokenizer, folder: Path
):
    truth = logprobs(new_language_model(SHAPE, tokenizer, seed=1))
    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert plain.config._attn_implementation != SHARED_PREFIX
    torch.testing.assert_close(plain_logprobs(plain, TREE), truth, rtol=1e-5, atol=1e-5)
    assert distance(logprobs(new_language_model(SHAPE, tokenizer, seed=2)), truth) > 100 * ROUNDING
    assert distance(logprobs(load_language_model(folder, packed=True)), truth) < ROUNDING
    assert AutoTokenizer.from_pretrained(folder).encode(
        "w1 w7", add_special_tokens=False
    ) == tokenizer.encode("w1 w7")


@pytest.mark.parametrize("tied", [False, True])
def test_bf16_training_is_saved_in_bf16_and_the_trainee_is_left_as_it_is(
    tied: bool, tokenizer: Tokenizer, tmp_path: Path
):
    write_model(LlamaConfig(**SIZES, tie_word_embeddings=tied), tokenizer, tmp_path / "base")
    trainee = load_language_model(tmp_path / "base", dtype=torch.float32, packed=True)
    set_precision(trainee.model, "bfloat16")
    before = logprobs(trainee)
    save(trainee, tmp_path / "model")
    assert torch.equal(logprobs(trainee), before)
    assert {weight.dtype for weight in trainee.model.parameters()} == {torch.float32}
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert ("lm_head.weight" in stored) is not tied
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert loaded.dtype == torch.bfloat16
    for name, weight in trainee.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight.bfloat16()), name


def logits(folder: Path) -> torch.Tensor:
    """The scores that transformers alone gives, one sequence a response."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        rows = [model(input_ids=torch.tensor([[*TREE.tokens, *branch]])).logits for branch in TREE.branches]
    return torch.cat(rows)[:, 0].float()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_scorer_is_saved_as_a_regression_and_scores_as_before(
    precision: Any, tokenizer: Tokenizer, tmp_path: Path
):
    scorer = new_scorer(SHAPE, tokenizer, seed=1)
    set_precision(scorer.model, precision)
    save(scorer, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["problem_type"] == "regression"
    found = logits(tmp_path / "model")
    with torch.no_grad():
        truth = scores(scorer.model, pack([TREE]))
    assert distance(found, truth) < (ROUNDING if precision == "float32" else 0.1)
    assert distance(torch.sigmoid(found), truth) > 0.1, "a server's sigmoid would show"


def test_the_scalar_head_of_bf16_training_is_saved_in_fp32(tokenizer: Tokenizer, tmp_path: Path):
    scorer = new_scorer(SHAPE, tokenizer, seed=1)
    set_precision(scorer.model, "bfloat16")
    save(scorer, tmp_path / "model")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert {name for name, tensor in stored.items() if tensor.dtype == torch.float32} == {"score.weight"}
    assert torch.equal(stored["score.weight"], scorer.model.score.weight)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == "bfloat16"
    halved = load_scorer(tmp_path / "model")
    assert halved.model.model.embed_tokens.weight.dtype == torch.bfloat16
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model", dtype=torch.float32)
    ids = torch.tensor([[*TREE.tokens, *TREE.branches[0]]])
    with torch.no_grad():
        assert abs(plain(input_ids=ids).logits[0, 0] - scores(halved.model, pack([TREE]))[0]) < 0.05


def endings(folder: Path) -> tuple[Any, Any]:
    config = GenerationConfig.from_pretrained(folder)
    return config.eos_token_id, config.pad_token_id


def test_servers_stop_at_every_end_token_and_pad_with_another(
    tokenizer: Tokenizer, folder: Path, tmp_path: Path
):
    assert endings(folder) == (2, 0)
    assert not GenerationConfig.from_pretrained(folder)._from_model_config
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.generation_config = GenerationConfig(eos_token_id=[7, 9], pad_token_id=2, do_sample=True, top_p=0.9)
    model.config.pad_token_id = 2  # as is common for Llama: padding is the end
    model.save_pretrained(tmp_path / "chat")
    tokenizer.save(tmp_path / "chat")
    trainee = load_language_model(tmp_path / "chat", packed=True)
    assert trainee.model.model.embed_tokens.padding_idx == 0  # the end of a message learns
    save(trainee, tmp_path / "out")
    assert endings(tmp_path / "out") == ([7, 9, 2], 0)
    assert GenerationConfig.from_pretrained(tmp_path / "out").top_p == 0.9
    assert json.loads((tmp_path / "out" / "config.json").read_text())["pad_token_id"] == 0


def test_a_model_in_training_is_evaluated_within_a_block(folder: Path):
    trainee = load_language_model(folder, packed=True)
    before = logprobs(trainee)
    trainee.model.train()
    frozen = trainee.model.model.layers[0].eval()  # as users keep the dropout of a frozen part off
    with evaluation_mode(trainee.model):
        assert not any(module.training for module in trainee.model.modules())
        torch.testing.assert_close(logprobs(trainee), before, rtol=1e-5, atol=1e-5)
    assert trainee.model.training
    assert not any(module.training for module in frozen.modules())
    assert torch.equal(logprobs(trainee), before)
