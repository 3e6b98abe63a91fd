"""Measure how long a context can be before my reward model only guesses.

python examples/judge_my_rm.py

The contexts are generated. Each hides one fact, and the two responses to a question about it differ in that fact.
"""

import subprocess
import sys
from pathlib import Path

import longrm

MODEL = "runs/examples/short/model"  # yours: a folder, a Hub id or openai:URL#NAME
LENGTHS = [64, 128, 256, 512, 1024]  # tokens, up to the context window of your model
N = 128  # comparisons at each length: separates 80% from 90% (32 separate 50% from 90%)
OUT = Path("runs/examples/judge_my_rm")

# 1. A tiny reward model that never saw more than 128 tokens. Drop this step when you set MODEL.
train = "-m longrm train bradley-terry --config demo/short --out runs/examples/short"
subprocess.run([sys.executable, *train.split()], check=True)

# 2. Judge every context. The same call continues a killed run, and returns a finished one.
run = longrm.probe(MODEL, OUT, lengths=LENGTHS, n=N)

# 3. Accuracy by length with 95% intervals; chance is 50%.
print("\ntokens  accuracy")
for length, metrics in run.summary.metrics.by_length.items():
    accuracy = metrics["pair_accuracy"]
    print(f"{length:>6}  {accuracy.value:6.1%} [{accuracy.low:.1%}, {accuracy.high:.1%}]")

# 4. The boundary: where accuracy falls below 75%, the middle between chance and 100%.
boundary = run.summary.boundary
print(f"\nabove {boundary.tau:.0%} up to {boundary.at_least} tokens, below it from {boundary.below} on")

# 5. The worst comparisons: the rejected response leads by most.
for item in run.items.nsmallest(3, "margin").itertuples():
    responses = [response[0]["content"] for response in run.examples[item.id].responses]
    print(f"\n{item.length} tokens, evidence at {item.depth:.0%} of the context, margin {item.margin:.1f}")
    for response, rank, score in zip(responses, item.gold, item.scores, strict=True):
        print(f"  {'chosen  ' if rank == 1 else 'rejected'} {score:5.1f}  {response}")

print(f"\nAll comparisons on one page: longrm report {OUT} --out report.html")
print("Next: set MODEL and LENGTHS at the top, and choose another OUT.")
