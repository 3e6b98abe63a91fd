"""Train a policy with TRL's GRPO, rewarded by a reward model that reads the context.

python examples/grpo_long_rm.py

TRL calls the reward with all completions of a step. longrm reads the prompt of each group once, however long it is.
"""

from pathlib import Path

import torch
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

import longrm
from longrm.data import write
from longrm.worlds import WorldPlan, generate, words_tokenizer

POLICY = "runs/examples/policy/model"  # yours: a folder or Hub id of a language model
REWARD_MODEL = "runs/examples/short/model"  # yours, as in judge_my_rm.py
LENGTH = 64  # tokens of the prompts
PROMPTS = 16  # few, so that the policy learns them in a minute; train on thousands
STEPS = 24
OUT = Path("runs/examples/grpo_long_rm")

# 1. Prompts (rows with a column `prompt`), a tiny reward model, and a tiny policy that often answers with a wrong word.
prompts = OUT / "prompts.jsonl"
OUT.mkdir(parents=True, exist_ok=True)
write(prompts, generate(WorldPlan("records", LENGTH), PROMPTS, words_tokenizer()))
longrm.train("bradley-terry", recipe="demo/short", out="runs/examples/short")
world = {"data.world.seed": 0, "data.world.completions": [], "lengths": [64]}
longrm.train("sft", recipe="demo/generative_base", max_steps=160, out="runs/examples/policy", **world)

# 2. Is the reward model reliable on these prompts? The policy learns its errors, too.
run = longrm.evaluate(REWARD_MODEL, f"file:{prompts}", OUT / "reliability")
print(f"\nThe reward model judges {run.items.correct.mean():.1%} of the prompts right.\n")


# 3. The truth, to compare the reward with. Drop it if your prompts have no known answers.
def right(completions, responses, ranks, **columns):
    rows = zip(completions, responses, ranks, strict=True)
    return [float(own[0]["content"].strip() == known[at.index(1)][0]["content"]) for own, known, at in rows]


# 4. GRPO: 8 prompts a step with 8 completions each. A weight of 0 logs the truth without learning from it.
reward = longrm.reward_function(REWARD_MODEL)
settings = {"max_steps": STEPS, "learning_rate": 1e-3, "logging_steps": STEPS // 4, "report_to": "none"}
settings |= {"num_generations": 8, "per_device_train_batch_size": 64, "max_completion_length": 16}
settings |= {"use_cpu": not torch.cuda.is_available(), "bf16": torch.cuda.is_available()}
args = GRPOConfig(str(OUT), reward_weights=[1.0, 0.0], **settings)
data = load_dataset("json", data_files=str(prompts), split="train")
trainer = GRPOTrainer(model=POLICY, reward_funcs=[reward, right], args=args, train_dataset=data)
trainer.train()

print(f"\nThe policy is in {OUT}/checkpoint-{STEPS}.\n\nsteps  reward  right answers")
for log in trainer.state.log_history[:-1]:
    print(f"{log['step']:>5}  {log['reward']:6.2f}  {log['rewards/right/mean']:.0%}")
print("\nNext: set POLICY, REWARD_MODEL and the prompts, which the reward model must judge reliably.")
