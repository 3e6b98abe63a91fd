import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    CohereConfig,
    EuroBertConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    HyperCLOVAXConfig,
    JambaConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MiniCPM3Config,
    ModernBertConfig,
    ModernBertDecoderConfig,
    T5Config,
)
from transformers.modeling_outputs import BaseModelOutputWithPast

from longrm.data.tokenizing import Tokenizer
from longrm.errors import ModelError, RunError
from longrm.modeling import shared_prefix
from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.loading import Scorer, load_language_model, load_scorer, new_scorer, rescale_rope
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape, TokenTree
from longrm.modeling.shared_prefix import next_logits, pack

from .conftest import ROUNDING, SIZES, distance, make_pair, write_model

SHAPE = ModelShape(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=48, init_std=0.3)


@pytest.fixture
def scorer(tokenizer: Tokenizer) -> Scorer:
    return new_scorer(SHAPE, tokenizer, seed=1)


@pytest.fixture
def folder(scorer: Scorer, tmp_path: Path) -> Path:
    save(scorer, tmp_path / "model")
    return tmp_path / "model"


def make_tree(seed: int = 0) -> TokenTree:
    draw = random.Random(seed)
    ids = lambda n: [draw.randrange(3, 97) for _ in range(n)]  # noqa: E731
    return TokenTree(ids(37), [[*ids(n), 2] for n in (5, 11, 3)])  # responses end in <eos>


def scores(scorer: Scorer) -> torch.Tensor:
    with torch.no_grad():
        return shared_prefix.scores(scorer.model, pack([make_tree()]))


def test_saved_folder_gives_the_same_scores_here_and_in_a_batched_plain_forward(scorer: Scorer, folder: Path):
    truth = scores(scorer)
    assert distance(scores(load_scorer(folder)), truth) < ROUNDING
    plain = AutoModelForSequenceClassification.from_pretrained(folder)
    tree = make_tree()
    sequences = [torch.tensor([*tree.tokens, *branch]) for branch in tree.branches]
    pad = plain.config.pad_token_id
    batch = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=pad)
    with torch.no_grad():
        logits = plain(input_ids=batch, attention_mask=(batch != pad).long()).logits
    torch.testing.assert_close(logits[:, 0], truth, rtol=1e-5, atol=1e-5)
    assert plain.config._attn_implementation != SHARED_PREFIX


def test_a_new_model_is_never_padded_with_the_end_of_a_response(tokenizer: Tokenizer, tmp_path: Path):
    # Transformers would read the score one token early; one that was trained so is left as it is.
    confused = Tokenizer.from_backend(tokenizer.backend, bos="<bos>", eos="<eos>", pad="<eos>")
    scorer = new_scorer(SHAPE, confused, seed=1)
    assert scorer.model.config.pad_token_id is None
    save(scorer, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["pad_token_id"] = 2
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    assert load_scorer(tmp_path / "model").model.config.pad_token_id == 2


def test_rescaled_rope_equals_a_model_made_with_that_theta(scorer: Scorer, tmp_path: Path):
    before = scores(scorer)
    rescale_rope(scorer.model, 1e6)
    save(scorer, tmp_path / "model")
    reloaded = load_scorer(tmp_path / "model")
    assert reloaded.model.config.rope_parameters["rope_theta"] == 1e6
    assert distance(scores(reloaded), scores(scorer)) < ROUNDING
    assert distance(scores(scorer), before) > 100 * ROUNDING
    with pytest.raises(ValueError, match="theta"):
        rescale_rope(scorer.model, 0.5)


def test_rescaled_rope_leaves_layers_with_a_window_as_they_are():
    _, ours = make_pair("gemma3", "scores")
    before = ours.base_model.rotary_emb.sliding_attention_inv_freq.clone()
    rescale_rope(ours, 1e7)
    rotary = ours.base_model.rotary_emb
    torch.testing.assert_close(rotary.full_attention_inv_freq, 1e7 ** -(torch.arange(0, 16, 2) / 16))
    assert torch.equal(rotary.sliding_attention_inv_freq, before)
    assert ours.config.rope_parameters["sliding_attention"]["rope_theta"] == 1e4
    assert ours.config.rope_parameters["full_attention"]["rope_theta"] == 1e7


def test_bf16_body_keeps_the_fp32_head_as_stored(scorer: Scorer, folder: Path):
    loaded = load_scorer(folder, dtype=torch.bfloat16).model
    assert loaded.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    assert torch.equal(loaded.score.weight, scorer.model.score.weight)
    assert not torch.equal(loaded.score.weight.bfloat16().float(), loaded.score.weight)


@pytest.fixture
def writing(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    return write_model(LlamaConfig(**SIZES), tokenizer, tmp_path / "model")


def test_a_language_model_keeps_its_weights_and_dtype(writing: Path):
    stock = AutoModelForCausalLM.from_pretrained(writing)
    loaded = load_language_model(writing).model
    assert all(torch.equal(weight, loaded.state_dict()[name]) for name, weight in stock.state_dict().items())
    assert not loaded.training
    halved = load_language_model(writing, dtype=torch.bfloat16).model
    assert {weight.dtype for weight in halved.parameters()} == {torch.bfloat16}
    halved.save_pretrained(writing)
    assert load_language_model(writing).model.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (T5Config(vocab_size=97), "encoder-decoder"),
        (BertConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=4), "not causal"),
        (MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2), "state-space"),
    ],
)
def test_a_model_that_cannot_generate_is_refused_by_capability(config: Any, line: str, writing: Path):
    config.save_pretrained(writing)  # weights are never reached
    with pytest.raises(ModelError, match=line):
        load_language_model(writing)


def test_a_language_model_with_a_head_of_several_layers_is_not_packed(writing: Path):
    ModernBertDecoderConfig(**SMALL, cls_token_id=1, sep_token_id=2).save_pretrained(writing)
    with pytest.raises(ModelError, match="lm_head"):
        load_language_model(writing, packed=True)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "change", "supported"),
    [
        (CohereConfig, {"logit_scale": 0.25}, True),
        (Gemma2Config, {"final_logit_softcapping": 2.0}, True),
        (GraniteConfig, {"logits_scaling": 3.0}, True),
        (MiniCPM3Config, {"dim_model_base": 16}, True),  # scales the states instead
        (HyperCLOVAXConfig, {"logits_scaling": 1.0}, True),
        (HyperCLOVAXConfig, {"logits_scaling": 3.0}, False),  # it multiplies, and Granite divides
    ],
)
def test_a_model_whose_logits_are_scaled_in_another_way_is_not_packed(
    kind: Any, change: dict[str, float], supported: bool, writing: Path
):
    made = AutoModelForCausalLM.from_config(kind(**SMALL, head_dim=8, **change))
    made.save_pretrained(writing)
    if not supported:
        with pytest.raises(ModelError, match="logits"):
            load_language_model(writing, packed=True)
        return
    model = load_language_model(writing, packed=True).model
    states = torch.randn(5, model.config.hidden_size)
    raw = torch.nn.functional.linear(states, model.get_output_embeddings().weight)
    ours = next_logits(model, states)
    assert distance(ours, raw) > 1e-3 or set(change.values()) == {1.0}
    model.model.forward = lambda *_, **__: BaseModelOutputWithPast(last_hidden_state=states[None])
    assert distance(ours, model(input_ids=torch.zeros(1, 5, dtype=torch.long)).logits[0]) < 1e-5


SMALL = {k: v for k, v in SIZES.items() if k not in ("initializer_range", "max_position_embeddings")}


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (Llama4TextConfig(**SMALL, intermediate_size_mlp=48, num_local_experts=2), "chunked_attention"),
        (ModernBertConfig(**SMALL), "not causal"),
        (JambaConfig(**SMALL, attn_layer_period=2, attn_layer_offset=1), "does not continue a state"),
        (GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=4), "rotary"),
        (
            LlamaConfig(**SIZES, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            "rope_type = dynamic",
        ),
        (LlamaConfig(**SIZES, is_causal=False), "causal"),
        (EuroBertConfig(**SMALL), "not causal"),
        (Gemma3Config(text_config={"vocab_size": 97}), "multimodal"),
        (Gemma3TextConfig(**SMALL, use_bidirectional_attention=True), "bidirectional"),
        (
            Gemma3TextConfig(
                **SMALL,
                rope_parameters={
                    "full_attention": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                },
            ),
            "rope_type = dynamic",
        ),
    ],
)
def test_unsupported_architectures_are_refused_by_capability(config: Any, line: str, folder: Path):
    config.save_pretrained(folder)  # weights are never reached
    with pytest.raises(ModelError, match=line):
        load_scorer(folder)


def test_saving_replaces_a_model_and_nothing_else(scorer: Scorer, folder: Path, tmp_path: Path):
    save(new_scorer(SHAPE, scorer.tokenizer, seed=9), folder)
    assert distance(scores(load_scorer(folder)), scores(scorer)) > 100 * ROUNDING
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(RunError):
        save(scorer, file)
    with pytest.raises(RunError):
        save(scorer, file / "model")
    assert file.read_text() == "precious"
