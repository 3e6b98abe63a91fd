"""Trains a policy with TRL's GRPO and a longrm reward model.

python examples/trainers/trl_grpo.py POLICY MODEL PROMPTS.jsonl OUT

POLICY is a language model, MODEL anything that `longrm.load` takes; PROMPTS.jsonl has a column `prompt`: messages, or
text, to which TRL applies no chat template.
"""

import sys

import datasets
import torch
from trl import GRPOConfig, GRPOTrainer

import longrm

DEFAULTS = {"bf16": torch.cuda.is_available(), "use_cpu": not torch.cuda.is_available()}


def train(
    policy: str, model: str | longrm.RewardModel, prompts: str, out: str, **settings: object
) -> GRPOTrainer:
    """Trains, saves the policy to `out` and returns the trainer; `settings` are those of TRL's `GRPOConfig`."""
    trainer = GRPOTrainer(
        model=policy,
        reward_funcs=longrm.reward_function(model),
        args=GRPOConfig(output_dir=out, **(DEFAULTS | settings)),
        train_dataset=datasets.load_dataset("json", data_files=prompts, split="train"),
    )
    trainer.train()
    trainer.save_model()
    return trainer


if __name__ == "__main__":
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    train(*sys.argv[1:])
