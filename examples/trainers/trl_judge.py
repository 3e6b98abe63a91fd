"""Trains a judge with TRL's GRPO on its verdicts.

longrm synthesize judge-prompts --set source=file:pairs.jsonl --set tokenizer=JUDGE --out runs/prompts
python examples/trainers/trl_judge.py JUDGE runs/prompts/rows OUT

JUDGE is a language model. The rows of a comparison follow one another, and stay together because `shuffle_dataset` is
off: the term `consistent` compares both orders of a comparison in one batch.
"""

import sys

import datasets
import torch
from trl import GRPOConfig, GRPOTrainer

import longrm

WEIGHTS = {"correct": 1.0, "format": 0.1, "consistent": 0.2}
"""The terms are described in docs/judge_training.md."""

DEFAULTS = {
    "num_generations": 8,
    "per_device_train_batch_size": 16,  # both orders of a comparison, 8 judgments each
    "bf16": torch.cuda.is_available(),
    "use_cpu": not torch.cuda.is_available(),
}


def train(judge: str, prompts: str, out: str, **settings: object) -> GRPOTrainer:
    """Trains, saves the judge to `out` and returns the trainer; `settings` are those of TRL's `GRPOConfig`."""
    trainer = GRPOTrainer(
        model=judge,
        reward_funcs=longrm.verdict_reward(**WEIGHTS),
        args=GRPOConfig(output_dir=out, shuffle_dataset=False, **(DEFAULTS | settings)),
        train_dataset=datasets.load_dataset(prompts, split="train"),
    )
    trainer.train()
    trainer.save_model()
    return trainer


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    train(*sys.argv[1:])
