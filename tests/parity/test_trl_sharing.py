"""Unmodified trainers of TRL over a model that shares prefixes: three steps with the same losses and gradient norms."""

import os
from pathlib import Path
from typing import Any

import datasets
import peft
import pytest
import torch
import trl
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    TrainerCallback,
)

from longrm.modeling import sharing
from longrm.modeling.sharing import share_prefixes, shared_tokens
from tests.modeling.test_recurrent import make

from .conftest import tiny_config

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
from trl.experimental.cpo import CPOConfig, CPOTrainer

pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL and transformers, about each other's names

TOLERANCE = (
    1e-5  # relative, after up to two steps with gradients that differ by rounding; 5 times with recurrences
)
LORA = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"])


class Log(TrainerCallback):
    """Keeps what a trainer logs of every step."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "grad_norm" in logs:
            self.steps.append((logs["loss"], logs["grad_norm"]))


def distinct_words(completions: list[str], **columns: Any) -> list[float]:
    """The reward of GRPO and RLOO."""
    return [float(len(set(text.split()))) for text in completions]


SCORER, LANGUAGE = AutoModelForSequenceClassification, AutoModelForCausalLM
HYBRID = "Qwen3_5ForCausalLM"  # of three layers, two with recurrences
GROUPS = {"num_generations": 4, "max_completion_length": 8}
CASES: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "reward": (trl.RewardTrainer, trl.RewardConfig, SCORER, {}),
    "reward, margins and centered": (
        trl.RewardTrainer,
        trl.RewardConfig,
        SCORER,
        {"margin": True, "center_rewards_coefficient": 0.1},
    ),
    "reward, accumulated": (trl.RewardTrainer, trl.RewardConfig, SCORER, {"gradient_accumulation_steps": 2}),
    "reward, checkpointing": (trl.RewardTrainer, trl.RewardConfig, SCORER, {"gradient_checkpointing": True}),
    "dpo": (trl.DPOTrainer, trl.DPOConfig, LANGUAGE, {}),
    "dpo, reference first": (trl.DPOTrainer, trl.DPOConfig, LANGUAGE, {"precompute_ref_log_probs": True}),
    "dpo, accumulated, checkpointing": (
        trl.DPOTrainer,
        trl.DPOConfig,
        LANGUAGE,
        {"gradient_accumulation_steps": 2, "gradient_checkpointing": True},
    ),
    "dpo, adapter": (trl.DPOTrainer, trl.DPOConfig, LANGUAGE, {"peft_config": LORA}),
    "cpo": (CPOTrainer, CPOConfig, LANGUAGE, {"loss_type": "simpo", "cpo_alpha": 0.1}),
    "kto": (trl.KTOTrainer, trl.KTOConfig, LANGUAGE, {}),
    "kto, adapter": (trl.KTOTrainer, trl.KTOConfig, LANGUAGE, {"peft_config": LORA}),
    "rloo": (trl.RLOOTrainer, trl.RLOOConfig, LANGUAGE, GROUPS),
    "rloo, iterations": (trl.RLOOTrainer, trl.RLOOConfig, LANGUAGE, {**GROUPS, "num_iterations": 2}),
    "grpo": (trl.GRPOTrainer, trl.GRPOConfig, LANGUAGE, {**GROUPS, "beta": 0.04}),
    "grpo, iterations, accumulated": (
        trl.GRPOTrainer,
        trl.GRPOConfig,
        LANGUAGE,
        {**GROUPS, "num_iterations": 2, "gradient_accumulation_steps": 2},
    ),
    "dpo, recurrent layers": (trl.DPOTrainer, trl.DPOConfig, HYBRID, {}),
    "grpo, recurrent layers": (
        trl.GRPOTrainer,
        trl.GRPOConfig,
        HYBRID,
        {**GROUPS, "beta": 0.04, "gradient_checkpointing": True},
    ),
    "grpo, adapter, checkpointing": (
        trl.GRPOTrainer,
        trl.GRPOConfig,
        LANGUAGE,
        {**GROUPS, "beta": 0.04, "peft_config": LORA, "gradient_checkpointing": True},
    ),
}


@pytest.fixture
def models(stock_tokenizer: Any, tmp_path: Path) -> dict[Any, Path]:
    """Folders, since TRL loads the reference of DPO and GRPO by the name of the model."""
    folders = {}
    for auto in (SCORER, LANGUAGE):
        folders[auto] = tmp_path / auto.__name__
        torch.manual_seed(0)
        auto.from_config(tiny_config(kv_heads=2)).save_pretrained(folders[auto])
        stock_tokenizer.save_pretrained(folders[auto])
    folders[HYBRID] = tmp_path / HYBRID
    make("qwen3.5").save_pretrained(folders[HYBRID])
    stock_tokenizer.save_pretrained(folders[HYBRID])
    return folders


def rows_of(trainer: Any, rows: list[dict[str, str]], margin: bool) -> datasets.Dataset:
    rows = [*rows, *reversed(rows)]
    if trainer in (trl.GRPOTrainer, trl.RLOOTrainer):
        return datasets.Dataset.from_list([{"prompt": row["prompt"]} for row in rows])
    if trainer is trl.KTOTrainer:
        halves = [
            {"prompt": r["prompt"], "completion": r[n], "label": n == "chosen"}
            for r in rows
            for n in ("chosen", "rejected")
        ]
        return datasets.Dataset.from_list(halves)
    return datasets.Dataset.from_list([{**row, **({"margin": 0.5} if margin else {})} for row in rows])


def trained(
    case: str, models: dict[Any, Path], rows: Any, tokenizer: Any, folder: Path, *, share: bool
) -> tuple[list[tuple[float, float]], Any]:
    """Loss and gradient norm of three steps, and the model."""
    kind, config, auto, settings = CASES[case]
    settings = dict(settings)
    margin, adapter = settings.pop("margin", False), settings.pop("peft_config", None)
    lengths = (
        {} if "num_generations" in settings else {"max_length": None if kind is not trl.KTOTrainer else 512}
    )
    args = config(
        output_dir=str(folder),
        max_steps=3,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        **{"gradient_checkpointing": False, **lengths, **settings},
    )
    model = (LANGUAGE if auto is HYBRID else auto).from_pretrained(models[auto], dtype=torch.float32)
    if share:
        share_prefixes(model, min_tokens=1)
    log = Log()
    reward = {"reward_funcs": distinct_words} if "num_generations" in settings else {}
    trainer = kind(
        model,
        args=args,
        train_dataset=rows_of(kind, rows, margin),
        processing_class=tokenizer,
        callbacks=[log],
        **reward,
        **({"peft_config": adapter} if adapter else {}),
    )
    trainer.train()
    assert len(log.steps) == 3
    return log.steps, model


def rounding(case: str) -> float:
    return 5 * TOLERANCE if "recurrent" in case else TOLERANCE


@pytest.mark.parametrize("case", CASES)
def test_three_steps(case: str, models: Any, rows: Any, stock_tokenizer: Any, tmp_path: Path):
    truth, _ = trained(case, models, rows, stock_tokenizer, tmp_path, share=False)
    found, model = trained(case, models, rows, stock_tokenizer, tmp_path, share=True)
    for (loss, norm), (true_loss, true_norm) in zip(found, truth, strict=True):
        assert loss == pytest.approx(true_loss, rel=rounding(case), abs=rounding(case))
        assert norm == pytest.approx(true_norm, rel=rounding(case))
    given, computed, _ = shared_tokens(model)
    assert computed < 0.8 * given


def test_groups_that_stay_whole_share_most(
    models: Any, rows: Any, stock_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """By default TRL shuffles the completions of all micro-batches of a step."""
    shares = []
    for steps in (2, 1):
        settings = {**GROUPS, "gradient_accumulation_steps": 2, "steps_per_generation": steps}
        monkeypatch.setitem(CASES, "groups", (trl.GRPOTrainer, trl.GRPOConfig, LANGUAGE, settings))
        _, model = trained("groups", models, rows, stock_tokenizer, tmp_path, share=True)
        given, computed, _ = shared_tokens(model)
        shares.append(computed / given)
    assert 1.4 * shares[1] < shares[0] < 0.6, shares


@pytest.mark.parametrize("case", ["reward", "grpo"])
def test_wrong_states_would_be_seen(
    case: str, models: Any, rows: Any, stock_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The negative control: a row gets the prefix of one that differs in its last token."""
    truth, _ = trained(case, models, rows, stock_tokenizer, tmp_path, share=False)
    right = sharing.choose_trees

    def deeper(tree: Any) -> Any:
        return (
            sharing.Fork(tree.depth + 1, [deeper(b) for b in tree.branches])
            if not isinstance(tree, int)
            else tree
        )

    monkeypatch.setattr(sharing, "choose_trees", lambda *given: [deeper(tree) for tree in right(*given)])
    found, _ = trained(case, models, rows, stock_tokenizer, tmp_path, share=True)
    assert abs(found[0][1] / truth[0][1] - 1) > 100 * TOLERANCE
