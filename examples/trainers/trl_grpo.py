"""Trains a policy with TRL's GRPO and a longrm reward model.

python examples/trainers/trl_grpo.py POLICY MODEL PROMPTS.jsonl OUT

POLICY is a language model, MODEL anything that `longrm.load` takes; PROMPTS.jsonl has a column `prompt` (text or
messages).
"""

import sys

import datasets
from trl import GRPOConfig, GRPOTrainer

import longrm


def train(
    policy: str, model: str | longrm.RewardModel, prompts: str, out: str, **settings: object
) -> GRPOTrainer:
    """Trains and returns the trainer; `settings` are those of TRL's `GRPOConfig`."""
    trainer = GRPOTrainer(
        model=policy,
        reward_funcs=longrm.reward_function(model),
        args=GRPOConfig(output_dir=out, **settings),
        train_dataset=datasets.load_dataset("json", data_files=prompts, split="train"),
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    train(*sys.argv[1:])
