"""Settings that cannot be used are refused before any work, with the key named."""

import copy

import pytest

from longrm.errors import ConfigError
from longrm.training.losses import LOSSES
from longrm.training.objectives import OBJECTIVES
from longrm.training.settings import (
    LoraSettings,
    LossSettings,
    ModelSettings,
    OptimizerSettings,
    TrainingSettings,
)

FILE = {"objective": "bradley_terry", "model.path": "x", "data.path": "rows.jsonl"}
PREFERENCE = FILE | {"objective": "preference"}
GENERATED = {"data.world": {}, "curriculum.lengths": [64], "optimizer.max_steps": 1}
WORLD = GENERATED | {"objective": "preference", "model.new": {}}
GRPO = GENERATED | {"objective": "grpo", "model.path": "x"}

# Settings that cannot be used, and a key that the error names.
REFUSED = [
    (FILE | {"objective": "bradley_tery"}, "bradley_terry"),
    ({"data.path": "x"}, "objective"),
    (FILE | {"model.new": {}}, "model.path"),
    (FILE | {"model.lora": {}, "model.rope_theta": 1e6}, "model.rope_theta"),
    (WORLD | {"model.lora": {}}, "model.path"),
    (WORLD | {"model.new": {"layers": 1, "structured": True}}, "layers"),
    (FILE | {"data.world": {}}, "data.world"),
    (FILE | {"data.sources": [{"path": "y"}]}, "data.sources"),
    (FILE | {"data.path": None, "data.sources": [{"path": "y"}, {"path": "y"}]}, "data.sources"),
    (FILE | {"data.path": None, "data.sources": [{"path": "y", "weight": 0.0}]}, "data.sources.0.weight"),
    (WORLD | {"data.per_step": 8}, "data.per_step"),
    (WORLD | {"data.world.completions": ["fact"]}, "completions"),
    (WORLD | {"data.world.completions": ["pairwise"], "data.world.name": "chain"}, "completions"),
    (WORLD | {"data.world.template": "x"}, "template"),
    (FILE | {"curriculum.lengths": [64]}, "curriculum"),
    (WORLD | {"curriculum": None}, "curriculum.lengths"),
    (WORLD | {"curriculum.lengths": [48, 24]}, "curriculum.lengths"),
    (WORLD | {"optimizer.max_steps": None}, "optimizer.max_steps"),
    (FILE | {"optimizer.stepz": 1}, "optimizer.stepz"),
    (FILE | {"optimizer.max_steps": 1, "optimizer.num_train_epochs": 1}, "optimizer.num_train_epochs"),
    (
        FILE | {"lr_scheduler_kwargs": {"min_lr_rate": 0.1}, "lr_scheduler_type": "linear"},
        "lr_scheduler_type",
    ),
    (FILE | {"lr_scheduler_type": "cosine_with_min_lr"}, "min_lr_rate"),
    (FILE | {"lr_scheduler_kwargs": {"min_lr": 0.1}}, "lr_scheduler_kwargs"),
    (
        FILE | {"memory.activation_offloading": True, "memory.gradient_checkpointing": False},
        "memory.gradient_checkpointing",
    ),
    (FILE | {"parallel.offload": True}, "parallel.shard"),
    (FILE | {"parallel.reshard_after_forward": False}, "parallel.shard"),
    (FILE | {"parallel.zero": 2}, "parallel.zero"),
    (FILE | {"evaluation": {"metric_for_best_model": "pair_acuracy", "settings": {}}}, "pair_accuracy"),
    (FILE | {"plan.model": {"layers": 1}}, "plan.model"),
    (FILE | {"plan.rows": [{"rows": 1, "prompt": 1, "response": 1, "x": 1}]}, "plan.rows.0.x"),
    (FILE | {"loss.loss_type": "bradley"}, "bradley_terry"),
    (FILE | {"loss.loss_type": "dpo"}, "loss.loss_type"),
    (WORLD | {"loss.loss_type": "dpo"}, "loss.loss_type"),
    (FILE | {"loss.loss_type": "plackett_luce", "loss.label_smoothing": 0.1}, "loss.label_smoothing"),
    (FILE | {"loss.beta": 1.0}, "loss.beta"),
    (FILE | {"loss.epsilon": 0.1}, "loss.epsilon"),
    (PREFERENCE | {"loss.loss_type": "dpo", "loss.gamma": 1.0}, "loss.gamma"),
    (PREFERENCE | {"loss.loss_type": "dpo", "loss.beta": 0.0}, "loss.beta"),
    (PREFERENCE | {"loss.center_rewards_coefficient": 1.0}, "loss.center_rewards_coefficient"),
    (GRPO | {"loss.loss_type": "dpo"}, "loss.loss_type"),
    (GRPO | {"loss.gamma": 0.1}, "loss.gamma"),
    (GRPO | {"objective": "sft", "rollouts": {}}, "rollouts"),
    (GRPO | {"parallel.shard": True}, "parallel.shard"),
    (GRPO | {"parallel.sequence_parallel_size": 2}, "parallel.sequence_parallel_size"),
    (GRPO | {"data.world.completions": ["fact"]}, "completions"),
    (GRPO | {"rollouts.num_generations": 1}, "rollouts.num_generations"),
    (GRPO | {"rollouts.temperature": 0.0}, "rollouts.temperature"),
    (GRPO | {"rollouts.top_p": 0.0}, "rollouts.top_p"),
    (GRPO | {"rollouts.scale_rewards": "batch"}, "rollouts.scale_rewards"),
    (GRPO | {"rollouts.group_by": "order"}, "rollouts.group_by"),
    (
        GRPO | {"rollouts.advantage_estimator": "rft", "rollouts.reward_weights": {"format": 1.0}},
        "rollouts.reward_weights",
    ),
    (GRPO | {"rollouts.num_iteration": 2}, "num_iterations"),
    (GRPO | {"rollouts.reward_weights": {"corect": 1.0}}, "correct"),
    (GRPO | {"rollouts.reward_weights": {"correct": 0.0}}, "correct"),
    (GRPO | {"rollouts.reward_weights": {"brief": 1.0}}, "soft_tokens"),
    (GRPO | {"rollouts.reward_weights": {"brief": 1.0}, "rollouts.soft_tokens": 513}, "soft_tokens"),
    (GRPO | {"rollouts.reward_weights": {"solved": 1.0}, "rollouts.answer_metric": "exact"}, "exact_match"),
]


@pytest.mark.parametrize(("settings", "key"), REFUSED)
def test_settings_that_cannot_be_used_are_named(settings, key):
    with pytest.raises(ConfigError) as caught:
        TrainingSettings.resolve(None, copy.deepcopy(settings))
    assert key in str(caught.value)


def test_the_default_loss_of_an_objective_is_filled_in_and_saved():
    for objective, kind in (("sft", "sft"), ("preference", "logo"), ("bradley_terry", "bradley_terry")):
        settings = TrainingSettings.resolve(None, FILE | {"objective": objective})
        assert settings.to_dict()["loss"] == {"loss_type": kind}
        assert TrainingSettings.model_validate(settings.to_dict()) == settings


def test_every_loss_belongs_to_an_objective_and_its_options_are_settings():
    for name, loss in LOSSES.items():
        assert loss.objective in OBJECTIVES
        assert loss.options.keys() <= LossSettings.model_fields.keys()
        assert LossSettings(loss_type=name).options() == loss.options


def test_the_default_learning_rate_depends_on_what_is_trained():
    def rate(**settings):
        return TrainingSettings.resolve(None, FILE | settings).optimizer.learning_rate

    assert rate() == 2e-6
    assert rate(**{"model.lora": {"r": 4}}) == rate(**{"model.lora.r": 4, "optimizer.max_steps": 1}) == 1e-4
    assert rate(**{"model.path": None, "model.new": {}}) == 1e-3
    assert rate(**{"model.lora": {}, "optimizer.learning_rate": 3e-5}) == 3e-5
    given = {
        "model": ModelSettings(path="x", lora=LoraSettings()),
        "optimizer": OptimizerSettings(max_steps=1),
    }
    settings = TrainingSettings.model_validate(given | {"objective": "sft", "data": {"path": "x"}})
    assert (settings.optimizer.learning_rate, settings.optimizer.max_steps) == (1e-4, 1)
    assert TrainingSettings.model_validate(settings.to_dict()) == settings
