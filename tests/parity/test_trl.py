"""Losses and all gradients equal those of TRL's trainers on the same weights and token ids, padded as they pad.

TRL reads every response as a separate sequence, we read them over shared prefixes. Both compute in fp32, and TRL cuts
nothing. More than two responses, which TRL does not support, are tested against closed forms in `tests/training`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import datasets
import pytest
import torch
import trl
from torch import Tensor
from trl.experimental.cpo import CPOConfig, CPOTrainer

from longrm.data.training_rows import Example
from longrm.modeling.loading import LanguageModel
from longrm.modeling.shared_prefix import Packed
from longrm.reward_models.packed import LikelihoodRewardModel
from longrm.runs.progress import no_progress
from longrm.training.batches import MicroBatch
from longrm.training.objectives import BradleyTerry, Preference
from longrm.training.reference import reference_logprobs
from longrm.training.settings import LossSettings
from longrm.types import Query

from .conftest import TOLERANCE, assert_equal_but_for_faults, deviation, engine, gradients, say, twins

PLAIN = {
    "bf16": False,
    "activation_checkpointing": False,
    "report_to": "none",
    "use_cpu": True,
    "disable_tqdm": True,
    "max_length": None,
}


@pytest.fixture
def table(rows) -> datasets.Dataset:
    return datasets.Dataset.from_list(rows)


def ids_of(examples: Sequence[Example], response: int) -> list[list[int]]:
    return [[*own.tokens.prompt, *own.tokens.responses[response]] for own in examples]


def unpadded(ids: Tensor, mask: Tensor) -> list[list[int]]:
    return [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]


def computed(trainer: Any, model: Any, batches: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """TRL's loss and gradients, a mean over batches of equal size."""
    parts = [trainer.compute_loss(model, dict(batch)) for batch in batches]
    return gradients(model, sum(parts) / len(parts))


def collated(trainer: Any, *, apart: bool) -> list[dict[str, Any]]:
    """All rows in one batch, or each in its own."""
    rows = list(trainer.train_dataset)
    groups = [[row] for row in rows] if apart else [rows]
    return [trainer._prepare_inputs(trainer.data_collator(group)) for group in groups]


def positions_run_on(micro: MicroBatch) -> MicroBatch:
    packed = micro.packed
    run_on = torch.arange(packed.layout.tokens)[None]
    return replace(micro, packed=Packed(packed.input_ids, run_on, packed.layout))


MARGINS = [0.3, 1.5, 0.0]
REWARD = {
    "plain": ({}, {}),
    "centered": ({"center_rewards_coefficient": 0.3}, {"center_rewards_coefficient": 0.3}),
}


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("margins", [None, MARGINS], ids=["no_margin", "margin"])
@pytest.mark.parametrize("case", REWARD)
def test_bradley_terry_equals_the_reward_trainer(
    case, margins, kv_heads, table, examples, stock_tokenizer, tmp_path
):
    our_settings, their_settings = REWARD[case]
    stock, ours = twins("scores", kv_heads=kv_heads)
    trainer = trl.RewardTrainer(
        stock,
        trl.RewardConfig(str(tmp_path), **PLAIN, **their_settings),
        train_dataset=table.add_column("margin", margins) if margins else table,
        processing_class=stock_tokenizer,
    )
    (batch,) = collated(trainer, apart=False)
    assert unpadded(batch["input_ids"], batch["attention_mask"]) == ids_of(examples, 0) + ids_of(examples, 1)
    truth = computed(trainer, stock, [batch])
    if margins:
        examples = [replace(own, margin=margin) for own, margin in zip(examples, margins, strict=True)]
    objective = BradleyTerry(LossSettings(**{"loss_type": "bradley_terry"} | our_settings))
    bare = [replace(own, margin=0.1) for own in examples]
    faults = {
        "positions run on": engine(objective, ours, examples, positions_run_on),
        "another margin": engine(objective, ours, bare),
        "another centering": engine(
            BradleyTerry(LossSettings(loss_type="bradley_terry", center_rewards_coefficient=0.1)),
            ours,
            examples,
        ),
    }
    assert_equal_but_for_faults(engine(objective, ours, examples), truth, faults)


SIMPO = {
    "plain": ({"nll_coef": 0.0}, {"cpo_alpha": 0.0}),
    "smoothed": ({"nll_coef": 0.0, "label_smoothing": 0.1}, {"cpo_alpha": 0.0, "label_smoothing": 0.1}),
    "nll": ({"nll_coef": 0.05}, {"cpo_alpha": 0.05}),
}


@pytest.mark.parametrize("kind", ["simpo", "logo"])
@pytest.mark.parametrize("case", SIMPO)
def test_simpo_equals_the_cpo_trainer(case, kind, table, examples, stock_tokenizer, tmp_path):
    """So does LOGO, of one rejected response. Row by row, because TRL's `cpo_alpha` lets long responses weigh more."""
    our_settings, their_settings = SIMPO[case]
    stock, ours = twins("logprobs")
    plain = {**PLAIN, "max_length": 4096}  # None means 512 to this trainer; no row is as long as either
    trainer = CPOTrainer(
        stock,
        CPOConfig(str(tmp_path), **plain, loss_type="simpo", beta=2.5, simpo_gamma=0.5, **their_settings),
        train_dataset=table,
        processing_class=stock_tokenizer,
    )
    (batch,) = collated(trainer, apart=False)
    for response, name in enumerate(["chosen", "rejected"]):
        ids, labels = batch[f"{name}_input_ids"], batch[f"{name}_labels"]
        assert unpadded(ids, batch[f"{name}_attention_mask"]) == ids_of(examples, response)
        assert unpadded(ids, labels != -100) == [list(own.tokens.responses[response]) for own in examples]
    truth = computed(trainer, stock, collated(trainer, apart=True))
    settings = LossSettings(loss_type=kind, **our_settings)
    found = engine(Preference(settings), ours, examples)
    together = deviation(found, computed(trainer, stock, [batch]))
    assert together > 100 * TOLERANCE if case == "nll" else together < TOLERANCE

    gamma = settings.model_copy(update={"gamma": 0.5 * 2.5})
    sums = settings.model_copy(update={"loss_type": "dpo", "beta": 2.5})
    faults = {
        "positions run on": engine(Preference(settings), ours, examples, positions_run_on),
        "a gamma that beta scales": engine(Preference(gamma), ours, examples),
        "sums for means": engine(Preference(sums, {own.id: [0.0, 0.0] for own in examples}), ours, examples),
    }
    assert_equal_but_for_faults(found, truth, faults)


DPO = {
    "plain": ({"nll_coef": 0.0}, {"loss_type": ["sigmoid"]}),
    # "sigmoid" has no smoothing in TRL 1.16; "aot" of a single pair is the smoothed loss.
    "smoothed": ({"nll_coef": 0.0, "label_smoothing": 0.1}, {"loss_type": ["aot"], "label_smoothing": 0.1}),
    "nll": ({"nll_coef": 0.05}, {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.05]}),
}


@pytest.fixture
def dpo_trainer(table, stock_tokenizer, tmp_path):
    def make(stock: Any, reference: Any, **settings: Any) -> Any:
        config = trl.DPOConfig(str(tmp_path), **PLAIN, beta=0.3, **settings)
        return trl.DPOTrainer(stock, reference, config, train_dataset=table, processing_class=stock_tokenizer)

    return make


# TRL 1.16 reads a property of transformers by its old name.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("case", DPO)
def test_dpo_equals_the_dpo_trainer(case, dpo_trainer, examples, tmp_path):
    our_settings, their_settings = DPO[case]
    stock, ours = twins("logprobs")
    stock_reference, our_reference = twins("logprobs", seed=1)
    trainer = dpo_trainer(stock, stock_reference, **their_settings)
    (batch,) = collated(trainer, apart=False)
    ids = batch["input_ids"]
    assert unpadded(ids, batch["attention_mask"]) == ids_of(examples, 0) + ids_of(examples, 1)
    responses = [list(own.tokens.responses[at]) for at in (0, 1) for own in examples]
    assert unpadded(ids, batch["completion_mask"]) == responses
    truth = computed(trainer, stock, collated(trainer, apart=True))
    reference = reference_logprobs(our_reference, examples, tmp_path, budget=1000, progress=no_progress)
    settings = LossSettings(loss_type="dpo", beta=0.3, **our_settings)
    means = settings.model_copy(update={"loss_type": "simpo", "gamma": 0.0})
    no_reference = {own.id: [0.0, 0.0] for own in examples}
    faults = {
        "positions run on": engine(Preference(settings, reference), ours, examples, positions_run_on),
        "means for sums": engine(Preference(means), ours, examples),
        "no reference": engine(Preference(settings, no_reference), ours, examples),
    }
    assert_equal_but_for_faults(engine(Preference(settings, reference), ours, examples), truth, faults)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_likelihoods_and_implicit_rewards_are_those_of_the_dpo_trainer(rows, tokenizer, dpo_trainer):
    stock, ours = twins("logprobs")
    stock_reference, our_reference = twins("logprobs", seed=1)
    trainer = dpo_trainer(stock, stock_reference)
    (batch,) = collated(trainer, apart=False)
    trained, started = (
        torch.stack(list(trainer.compute_ref_log_probs(model, batch)), dim=1)
        for model in (stock, stock_reference)
    )
    asked = [
        Query(
            name, say("user", row["prompt"]), tuple(say("assistant", row[n]) for n in ("chosen", "rejected"))
        )
        for name, row in zip("abc", rows, strict=True)
    ]
    judge, base = LanguageModel(ours, tokenizer), LanguageModel(our_reference, tokenizer)
    plain = torch.tensor([one.scores for one in LikelihoodRewardModel(judge, "x").judge(asked)])
    implicit = LikelihoodRewardModel(judge, "x", reference=base).judge(asked)
    margins = torch.tensor([one.scores for one in implicit])
    torch.testing.assert_close(plain, trained, rtol=TOLERANCE, atol=0)
    torch.testing.assert_close(margins, trained - started, rtol=10 * TOLERANCE, atol=1e-4)
    assert (margins - trained).abs().min() > 1, "the control: the reference says something"
