"""Names that users know from TRL, transformers and PEFT lead to the settings here."""

import click
import pytest
from click.testing import CliRunner

from longrm.cli.commands import cli
from longrm.config import keys_of
from longrm.errors import ConfigError
from longrm.training.other_names import OTHER_NAMES
from longrm.training.settings import TrainingSettings

FILE = {"objective": "bradley_terry", "model.path": "x", "data.path": "rows.jsonl"}
FIRST = {
    "per_device_train_batch_size", "gradient_accumulation_steps", "max_length", "bf16", "lr", "save_steps", "optim",
    "num_train_epochs", "max_steps", "max_grad_norm", "lora_r", "lora_alpha", "max_completion_length", "output_dir",
    "model_name_or_path", "dataset_name", "eval_steps", "loss_type", "lr_scheduler_type", "warmup_steps",
    "logging_steps",
}  # fmt: skip
"""What users type first."""


def test_every_name_leads_to_a_setting_or_to_a_sentence():
    known = set(keys_of(TrainingSettings))
    assert all(target in known for target in OTHER_NAMES.values() if " " not in target)
    found_anyway = {key.rpartition(".")[2] for key in known}
    assert OTHER_NAMES.keys() | found_anyway >= FIRST
    assert not OTHER_NAMES.keys() & found_anyway
    assert not OTHER_NAMES.keys() & known


@pytest.mark.parametrize("group", ["", "optimizer.", "data."])
def test_an_unknown_key_names_the_setting(group):
    for name, target in OTHER_NAMES.items():
        key = name if "." in name else group + name
        settings = FILE | {key: 1} | ({"evaluation.settings": {}} if key.startswith("evaluation") else {})
        target = OTHER_NAMES.get(key, target)
        with pytest.raises(ConfigError) as error:
            TrainingSettings.resolve(None, settings)
        assert (target if " " in target else f"did you mean '{target}'") in str(error.value)


@pytest.mark.parametrize("flag", ["--output_dir", "--per-device-train-batch-size"])
def test_an_unknown_flag_names_the_setting(flag):
    done = CliRunner().invoke(cli, ["train", "sft", flag, "2"], standalone_mode=False)
    assert isinstance(done.exception, click.UsageError)
    assert OTHER_NAMES[flag.strip("-").replace("-", "_")] in str(done.exception)
