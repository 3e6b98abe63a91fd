"""AdamW by the names that transformers has for its kinds, and whether one can be had here."""

import torch
import transformers
from transformers.utils.import_utils import is_bitsandbytes_available

from longrm.errors import ConfigError
from longrm.training.training_settings import OptimizerSettings

NAMES = {
    "adamw": transformers.TrainingArguments.default_optim,
    "adamw_8bit": "adamw_bnb_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
}
"""What transformers calls the kinds of a recipe's optimizer."""


def check_optimizer(settings: OptimizerSettings) -> None:
    """Refuses an optimizer whose library or device is not here.

    Raises:
        ConfigError: The package is missing or too old, or there is no GPU whose memory could be paged.
    """
    kind = settings.kind
    if kind != "adamw" and not is_bitsandbytes_available():
        raise ConfigError(
            f'optimizer.kind = "{kind}" needs the package bitsandbytes, 0.46.1 or later: pip install -U bitsandbytes'
        )
    if kind == "paged_adamw_8bit" and not torch.cuda.is_available():
        raise ConfigError(
            f'optimizer.kind = "{kind}" pages the memory of a GPU, and there is none: take "adamw_8bit"'
        )
