"""Settings of trainings: what an earlier version called otherwise, and what each objective may choose."""

import pytest

from longrm.errors import ConfigError
from longrm.training.losses import LOSSES
from longrm.training.objectives import OBJECTIVES


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("stall_steps", "plateau_steps"),
        ("optimizer.floor", "optimizer.min_learning_rate_ratio"),
        ("optimizer.warmup", "optimizer.warmup_ratio"),
        ("optimizer.max_norm", "optimizer.max_grad_norm"),
        ("memory.checkpointing", "memory.gradient_checkpointing"),
        ("memory.offload", "memory.activation_offloading"),
        ("data.world.writes", "data.world.completions"),
        ("data.world.graded_from", "data.world.min_best_of_n_length"),
        ("data.world.judges", "data.world.simulated_judges"),
        ("data.world.judge_error", "data.world.judge_error_rate"),
    ],
)
def test_a_renamed_setting_is_refused_with_its_new_name(old, new):
    settings = {"model.path": "m", "data.path": "d", old: 1}
    for spec in OBJECTIVES.values():
        with pytest.raises(ConfigError, match=rf"the setting '{old}' is called '{new}' now"):
            spec.settings.resolve(None, settings)


def test_every_loss_is_of_an_objective_that_has_its_options():
    for name, loss in LOSSES.items():
        group = OBJECTIVES[loss.objective].settings.model_fields["loss"].annotation
        assert name in group.kinds()
        assert loss.options.keys() <= group.model_fields.keys()
        assert group(kind=name).options() == loss.options
