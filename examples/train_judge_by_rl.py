"""Train a judge by reinforcement learning on its verdicts, with no judgments to imitate.

python examples/train_judge_by_rl.py

The judge writes what it read and a verdict, such as "Corimo: keeps bucket. [[A]]". The reward of a judgment is 1 if
its verdict is right.
"""

import subprocess
import sys
from pathlib import Path

import longrm

JUDGE = "runs/examples/judge-short/model"  # yours: a language model that writes verdicts most of the time
LENGTH = 256  # tokens of the contexts; the tiny judge learned to judge up to 128 by imitation
STEPS = 25  # 16 prompts with 8 judgments each
N = 128  # held-out comparisons
OUT = Path("runs/examples/train_judge_by_rl")
TEMPLATE = Path(longrm.__file__).parent / "recipes/demo/judge_pairwise.jinja"  # of the tiny judge's prompts


def train(command):
    subprocess.run([sys.executable, "-m", "longrm", "train", *command.split()], check=True)


def probe(model, out):
    settings = {"judge.format": "pairwise", "judge.template": str(TEMPLATE), "judge.max_tokens": 16}
    return longrm.probe(model, OUT / out, lengths=[LENGTH], n=N, settings=settings)


# 1. A tiny judge by imitation: first it finds facts, then it judges by them. Drop this step when you set JUDGE.
base, short = "runs/examples/judge-base", "runs/examples/judge-short"
train(f"sft --config demo/generative_base --out {base}")
start = f"--set model.path={base}/model"
train(f"sft --config demo/generative_short {start} --out {short}")

# 2. GRPO: of the 8 judgments of a prompt, those with more reward than the mean become likelier. The larger rotary
#    base stretches the positions that the judge knows.
options = f"--set model.path={JUDGE} --set curriculum.lengths=[{LENGTH}] --set optimizer.max_steps={STEPS}"
train(f"grpo --config demo/generative_grpo {options} --set model.rope_theta=3000.0 --out {OUT / 'training'}")

# 3. Before and after, on contexts that neither has seen.
before, after = probe(JUDGE, "before"), probe(str(OUT / "training/model"), "after")
print("\n        right  same verdict in both orders")
for name, run in {"before": before, "after": after}.items():
    print(f"{name:6}  {run.items.correct.mean():5.1%}  {run.summary.position.consistency.value:.1%}")
print(f"\n{longrm.compare(before.path, after.path).headline}")
print("\nNext: set JUDGE, and data.path in step 2: longrm synthesize judge-prompts makes it of your pairs.")
