import random
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM, LlamaConfig

from longrm.modeling import device_memory, shared_prefix
from longrm.modeling.device_memory import checkpoint_activations, is_out_of_memory, set_precision
from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import hidden_states, pack, response_logprobs, scores, token_logprobs

from .conftest import CONFIGS, SIZES, make_pair

DRAW = random.Random(0)
TREE = TokenTree(
    [DRAW.randrange(3, 97) for _ in range(37)],
    [[DRAW.randrange(3, 97) for _ in range(n)] for n in (5, 11, 3)],
)


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def far(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference between two gradients, as a share of the largest gradient of that weight."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max() / one[name].abs().max()) for name in one)


def differently_weighted(values: torch.Tensor) -> torch.Tensor:
    return (values * torch.linspace(0.5, 2.0, len(values))).sum()


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("kind", ["scores", "logprobs"])
def test_checkpointing_changes_no_gradient(family: str, kind: str):
    read = scores if kind == "scores" else lambda model, packed: torch.cat(response_logprobs(model, packed))
    results = []
    for checkpointing in (False, True):
        model = make_pair(family, kind)[1].train()
        if checkpointing:
            checkpoint_activations(model, offload=False)
        differently_weighted(read(model, pack([TREE]))).backward()
        results.append(gradients(model))
    assert far(*results) < 1e-6


def test_inputs_in_pieces_of_host_memory_change_no_gradient(monkeypatch: pytest.MonkeyPatch):
    pieces: list[torch.Tensor] = []

    def piece() -> torch.Tensor:
        pieces.append(torch.empty(1000, dtype=torch.uint8))
        return pieces[-1]

    monkeypatch.setattr(device_memory, "PINNED_PIECE", 1000)
    monkeypatch.setattr(device_memory, "_pinned_piece", piece)
    results = []
    for offload in (False, True):
        model = make_pair("llama", "scores")[1].train()
        with monkeypatch.context() as during:  # as for a model on a GPU
            during.setattr(type(model), "device", torch.device("cuda"))
            checkpoint_activations(model, offload=offload)
        differently_weighted(scores(model, pack([TREE]))).backward()
        results.append(gradients(model))
        assert bool(pieces) == offload
    assert far(*results) == 0
    # Inputs of every layer, each in whole pieces; all pieces have one size, whatever the length.
    config = model.config
    each = -(-TREE.size * config.hidden_size * 4 // 1000)
    assert len(pieces) == config.num_hidden_layers * each


def kept_bytes(model: Any, packed: Any) -> int:
    """Of what a forward keeps for the way back, weights and what is counted already left out."""
    sizes: dict[int, int] = {weight.untyped_storage().data_ptr(): 0 for weight in model.parameters()}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        sizes.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        return tensor

    with saved_tensors_hooks(count, lambda tensor: tensor):
        kept = hidden_states(model, packed)
    assert kept.requires_grad
    return sum(sizes.values())


def test_checkpointing_keeps_little_more_than_the_input_of_every_layer():
    config = LlamaConfig(**(SIZES | {"num_hidden_layers": 6}))
    packed = pack([TokenTree(list(range(3, 97)) * 4, [[5] * 20])])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="longrm_shared_prefix").train()
    plain = kept_bytes(model, packed)
    checkpoint_activations(model, offload=False)
    inputs = 6 * packed.layout.tokens * config.hidden_size * 4
    assert inputs <= kept_bytes(model, packed) < 2 * inputs < plain / 4


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("family", CONFIGS)
def test_bf16_computes_the_body_and_spares_trained_weights_and_heads(family: str, frozen: bool):
    exact, model = (make_pair(family, "scores")[1] for _ in range(2))
    if frozen:
        for one in (exact, model):
            one.model.requires_grad_(False)
            one.model.layers[0].requires_grad_(True)
    set_precision(model, "bfloat16")
    for name, weight in model.named_parameters():
        assert weight.dtype == (torch.float32 if weight.requires_grad else torch.bfloat16), name
    truth, rounded = (scores(one, pack([TREE])) for one in (exact, model))
    assert rounded.dtype == torch.float32
    # Rounded, so that bf16 was used, and to about its three digits of what a score sums up.
    assert 1e-5 < (truth - rounded).abs().max() < 0.05 * exact.score.weight.norm() * 32**0.5
    differently_weighted(rounded).backward()
    assert {gradient.dtype for gradient in gradients(model).values()} == {torch.float32}


def test_bf16_keeps_log_probabilities_in_fp32():
    model = make_pair("qwen3", "logprobs")[1]
    set_precision(model, "bfloat16")
    packed = pack([TREE])
    with torch.no_grad():
        hidden = hidden_states(model, packed)
        places = [index for leaf in packed.layout.leaves() for index in range(leaf.begin, leaf.end)]
        found = token_logprobs(model, hidden, packed, places)
        logits = hidden.double() @ model.lm_head.weight.double().T
    logits = logits[packed.layout.predictors(places)]
    tokens = packed.input_ids[0, places]
    exact = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    assert (found - exact).abs().max() < 1e-5
    rounded = logits.bfloat16().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    assert (rounded - exact).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["logprobs", "scores"])
def test_log_probabilities_in_parts_are_those_at_once(kind: str, monkeypatch: pytest.MonkeyPatch):
    packed = pack([TREE])
    results = []
    for limit in (shared_prefix.LOGITS_AT_ONCE, 7 * SIZES["vocab_size"] + 5):
        monkeypatch.setattr(shared_prefix, "LOGITS_AT_ONCE", limit)
        model = make_pair("qwen3", kind)[1]
        values = torch.cat(response_logprobs(model, packed))
        assert len(values) % 7  # the last part is a smaller one
        differently_weighted(values).backward()
        results.append((values.detach(), gradients(model)))
    (plain, plain_gradients), (parts, part_gradients) = results
    assert (plain - parts).abs().max() < 1e-6
    assert far(plain_gradients, part_gradients) < 1e-5
    assert far(plain_gradients, {n: g.roll(1, 0) for n, g in part_gradients.items()}) > 1e-3


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), False),
    ],
)
def test_out_of_memory_is_recognized(error: Exception, expected: bool):
    assert is_out_of_memory(error) is expected


def test_out_of_memory_on_this_machine_is_recognized():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert is_out_of_memory(caught.value)
