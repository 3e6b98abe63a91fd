"""Models from GGUF files: the weights that were written, whatever transformers' reader would leave out refused."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from longrm.errors import ModelError
from longrm.modeling.gguf_conversion import convert

from .gguf_writing import train_backend, write_gguf

BACKEND = train_backend()
SIZES = {
    "vocab_size": BACKEND.get_vocab_size(),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.25,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
CONFIGS = {
    "llama": lambda **more: LlamaConfig(**SIZES | more),
    "qwen2": lambda **more: Qwen2Config(**SIZES | more),
    "qwen3": lambda **more: Qwen3Config(**SIZES | more, head_dim=32),
}
IDS = torch.tensor([[1, *range(5, BACKEND.get_vocab_size(), 3)]])


def new_model(family: str = "llama", **more):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[family](**more)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:  # norms are ones and biases zeros: swapped ones would not show
                weight.add_(0.3 * torch.randn(weight.shape))
    return model


@torch.no_grad()
def logits(model):
    return model(input_ids=IDS).logits


def read_back(file, folder):
    """What transformers reads out of the folder, without any code of ours."""
    convert(file, folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def check_equal(found, model):
    """Bit for bit in the weights; what they compute depends in its last digits on where they lie in memory."""
    weights, truth = found.state_dict(), model.state_dict()
    assert weights.keys() == truth.keys()
    assert all(torch.equal(weights[name], truth[name]) for name in truth)
    torch.testing.assert_close(logits(found), logits(model), rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("tied", [True, False])
def test_unquantized_weights_compute_exactly_the_same_logits(family, tied, tmp_path):
    model = new_model(family, tie_word_embeddings=tied)
    found = read_back(write_gguf(tmp_path / "m.gguf", model), tmp_path / "out")
    check_equal(found, model)
    assert found.config.tie_word_embeddings == tied


def test_weights_in_another_order_would_be_seen(tmp_path):
    model = new_model("llama")
    found = read_back(write_gguf(tmp_path / "m.gguf", model, permute=False), tmp_path / "out")
    assert (logits(found) - logits(model)).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1", "Q5_0"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_quantized_weights_are_the_numbers_that_they_stand_for(kind, family, tmp_path):
    """Against the package that quantizes: each matrix there and back, in an ordinary model."""
    model, stored = new_model(family), GGMLQuantizationType[kind]
    file = write_gguf(tmp_path / "m.gguf", model, quantize=stored)
    exact = logits(model)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.copy_(torch.from_numpy(gguf.dequantize(gguf.quantize(weight.numpy(), stored), stored)))
    found = read_back(file, tmp_path / "out")
    check_equal(found, model)
    assert (logits(found) - exact).abs().max() > 1e-3


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def divisors(rope, head_dim=16):
    """The tensor that llama.cpp's converter writes for these parameters."""
    config = LlamaConfig(head_dim=head_dim, max_position_embeddings=131_072, rope_parameters=rope)
    stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, head_dim, 2).float() / head_dim)
    return {"rope_freqs.weight": (plain / stretched).numpy()}


def test_positions_of_llama_3_are_stretched_as_in_the_original(tmp_path):
    model = new_model("llama", rope_parameters=LLAMA3, max_position_embeddings=131_072)
    file = write_gguf(tmp_path / "m.gguf", model, more=divisors(LLAMA3))
    found = read_back(file, tmp_path / "out")
    factor = found.config.rope_parameters["factor"]
    assert {**found.config.rope_parameters, "factor": round(factor, 4)} == LLAMA3
    torch.testing.assert_close(logits(found), logits(model), rtol=0, atol=1e-4)
    plain = read_back(write_gguf(tmp_path / "plain.gguf", model), tmp_path / "plain")
    assert (logits(plain) - logits(model)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("rope", "keys"),
    [
        ({"rope_type": "linear", "factor": 4.0}, {"type": "linear", "factor": 4.0}),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
            {"type": "yarn", "factor": 4.0, "original_context_length": 1024},
        ),
        ({"rope_type": "default"}, {"type": "none"}),
    ],
)
def test_scaled_positions_are_carried_over(rope, keys, tmp_path):
    model = new_model("qwen2", rope_parameters={"rope_theta": 1e6, **rope})
    file = write_gguf(tmp_path / "m.gguf", model, keys={f"rope.scaling.{key}": keys[key] for key in keys})
    check_equal(read_back(file, tmp_path / "out"), model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"keys": {"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0}},
            "rope.scaling.type = longrope",
        ),
        (
            {"keys": {"rope.scaling.type": "yarn", "rope.scaling.yarn_beta_fast": 9.0}},
            "rope.scaling.yarn_beta_fast",
        ),
        ({"keys": {"rope.scale_linear": 4.0}}, "rope.scale_linear"),
        (
            {"more": {"rope_freqs.weight": np.linspace(1, 9, 8, dtype=np.float32)}},
            "another way than Llama 3.1",
        ),
        ({"keys": {"attention.sliding_window": 512}}, "attention.sliding_window = 512"),
        ({"keys": {"final_logit_softcapping": 30.0}}, "final_logit_softcapping = 30.0"),
        ({"keys": {"attention.head_count_kv": [2, 2]}}, "num_key_value_heads"),
        ({"keys": {"expert_count": 8}}, "expert_count = 8"),
        ({"more": {"blk.0.attn_q.bias": np.ones(64, np.float32)}}, "left out would change"),
        ({"more": {"cls.output.weight": np.ones((1, 64), np.float32)}}, "a reward model or classifier"),
        ({"left_out": "blk.1.ffn_up.weight"}, "1 weights are missing"),
        ({"keys": {"general.type": "mmproj"}}, "reads images"),
        ({"keys": {"general.type": "adapter"}}, "an adapter"),
        ({"keys": {"general.type": "imatrix"}}, "it holds 'imatrix'"),
        ({"keys": {"general.type": ["model"]}}, "cannot be read: unhashable"),
        ({"keys": {"general.architecture": "clip"}}, "reads images"),
        ({"keys": {"rope.freq_base": "often"}}, "often"),
        ({"keys": {"rope.dimension_count": 8}}, "8 weights are missing or have other sizes"),
        ({"keys": {"split.count": 3}}, "one of 3 parts"),
        ({"words": "deepseek-v9"}, "tokenizer.ggml.pre = deepseek-v9"),
    ],
)
def test_what_would_be_computed_in_another_way_is_refused(options, message, tmp_path):
    words = options.pop("words", "smollm")
    file = write_gguf(tmp_path / "m.gguf", new_model("llama"), BACKEND, words=words, **options)
    with pytest.raises(ModelError, match=message) as caught:
        convert(file, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert [*tmp_path.iterdir()] == [file]


def test_an_architecture_that_transformers_does_not_read_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "rwkv9")
    writer.add_tensor("x", np.ones((2, 2), np.float32))
    writer.add_token_list(["a"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="rwkv9"):
        convert(tmp_path / "m.gguf", tmp_path / "out")
