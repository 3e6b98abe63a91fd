"""TRL's trainers on the work of `train_step.py` and `grpo_update.py`: same weights, same tokens, same settings.

`RewardTrainer` gets token ids. `CPOTrainer` and `DPOTrainer` accept only text: a token is a word here, so that their
rows have the same ids, and the END that they append is ours too. All accept one rejected response per row, so K of
them are K pairs.
"""

import argparse
import copy
import os
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import datasets
import torch
from measuring import END, PAD, Arm, Workload, as_text, word, words_backend
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RewardConfig, RewardTrainer
from trl.trainer.utils import pad, split_tensor_dict

from longrm.modeling.shapes import TokenTree

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
        common = _common(scratch, per_batch)
        if options.objective == "simpo":
            trainer = _cpo(work, common, options.vocabulary, beta, gamma)
        elif options.objective == "dpo":
            trainer = _dpo(work, common, beta)
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


def make_grpo_peer(
    work: Workload,
    advantages: Sequence[float],
    old: Sequence[Sequence[float]] | None,
    per_batch: int,
    *,
    compact: bool = False,
) -> Arm:
    """Forward and backward of one update by TRL's `GRPOTrainer` with batches of this many completions.

    The arm returns the loss and the norm of the gradient. TRL computes logits of all tokens on a CPU, and only those of
    completions on a GPU, as it does here with `compact`. The branches of a tree may be prompts that go on differently.
    """
    datasets.disable_progress_bars()
    logging.set_verbosity_error()  # it says that it sets the padding id
    # Below a prompt, or below several that begin alike.
    prompts, completions, generations = [], [], 0
    for question in work.tree.branches if isinstance(work.tree.branches[0], TokenTree) else [work.tree]:
        own = question.tokens if question is work.tree else [*work.tree.tokens, *question.tokens]
        prompts += [own] * len(question.branches)
        completions += question.branches
        generations = len(question.branches)
    parts, rest = divmod(len(completions), per_batch)
    assert not rest, "batches weigh the same"
    with tempfile.TemporaryDirectory() as scratch:
        trainer = GRPOTrainer(
            model=work.stock,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),  # the advantages are given
            args=GRPOConfig(
                loss_type="grpo",
                num_generations=generations,
                gradient_accumulation_steps=parts,
                max_completion_length=max(map(len, completions)),
                **_common(scratch, per_batch),
            ),
            train_dataset=datasets.Dataset.from_list([{"prompt": word(END + 1)}]),
            processing_class=_words(work.stock.config.vocab_size),
        )
    trainer.current_gradient_accumulation_steps = parts  # as its loop does
    whole = {
        # As its rollouts are padded, before they are split into batches.
        "prompt_ids": pad([torch.tensor(own) for own in prompts], PAD, "left"),
        "prompt_mask": pad([torch.ones(len(own), dtype=torch.long) for own in prompts], 0, "left"),
        "completion_ids": pad([torch.tensor(own) for own in completions], PAD),
        "completion_mask": pad([torch.ones(len(own), dtype=torch.long) for own in completions], 0),
        "advantages": torch.tensor(advantages),
    }
    if old:
        whole["old_per_token_logps"] = pad([torch.tensor(own) for own in old], 0.0)
    batches = split_tensor_dict(whole, parts)

    def arm() -> Tensor:
        as_on_a_gpu = mock.patch("trl.trainer.utils._use_triton", return_value=True)
        loss = torch.zeros(())
        with as_on_a_gpu if compact else nullcontext():
            for batch in batches:
                own = trainer.compute_loss(trainer.model, batch)
                trainer.accelerator.backward(own)
                loss += own.detach()
        norm = torch.nn.utils.get_total_norm([weight.grad for weight in trainer.model.parameters()])
        trainer.model.zero_grad(set_to_none=True)
        return torch.stack([loss, norm])

    return arm


def _common(folder: str, per_batch: int) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "per_device_train_batch_size": per_batch,
        "gradient_checkpointing": False,  # the caller sets it on both models alike
        "bf16": False,
        "use_cpu": True,
        "report_to": [],
        "remove_unused_columns": False,
    }


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
    # Its max_length = None is 512; this one cuts nothing.
    longest = len(work.tree.tokens) + max(map(len, work.tree.branches))
    settings = CPOConfig(
        loss_type="simpo", cpo_alpha=0.0, beta=beta, simpo_gamma=gamma, max_length=longest, **common
    )
    return CPOTrainer(
        model=work.stock,
        args=settings,
        train_dataset=_text_rows(work),
        processing_class=_words(vocabulary),
    )


def _text_rows(work: Workload) -> datasets.Dataset:
    """TRL appends END to the responses."""
    chosen, *rejected = (as_text(branch[:-1]) for branch in work.tree.branches)
    prompt = as_text(work.tree.tokens)
    return datasets.Dataset.from_list(
        [{"prompt": prompt, "chosen": " " + chosen, "rejected": " " + r} for r in rejected]
    )


def _dpo(work: Workload, common: dict[str, Any], beta: float) -> Any:
    reference = copy.deepcopy(work.stock)
    with torch.no_grad():  # of an equal reference, the loss would be log 2 for any model
        reference.lm_head.weight.mul_(1.1)
    return DPOTrainer(
        model=work.stock,
        ref_model=reference,
        args=DPOConfig(max_length=None, beta=beta, **common),
        train_dataset=_text_rows(work),
        processing_class=_words(work.stock.config.vocab_size),
    )


def _words(vocabulary: int) -> PreTrainedTokenizerFast:
    made: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerFast = made(
        tokenizer_object=words_backend(vocabulary), eos_token=word(END), pad_token=word(PAD)
    )
    return tokenizer


def _expected(work: Workload) -> list[list[int]]:
    """The sequences of all pairs: chosen, rejected, chosen, rejected, ..."""
    chosen, *rejected = [[*work.tree.tokens, *branch] for branch in work.tree.branches]
    return [ids for other in rejected for ids in (chosen, other)]


def _fed(batch: dict[str, Any]) -> list[list[int]]:
    """The tokens of a TRL batch, row by row, without padding."""
    rows: list[list[int]] = []
    for name in ("", "chosen_", "rejected_"):
        if f"{name}input_ids" in batch:
            parts = zip(batch[f"{name}input_ids"], batch[f"{name}attention_mask"], strict=True)
            rows += [ids[mask.bool()].tolist() for ids, mask in parts]
    return rows
