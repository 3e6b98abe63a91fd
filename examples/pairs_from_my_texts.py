"""Make long-context preference pairs from my own documents.

pdftotext report.pdf examples/texts/report.txt     # for every PDF; then add questions to questions.csv
python examples/pairs_from_my_texts.py

Answers are judged on the passage that decides. The passage is then hidden in a long context of passages from the
other documents: the label costs a short prompt, and the reward model learns from a long one.
"""

import subprocess
import sys
from pathlib import Path

import longrm
from longrm.data import read

TEXTS = Path(__file__).parent / "texts"  # .txt and .md files, and questions.csv: file, question, answer
LENGTHS = [512, 1024]  # tokens of the contexts; the texts must be long enough to fill them
TOKENIZER = "approximate"  # the folder or Hub id of the model that you will train
JUDGE = "simulated:0"  # reads the answers in questions.csv; a real one is openai:URL#NAME
OUT = Path("runs/examples/pairs_from_my_texts")

# 1. Pairs of a right answer and one to another question. The counts show what every check dropped.
settings = {
    "documents.path": TEXTS,
    "candidates.synthetic": "true",
    "judge.model": JUDGE,
    "rows": "pairs",
    "lengths": LENGTHS,
    "tokenizer": TOKENIZER,
    "chunk_size": 64,  # tokens of a passage
    "max_chunks": 1,  # passages that decide a question
}
command = ["synthesize", "short-to-long", "--out", str(OUT / "pairs")]
command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
subprocess.run([sys.executable, "-m", "longrm", *command], check=True)

# 2. One of them.
pair = next(iter(read(OUT / "pairs/rows"))).comparison
prompt, (evidence, *_) = pair.prompt[-1]["content"], pair.evidence
chosen, rejected = (pair.responses[index][0]["content"] for index in pair.best_first())
print(f"\n{prompt[pair.question.start :]}\n  chosen:   {chosen}\n  rejected: {rejected}")
print(f"  evidence: characters {evidence.start:,} to {evidence.end:,} of {len(prompt):,}")

# 3. Does a rule without a model decide them? Then a reward model learns the rule. 50% is chance.
print("\nrule     decides right")
for rule in ("longest", "overlap"):
    run = longrm.evaluate(f"baseline:{rule}", f"file:{OUT / 'pairs/rows'}", OUT / rule)
    print(f"{rule:8} {run.items.correct.mean():.0%} of {len(run.items)} pairs")

print(
    "\nNext: set TEXTS, LENGTHS, TOKENIZER and JUDGE. The rejected answers here are those to other questions; for"
)
print("harder ones run longrm synthesize responses first, and set candidates.path to its output.")
