"""TRL's trainers on the work of `train_step.py`: same weights, same tokens, same settings.

`RewardTrainer` gets token ids. `CPOTrainer` accepts only text: a token is a word here, so that its rows have the same
ids, and the END that it appends is ours too. Both accept one rejected response per row, so K of them are K pairs.
"""

import argparse
import os
import tempfile
import warnings
from typing import Any

import datasets
import tokenizers
import torch
from measuring import END, PAD, Arm, Workload
from tokenizers import models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging
from trl import RewardConfig, RewardTrainer

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # a notice that its interface may change, which we know
from trl.experimental.cpo import CPOConfig, CPOTrainer

# Its own settings still use the older name.
warnings.filterwarnings("ignore", "`gradient_checkpointing` is deprecated", FutureWarning)


def make_peer(options: argparse.Namespace, work: Workload, per_batch: int, beta: float, gamma: float) -> Arm:
    """Forward and backward of one optimizer step by TRL, in batches of this many pairs."""
    datasets.disable_progress_bars()
    logging.set_verbosity_error()  # it says that it sets the padding id
    pairs = len(work.tree.branches) - 1
    assert pairs % per_batch == 0, "batches weigh the same"
    with tempfile.TemporaryDirectory() as scratch:
        common: dict[str, Any] = {
            "output_dir": scratch,
            "per_device_train_batch_size": per_batch,
            "gradient_checkpointing": False,  # the caller sets it on both models alike
            "bf16": False,
            "use_cpu": True,
            "report_to": [],
            "remove_unused_columns": False,
        }
        if options.objective == "simpo":
            trainer = _cpo(work, common, options.vocabulary, beta, gamma)
        else:
            trainer = _reward(work, common, options.vocabulary)
    batches = [trainer._prepare_inputs(batch) for batch in trainer.get_train_dataloader()]
    assert len(batches) == pairs // per_batch
    assert sorted(row for batch in batches for row in _fed(batch)) == sorted(_expected(work)), "other tokens"

    def arm() -> Tensor:
        total = torch.zeros(())
        for batch in batches:
            loss = trainer.compute_loss(trainer.model, dict(batch)) / len(batches)
            trainer.accelerator.backward(loss)
            total += loss.detach()
        trainer.model.zero_grad(set_to_none=True)
        return total

    return arm


def _reward(work: Workload, common: dict[str, Any], vocabulary: int) -> Any:
    rows = [
        {"chosen_ids": chosen, "rejected_ids": rejected}
        for chosen, rejected in zip(_expected(work)[::2], _expected(work)[1::2], strict=True)
    ]
    return RewardTrainer(
        model=work.stock,
        args=RewardConfig(max_length=None, **common),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=_words(vocabulary),
    )


def _cpo(work: Workload, common: dict[str, Any], vocabulary: int, beta: float, gamma: float) -> Any:
    chosen, *rejected = (_text(branch[:-1]) for branch in work.tree.branches)
    rows = [
        {"prompt": _text(work.tree.prefix), "chosen": " " + chosen, "rejected": " " + r} for r in rejected
    ]
    # Its max_length = None is 512; this one cuts nothing.
    longest = len(work.tree.prefix) + max(map(len, work.tree.branches))
    settings = CPOConfig(
        loss_type="simpo", cpo_alpha=0.0, beta=beta, simpo_gamma=gamma, max_length=longest, **common
    )
    return CPOTrainer(
        model=work.stock,
        args=settings,
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=_words(vocabulary),
    )


def _words(vocabulary: int) -> PreTrainedTokenizerFast:
    backend = tokenizers.Tokenizer(models.WordLevel({_word(i): i for i in range(vocabulary)}, _word(PAD)))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerFast = made(
        tokenizer_object=backend, eos_token=_word(END), pad_token=_word(PAD)
    )
    return tokenizer


def _word(token: int) -> str:
    return f"<{token}>"  # no word may begin with another one: special tokens are found anywhere


def _text(tokens: Any) -> str:
    return " ".join(map(_word, tokens))


def _expected(work: Workload) -> list[list[int]]:
    """The sequences of all pairs: chosen, rejected, chosen, rejected, ..."""
    chosen, *rejected = [[*work.tree.prefix, *branch] for branch in work.tree.branches]
    return [ids for other in rejected for ids in (chosen, other)]


def _fed(batch: dict[str, Any]) -> list[list[int]]:
    """The tokens of a TRL batch, row by row, without padding."""
    rows: list[list[int]] = []
    for name in ("", "chosen_", "rejected_"):
        if f"{name}input_ids" in batch:
            parts = zip(batch[f"{name}input_ids"], batch[f"{name}attention_mask"], strict=True)
            rows += [ids[mask.bool()].tolist() for ids, mask in parts]
    return rows
