"""Feed-forward layers in tiles: the same gradients, of one tile's wide states at a time."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from longrm.errors import ModelError
from longrm.modeling import device_memory
from longrm.modeling.device_memory import checkpoint_activations, tile_feed_forward
from longrm.modeling.shared_prefix import pack, response_logprobs, scores

from .conftest import CONFIGS, make_pair
from .test_device_memory import TREE, differently_weighted, far, gradients

# PEFT 0.21 asks a model for a name that transformers 5.23 has replaced; goes with the next PEFT.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

LENGTH = 10  # of 56 tokens: the last tile is a short one
TOLERANCE = 1e-6


def after_a_step(model: Any, kind: str = "scores") -> dict[str, torch.Tensor]:
    read = scores if kind == "scores" else lambda model, packed: torch.cat(response_logprobs(model, packed))
    differently_weighted(read(model, pack([TREE]))).backward()
    return gradients(model)


def tiled(model: Any) -> Any:
    twin = copy.deepcopy(model)
    tile_feed_forward(twin, LENGTH)
    return twin


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["scores", "logprobs"])
@pytest.mark.parametrize("family", CONFIGS)
def test_tiles_change_no_gradient(family: str, kind: str, checkpointing: bool):
    model = make_pair(family, kind)[1].train()
    twin = tiled(model)
    if checkpointing:
        checkpoint_activations(twin, offload=False)
    assert far(after_a_step(model, kind), after_a_step(twin, kind)) < TOLERANCE


def test_the_comparison_sees_tiles_that_lose_half_of_their_gradient(monkeypatch: pytest.MonkeyPatch):
    model = make_pair("llama", "scores")[1].train()
    twin = tiled(model)
    half = lambda compute, tile, **_: compute(tile.detach().lerp(tile, 0.5))  # noqa: E731 (a line's worth)
    monkeypatch.setattr(device_memory, "checkpoint", half)
    assert far(after_a_step(model), after_a_step(twin)) > 100 * TOLERANCE


def test_only_a_tile_is_wide_at_any_time_and_scores_stay_as_they_are():
    model = make_pair("llama", "scores")[1]
    twin = tiled(model).train()
    checkpoint_activations(twin, offload=False)
    seen = []
    for layer in twin.base_model.layers:
        layer.mlp.down_proj.register_forward_pre_hook(lambda _, states: seen.append(states[0].shape[1]))
    after_a_step(twin)
    assert sorted(set(seen)) == [6, 10]
    # Forward, the layer again but for its last tile, and every tile again.
    assert len(seen) == 2 * (6 + 6 + 6) - 2
    with torch.inference_mode():
        assert (scores(model, pack([TREE])) - scores(twin, pack([TREE]))).abs().max() < 1e-5


def test_a_layer_without_a_plain_feed_forward_module_is_refused():
    model = make_pair("llama", "scores")[1]
    model.base_model.layers[1].mlp = nn.Identity()
    with pytest.raises(ModelError, match=r"memory\.tiled_mlp.*LlamaDecoderLayer"):
        tile_feed_forward(model, LENGTH)
