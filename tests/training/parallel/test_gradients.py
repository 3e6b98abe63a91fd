"""The gradient of a step, its loss and figures are those of one process, however many share it, by every objective."""

import pytest
from safetensors.torch import load_file

from longrm.errors import ConfigError
from longrm.modeling.sequence_parallel import share_sequences
from longrm.training.distributed import DistributedContext

TOLERANCE = 1e-5
# Processes, how many of them share a sequence, and key heads of the model, which has 4 query heads.
LAYOUTS = {
    "sequence": (2, 2, 2),
    "data": (2, 1, 2),
    "data x sequence": (4, 2, 2),
    "fewer key heads than processes": (4, 4, 2),
    "one key head": (4, 4, 1),
}
SOME = ["sequence"]  # the others need more processors than a plain run has


def layouts():
    return [pytest.param(name, marks=() if name in SOME else pytest.mark.full) for name in LAYOUTS]


def deviations(spawn, gradients, tmp_path, layout, fault=""):
    """By objective and budget, how far a spawned group is from one process."""
    count, sequence, kv_heads = LAYOUTS[layout]
    out = tmp_path / "found.safetensors"
    spawn(count, gradients.__file__, sequence, kv_heads, fault, out)
    stored = load_file(out)
    found = {}
    for name, objective, model, examples in gradients.cases(kv_heads):
        whole = gradients.parts_of(objective, examples, gradients.BUDGETS[0])
        truth = gradients.gradients(objective, model, whole, DistributedContext())
        for budget in gradients.BUDGETS:
            own = {key: stored[f"{name} {budget} {key}"] for key in truth}
            found[name, budget] = gradients.step().deviation(own, truth)
    return found


@pytest.mark.distributed
@pytest.mark.parametrize("layout", layouts())
def test_a_step_is_the_same_by_several_processes(spawn, gradients, tmp_path, layout):
    found = deviations(spawn, gradients, tmp_path, layout)
    assert len(found) == 22
    assert max(found.values()) < TOLERANCE, found


@pytest.mark.distributed
@pytest.mark.full
@pytest.mark.parametrize("fault", ["no exchange", "positions"])
def test_a_fault_of_shared_sequences_is_seen(spawn, gradients, tmp_path, fault):
    assert min(deviations(spawn, gradients, tmp_path, "sequence", fault).values()) > 100 * TOLERANCE


@pytest.mark.distributed
@pytest.mark.full
def test_a_mean_of_the_processes_own_means_is_seen(spawn, gradients, tmp_path):
    found = deviations(spawn, gradients, tmp_path, "data", "own mean")
    several = gradients.BUDGETS[1]
    assert min(value for (_, budget), value in found.items() if budget == several) > 100 * TOLERANCE


class Group:
    def __init__(self, size):
        self.size = lambda: size


def test_heads_that_cannot_be_shared_out_are_refused(gradients):
    (_, _, model, _), *_ = gradients.cases(2)
    with pytest.raises(ConfigError, match=r"parallel\.sequence_parallel_size = 3"):
        share_sequences(model, Group(3))
