"""Windows, soft caps, sinks and scales over a shared prefix are those of transformers on separate sequences."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import transformers

from longrm.errors import ModelError
from longrm.modeling import attention, shared_prefix
from longrm.modeling.attention_varlen import AttentionSpec, varlen_attention
from longrm.modeling.shapes import TreeShape
from longrm.modeling.shared_prefix import pack
from tests.modeling.test_shared_prefix import (
    TOLERANCE,
    deviation,
    make_trees,
    separate,
    shared,
    values_and_gradients,
)

from .conftest import MIXED, SCORERS, SIZES, WINDOW, WINDOWED, make_pair
from .test_attention_kernels import WrittenOut

LENGTHS = (5, 1, 40, 2, 9, 26, 3)  # of responses: also such that no window reaches back to the prompt
# One to seven responses, to prompts shorter and longer than the window.
SHAPES = [
    TreeShape(prompt, LENGTHS[:count]) for count in range(1, 8) for prompt in (WINDOW - 11, WINDOW + 37)
]


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *((family, "logprobs") for family in WINDOWED),
        *((family, "scores") for family in WINDOWED if family in SCORERS),
    ],
)
def test_one_to_seven_responses_equal_separate_sequences(
    family: str, kind: str, monkeypatch: pytest.MonkeyPatch
):
    stock, ours = make_pair(family, kind)
    trees = make_trees(SHAPES)
    truth = values_and_gradients(stock, separate(stock, kind, trees))
    assert ("model.layers.0.self_attn.sinks" in truth) == (family == "gpt-oss")
    found = values_and_gradients(ours, shared(ours, kind, pack(trees)))
    assert deviation(found, truth) < TOLERANCE
    attend = partial(varlen_attention, WrittenOut())
    monkeypatch.setattr(attention, "kernel_for", lambda query, key, spec: attend)
    by_kernel = values_and_gradients(ours, shared(ours, kind, pack(trees)))
    assert deviation(by_kernel, truth) < TOLERANCE


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_window_hides_the_first_token_from_the_one_after_the_window(beyond: int):
    """Without a token beyond the window, the faster attention without windows is used."""
    stock, ours = make_pair("mistral, windows", "scores")
    trees = make_trees([TreeShape(WINDOW - 5, (5 + beyond, 1))])
    truth = values_and_gradients(stock, separate(stock, "scores", trees))
    assert deviation(values_and_gradients(ours, shared(ours, "scores", pack(trees))), truth) < TOLERANCE


CHANGES: dict[str, Callable[[AttentionSpec], dict[str, Any]]] = {
    "a window of one more": lambda spec: {"window": spec.window and spec.window + 1},
    "a window of one less": lambda spec: {"window": spec.window and spec.window - 1},
    "no window": lambda spec: {"window": None},
    "no soft cap": lambda spec: {"softcap": None},
    "no sinks": lambda spec: {"sinks": None},
    "the scale of the head size": lambda spec: {"scale": 16**-0.5},
}
WRONG = [
    *((family, name) for family in WINDOWED for name in list(CHANGES)[:3]),
    ("gemma2", "no soft cap"),
    ("gpt-oss", "no sinks"),
    *((family, "the scale of the head size") for family in ("gemma2", "gemma3")),
]


@pytest.mark.parametrize(("family", "change"), WRONG)
def test_faults_are_a_hundred_times_beyond_the_tolerance(
    family: str, change: str, monkeypatch: pytest.MonkeyPatch
):
    stock, ours = make_pair(family, "logprobs")
    trees = make_trees([TreeShape(WINDOW + 37, (5, 1, 9))])
    right = attention.packed_attention

    def wrong(q: Any, k: Any, v: Any, layout: Any, spec: AttentionSpec, ends: bool) -> Any:
        return right(q, k, v, layout, replace(spec, **CHANGES[change](spec)), ends)

    monkeypatch.setattr(attention, "packed_attention", wrong)
    with torch.no_grad():
        found = {"values": torch.cat(shared(ours, "logprobs", pack(trees)))}
        truth = {"values": torch.cat(separate(stock, "logprobs", trees))}
    assert deviation(found, truth) > 100 * TOLERANCE


@pytest.mark.parametrize(
    ("family", "name", "neutral"),
    [
        ("gemma2", "final_logit_softcapping", None),
        ("cohere2", "logit_scale", 1.0),
        ("granite", "logits_scaling", 1.0),
    ],
)
def test_logits_without_their_scale_or_soft_cap_are_far_off(family: str, name: str, neutral: Any):
    stock, ours = make_pair((WINDOWED | OTHERS)[family](), "logprobs")
    trees = make_trees([TreeShape(20, (5, 4))])
    setattr(ours.config, name, neutral)
    with torch.no_grad():
        found = {"values": torch.cat(shared(ours, "logprobs", pack(trees)))}
        truth = {"values": torch.cat(separate(stock, "logprobs", trees))}
    assert deviation(found, truth) > 100 * TOLERANCE


OTHERS = {
    "granite": lambda: transformers.GraniteConfig(**SIZES, logits_scaling=8.0, attention_multiplier=0.4),
    "granite_swa": lambda: transformers.GraniteSWAConfig(**SIZES, **MIXED, logits_scaling=8.0),
    "olmo3": lambda: transformers.Olmo3Config(**SIZES, **MIXED),
    "ministral": lambda: transformers.MinistralConfig(**SIZES, **MIXED, head_dim=16),
    "exaone4": lambda: transformers.Exaone4Config(**SIZES, **MIXED),
    "starcoder2": lambda: transformers.Starcoder2Config(**SIZES, sliding_window=WINDOW),
    "phi3": lambda: transformers.Phi3Config(**SIZES, sliding_window=WINDOW),
    "qwen3": lambda: transformers.Qwen3Config(
        **SIZES, head_dim=16, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "smollm3": lambda: transformers.SmolLM3Config(
        **SIZES, use_sliding_window=True, sliding_window=WINDOW, no_rope_layers=[1, 0]
    ),
    "gemma4": lambda: transformers.Gemma4TextConfig(
        **SIZES,
        **MIXED,
        head_dim=16,
        global_head_dim=16,
        num_global_key_value_heads=2,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=97,
        num_kv_shared_layers=0,
        final_logit_softcapping=5.0,
    ),
    "vaultgemma": lambda: transformers.VaultGemmaConfig(
        **SIZES, **MIXED, head_dim=16, attn_logit_softcapping=2.0, final_logit_softcapping=5.0
    ),
}
"""Further families with the same features."""


@pytest.mark.parametrize("family", OTHERS)
def test_further_families_equal_separate_sequences(family: str):
    stock, ours = make_pair(OTHERS[family](), "logprobs")
    trees = make_trees([TreeShape(WINDOW + 37, (5, 1, 40)), TreeShape(WINDOW - 11, (9, 26))])
    truth = values_and_gradients(stock, separate(stock, "logprobs", trees))
    found = values_and_gradients(ours, shared(ours, "logprobs", pack(trees)))
    # Granite's own sinks are rounded to fp32 in any dtype, and their gradient is small.
    assert deviation(found, truth) < 2 * TOLERANCE


def test_a_window_that_a_model_does_not_pass_on_is_refused():
    """Transformers' own attention gets it from a mask, which it makes for no other."""
    config = transformers.Qwen2MoeConfig(
        **SIZES,
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=1,
        num_experts=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )
    _, ours = make_pair(config, "logprobs")
    with pytest.raises(ModelError, match="24 tokens"):
        shared_prefix.hidden_states(ours, pack(make_trees([TreeShape(5, (2,))])))
