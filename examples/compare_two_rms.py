"""Choose between two reward models: which one judges better, and at which lengths?

python examples/compare_two_rms.py

Both judge the same comparisons, so a small difference shows with far fewer comparisons than two separate accuracies
would need.
"""

import subprocess
import sys
from pathlib import Path

import longrm

MODELS = {"short": "runs/examples/short/model", "wide": "runs/examples/wide/model"}  # yours
LENGTHS = [64, 128, 256, 512]  # tokens
N = 128  # comparisons at each length
OUT = Path("runs/examples/compare_two_rms")

# 1. Two tiny reward models that differ in their rotary base only. Drop this step when you set MODELS.
for name, settings in {"short": "", "wide": "--set model.rope_theta=100_000.0"}.items():
    train = f"-m longrm train bradley-terry --config demo/short {settings} --out runs/examples/{name}"
    subprocess.run([sys.executable, *train.split()], check=True)

# 2. Both judge the same contexts: lengths are counted with the tokenizer of the first model.
first, second = MODELS
for name, model in MODELS.items():
    longrm.probe(model, OUT / name, lengths=LENGTHS, n=N, settings={"probe.tokenizer": MODELS[first]})

# 3. The difference at each length. p is adjusted for the number of lengths.
found = longrm.compare(OUT / first, OUT / second)
print(f"\ntokens  {first:>7} {second:>7}  difference in points  p")
for length, part in found.by_length.items():
    gain = part.difference
    points = f"{100 * gain.value:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"
    print(f"{length:>6}  {part.first:7.1%} {part.second:7.1%}  {points:20}  {part.p_holm:.2g}")

# 4. The answer.
print(f"\n{found.headline}")
better = {length: part for length, part in found.by_length.items() if part.p_holm < 0.05}
for length, part in better.items():
    print(f"At {length} tokens choose {second if part.difference.value > 0 else first}.")
if len(better) < len(found.by_length):
    print("At the other lengths these comparisons do not decide: choose the cheaper one, or raise N.")
print("\nNext: set MODELS and LENGTHS at the top to your candidates and the lengths of your prompts.")
