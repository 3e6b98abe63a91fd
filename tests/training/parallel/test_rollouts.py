"""Training by reinforcement on several processes: the rollouts of one process, and its weights up to rounding."""

import pytest
import torch
from safetensors.torch import load_file

from longrm.runs.logs import Log
from longrm.runs.records import RolloutRecord, StepRecord
from longrm.training.checkpoints import saved_steps
from longrm.training.settings import TrainingSettings
from longrm.training.train import train

from ...reward_models.tiny_models import make_verdict_writer

pytestmark = [pytest.mark.distributed, pytest.mark.full, pytest.mark.timeout(600)]

TOLERANCE = 1e-5  # of weights, relative; of losses, norms of gradients and metrics ten times as much
WAYS = {
    "grpo": {"loss.beta": 0.1},
    "dapo, iterations": {
        "loss.loss_type": "dapo",
        "rollouts.num_iterations": 2,
        "memory.max_tokens_per_microbatch": 100,
    },
    "both orders, replaced": {"rollouts.group_by": "comparison", "rollouts.max_num_gen_batches": 2},
    "most groups constant": {
        "rollouts.reward_weights": {"correct": 1.0},
        "rollouts.max_completion_length": 2,
    },
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    writer = make_verdict_writer(tmp_path_factory.mktemp("writer") / "model")

    def make(way, **changes):
        rewards = {"correct": 1.0, "format": 0.1, "consistent": 0.3, "brief": 0.05}
        tree = {
            "objective": "grpo",
            "model.path": str(writer),
            # Three comparisons in both orders: six prompts, which two processes share evenly and four do not.
            "data.world": {"tokens_per_step": 96, "responses_per_step": 6},
            "curriculum.lengths": [32],
            "rollouts": {
                "num_generations": 3,
                "max_completion_length": 5,
                "reward_weights": rewards,
                "soft_tokens": 5,
            },
            "optimizer": {"max_steps": 6, "learning_rate": 3e-3, "warmup_steps": 0.0},
            "checkpoint.save_steps": 2,
        }
        return TrainingSettings.resolve(None, tree | WAYS[way] | changes)

    return make


@pytest.fixture(scope="module")
def truth(settings, tmp_path_factory):
    """The folders of the trainings by one process."""
    folder = tmp_path_factory.mktemp("one")
    for way in WAYS:
        train(settings(way), folder / way)
    return folder


def rollouts_of(folder):
    return list(Log(folder / "rollouts.jsonl", RolloutRecord))


def figures_of(folder):
    steps = list(Log(folder / "steps.jsonl", StepRecord))
    names = sorted({name for step in steps for name in step.losses})  # `first_share` needs a verdict
    return torch.tensor(
        [[step.loss, step.grad_norm, *(step.losses.get(name, 0.0) for name in names)] for step in steps]
    ).double()


def distance(one, other):
    one, other = (load_file(folder / "model/model.safetensors") for folder in (one, other))
    return max(float((one[name] - other[name]).abs().max() / other[name].abs().max()) for name in one)


def assert_same_rollouts(found, truth):
    assert len(found) == len(truth) > 0
    for own, other in zip(found, truth, strict=True):
        names = ("step", "id", "tokens", "texts", "rewards", "advantages", "outcomes", "terms")
        assert [getattr(own, name) for name in names] == [getattr(other, name) for name in names]
        assert own.entropies == pytest.approx(other.entropies, rel=1e-4)


@pytest.mark.parametrize("count", [2, 4])
def test_several_processes_are_one(settings, truth, train_all, tmp_path, count):
    train_all(count, [{"recipe": settings(way), "out": tmp_path / way} for way in WAYS])
    for way in WAYS:
        assert_same_rollouts(rollouts_of(tmp_path / way), rollouts_of(truth / way))
        torch.testing.assert_close(
            figures_of(tmp_path / way),
            figures_of(truth / way),
            rtol=10 * TOLERANCE,
            atol=10 * TOLERANCE,
            msg=way,
        )
        assert distance(tmp_path / way, truth / way) < TOLERANCE, way
    shares = figures_of(truth / "most groups constant")
    assert bool((shares[:, 1] > 0).any())


def test_a_process_that_reads_the_rows_of_another_is_seen(settings, truth, train_all, tmp_path):
    train_all(2, [{"recipe": settings("grpo"), "out": tmp_path / "run", "fault": "the same rows"}])
    assert distance(tmp_path / "run", truth / "grpo") > 100 * TOLERANCE


def test_two_processes_that_are_killed_continue_and_so_does_one(settings, truth, train_all, tmp_path):
    way = "dapo, iterations"
    for name in ("same", "alone"):
        train_all(2, [{"recipe": settings(way), "out": tmp_path / name, "killed": 4}], ends=[-9, 1])
        assert saved_steps(tmp_path / name) == [2]
    train_all(2, [{"recipe": settings(way), "out": tmp_path / "same"}])
    train(settings(way), tmp_path / "alone")
    for name in ("same", "alone"):
        assert_same_rollouts(rollouts_of(tmp_path / name), rollouts_of(truth / way))
        assert distance(tmp_path / name, truth / way) < TOLERANCE
