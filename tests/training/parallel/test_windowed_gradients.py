"""Processes that share sequences compute layers with windows, soft caps and sinks as one process does."""

import pytest
from safetensors.torch import load_file

from longrm.training.distributed import DistributedContext

from . import windowed_gradients as script

TOLERANCE = 1e-5


def deviations(spawn, tmp_path, fault=""):
    out = tmp_path / "found.safetensors"
    spawn(2, script.__file__, fault, out)
    found, truth = load_file(out), script.gradients(DistributedContext())
    assert found.keys() == truth.keys()
    assert "gpt-oss model.layers.0.self_attn.sinks" in truth
    return {key: float((found[key] - one).abs().max() / one.abs().max()) for key, one in truth.items()}


@pytest.mark.distributed
def test_shared_sequences_have_the_gradients_of_one_process(spawn, tmp_path):
    found = deviations(spawn, tmp_path)
    assert max(found.values()) < TOLERANCE, found


@pytest.mark.distributed
@pytest.mark.full
def test_sinks_of_other_heads_are_seen(spawn, tmp_path):
    found = deviations(spawn, tmp_path, "sinks of other heads")
    assert found["gpt-oss scores"] > 100 * TOLERANCE
    assert found["gemma2 scores"] < TOLERANCE
