"""Settings that cannot be used are refused before any work, with the key named."""

import copy

import pytest

from longrm.errors import ConfigError
from longrm.training.losses import LOSSES
from longrm.training.objectives import OBJECTIVES
from longrm.training.settings import (
    CurriculumSettings,
    DataSettings,
    LoraSettings,
    LossSettings,
    ModelSettings,
    OptimizerSettings,
    TrainingSettings,
)

FILE = {"objective": "bradley_terry", "model.path": "x", "data.path": "rows.jsonl"}
WORLD = {
    "objective": "preference",
    "model.new": {},
    "data.world": {},
    "curriculum.lengths": [64],
    "optimizer.steps": 1,
}
PREFERENCE = FILE | {"objective": "preference"}


@pytest.mark.parametrize(
    ("tree", "named"),
    [
        (FILE | {"objective": "bradley_tery"}, "did you mean 'bradley_terry'"),
        ({"data.path": "x"}, "objective"),
        (FILE | {"optimizer.stepz": 1}, "optimizer.stepz"),
        (FILE | {"model.new": {}}, "model.path"),
        (FILE | {"data.world": {}}, "data.world"),
        (FILE | {"data.sources": [{"path": "y"}]}, "data.sources"),
        (FILE | {"data.path": None, "data.sources": [{"path": "y"}, {"path": "y"}]}, "data.sources"),
        (FILE | {"curriculum.lengths": [64]}, "curriculum"),
        (FILE | {"optimizer.steps": 1, "optimizer.epochs": 1}, "optimizer.epochs"),
        (FILE | {"optimizer.min_learning_rate_ratio": 0.1, "optimizer.schedule": "linear"}, "schedule = 'cosine'"),
        (
            FILE | {"memory.activation_offloading": True, "memory.gradient_checkpointing": False},
            "memory.gradient_checkpointing",
        ),
        (FILE | {"parallel.offload": True}, "parallel.shard = true"),
        (FILE | {"parallel.reshard_after_forward": False}, "parallel.shard = true"),
        (FILE | {"parallel.zero": 2}, "parallel.zero"),
        (FILE | {"model.lora": {}, "model.rope_theta": 1e6}, "rope_parameters"),
        (FILE | {"evaluation": {"metric": "pair_acuracy", "settings": {}}}, "pair_accuracy"),
        (FILE | {"plan.model": {"layers": 1}}, "plan.model"),
        (FILE | {"plan.rows": [{"rows": 1, "prompt": 1, "response": 1, "x": 1}]}, "plan.rows.0.x"),
        (WORLD | {"curriculum": None}, "curriculum.lengths"),
        (WORLD | {"optimizer.steps": None}, "optimizer.steps"),
        (WORLD | {"data.per_step": 8}, "data.per_step"),
        (WORLD | {"data.world.completions": ["fact"]}, "sft"),
        (WORLD | {"data.world.completions": ["pairwise"], "data.world.name": "chain"}, "records"),
        (WORLD | {"loss.kind": "dpo"}, "needs data.path"),
        (WORLD | {"model.new": {"layers": 1, "structured": True}}, "layers"),
        (WORLD | {"model.lora": {}}, "model.path"),
        (FILE | {"loss.kind": "bradley"}, "did you mean 'bradley_terry'"),
        (FILE | {"loss.kind": "dpo"}, "known: bradley_terry, hardest"),
        (FILE | {"loss.kind": "plackett_luce", "loss.label_smoothing": 0.1}, "loss.label_smoothing"),
        (FILE | {"loss.beta": 1.0}, "loss.beta"),
        (PREFERENCE | {"loss.kind": "dpo", "loss.gamma": 1.0}, "loss.gamma"),
        (PREFERENCE | {"loss.centering": 1.0}, "loss.centering"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_named(tree, named):
    with pytest.raises(ConfigError, match=named):
        TrainingSettings.resolve(None, copy.deepcopy(tree))


def test_the_default_loss_of_an_objective_is_filled_in_and_saved():
    for objective, kind in (("sft", "sft"), ("preference", "logo"), ("bradley_terry", "bradley_terry")):
        settings = TrainingSettings.resolve(None, FILE | {"objective": objective})
        assert settings.to_dict()["loss"] == {"kind": kind}
        assert TrainingSettings.model_validate(settings.to_dict()) == settings


def test_every_loss_belongs_to_an_objective_and_its_options_are_settings():
    for name, loss in LOSSES.items():
        assert loss.objective in OBJECTIVES
        assert loss.options.keys() <= LossSettings.model_fields.keys()
        assert LossSettings(kind=name).options() == loss.options


def test_curriculum_lengths_and_source_weights_are_checked():
    with pytest.raises(ValueError, match="ascending"):
        CurriculumSettings(lengths=(48, 24))
    with pytest.raises(ValueError, match="weight"):
        DataSettings.model_validate({"sources": [{"path": "y", "weight": 0.0}]})


def test_the_default_learning_rate_depends_on_what_is_trained():
    def rate(**settings):
        return TrainingSettings.resolve(None, FILE | settings).optimizer.learning_rate

    assert rate() == 2e-6
    assert rate(**{"model.lora": {"rank": 4}}) == rate(**{"model.lora.rank": 4, "optimizer.steps": 1}) == 1e-4
    assert rate(**{"model.path": None, "model.new": {}}) == 1e-3
    assert rate(**{"model.lora": {}, "optimizer.learning_rate": 3e-5}) == 3e-5
    given = {"model": ModelSettings(path="x", lora=LoraSettings()), "optimizer": OptimizerSettings(steps=1)}
    settings = TrainingSettings.model_validate(given | {"objective": "sft", "data": {"path": "x"}})
    assert (settings.optimizer.learning_rate, settings.optimizer.steps) == (1e-4, 1)
    assert TrainingSettings.model_validate(settings.to_dict()) == settings
