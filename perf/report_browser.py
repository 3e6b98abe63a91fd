"""A report of several runs of realistic size: seconds and memory to write it, and response times in Chromium.

Every run judges the same comparisons, several per context of 4K to 128K words, and is right at a different rate, so
that the runs keep different comparisons in full. Prints one JSON line; `--fail` exits with an error if a limit is
missed.
"""

import argparse
import json
import os
import platform
import random
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from longrm.evaluation.evaluate import Evaluation
from longrm.evaluation.judge import ExampleSample
from longrm.evaluation.summarize import summarize
from longrm.reward_models.trials import aggregate_trials
from longrm.runs.folder import RunFolder
from longrm.runs.logs import EXAMPLES, GOLD, JUDGMENTS, Log, text_digest
from longrm.runs.records import ExampleRecord, GoldRecord, JudgmentRecord
from longrm.types import Outcome, Span, Trial

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.report.chromium import Page

LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
LIMITS = {
    "write_seconds": 10.0, "write_peak_mib": 1024.0, "page_mb": 60.0, "first_paint_ms": 1000.0,
    "filter_ms": 100.0, "open_ms": 200.0,
}  # fmt: skip
BROWSER = "document.querySelector('#viewer')"


class Words:
    """Text with the word frequencies of a language, so that it compresses to about a third."""

    def __init__(self, dice: random.Random, count: int = 20_000) -> None:
        parts = [
            "ka",
            "lo",
            "mi",
            "re",
            "tu",
            "sen",
            "dar",
            "vol",
            "pin",
            "est",
            "ora",
            "bel",
            "cum",
            "ith",
            "ang",
        ]
        self._dice = dice
        self._words = ["".join(dice.choices(parts, k=dice.randint(1, 3))) for _ in range(count)]
        self._weights = list(accumulate(1 / (rank + 3) for rank in range(count)))

    def draw(self, count: int) -> str:
        """This many words, in sentences."""
        words = self._dice.choices(self._words, cum_weights=self._weights, k=count)
        for place in range(11, count, 12):
            words[place] += "."
        return " ".join(words)


def made_examples(options: argparse.Namespace, words: Words) -> list[tuple[ExampleRecord, int, float]]:
    """The comparisons with their lengths and depths; neighbors share a context."""
    made = []
    for number in range(options.comparisons):
        length = LENGTHS[number // options.per_context % len(LENGTHS)]
        if number % options.per_context == 0:
            context = words.draw(int(length * 0.75))  # a token is about three quarters of a word
        depth = (number % 10) / 9
        start = context.find(" ", int(depth * (len(context) - 200))) + 1
        question = f"Question {number}: {words.draw(12)}?"
        prompt = ({"role": "user", "content": f"{context}\n\n{question}"},)
        answers = tuple(({"role": "assistant", "content": words.draw(120)},) for _ in range(2))
        ends = len(context) + 2, len(context) + 2 + len(question)
        evidence = (Span(0, start, start + 100),)
        made.append(
            (ExampleRecord(f"item-{number:05}", prompt, answers, (Span(0, 0, len(context)),), Span(0, *ends), evidence),
             length, depth)
        )  # fmt: skip
    return made


def record_of(example: ExampleRecord, number: int, length: int, depth: float, right: float, words: Words,
              dice: random.Random, per_context: int) -> JudgmentRecord:  # fmt: skip
    """The judgments of a generative judge of a comparison in both orders."""
    trials = []
    knows = dice.random() < right
    for order in ((0, 1), (1, 0)):
        scores = (1.0, 0.0) if knows else (0.0, 1.0)
        if dice.random() < 0.02:
            trials.append(
                Trial(order=order, outcome=Outcome.UNPARSED, explanation=words.draw(200), detail="no verdict")
            )
        else:
            trials.append(
                Trial(
                    order=order,
                    outcome=Outcome.ANSWERED,
                    scores=scores,
                    explanation=f"{words.draw(200)} [[A]]",
                )
            )
    whole = aggregate_trials(tuple(trials))
    return JudgmentRecord(
        id=example.id, group=str(number // per_context), outcome=whole.outcome,
        ranks=(1, 2), order=(0, 1), scores=whole.scores, length=length,
        tokens=length, depth=depth, task=("cite", "code", "math", "safety")[number % 4], trials=tuple(trials),
    )  # fmt: skip


def write_run(folder: Path, made: Sequence[tuple[ExampleRecord, int, float]], right: float, seed: int,
              per_context: int) -> None:  # fmt: skip
    dice = random.Random(seed)
    words, sample = Words(dice), ExampleSample(3)
    records = [
        record_of(example, number, length, depth, right, words, dice, per_context)
        for number, (example, length, depth) in enumerate(made)
    ]
    with RunFolder(folder, "evaluation", Evaluation(model=f"judge-{seed}", bench="file:made")) as run:
        with (
            Log(folder / JUDGMENTS, JudgmentRecord) as judged,
            Log(folder / GOLD, GoldRecord) as gold,
            Log(folder / EXAMPLES, ExampleRecord) as examples,
        ):
            for record, (example, *_) in zip(records, made, strict=True):
                judged.append(replace(record, ranks=None))
                gold.append(GoldRecord(record.id, (1, 2), text_digest(example.prompt, example.responses, ())))
                if sample.keeps(record):
                    examples.append(example)
        run.write_summary(
            summarize(records, model=f"judge-{seed}", bench="made", scale="verdict", resamples=200).to_dict()
        )


def written(runs: Sequence[Path], out: Path) -> dict[str, float]:
    """Writes the report with the command, in a new process."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "longrm", "report", *map(str, runs), "--out", str(out)]
    subprocess.run(command, check=True, stdout=sys.stderr)  # standard output is for the figures alone
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {
        "write_seconds": seconds,
        "write_peak_mib": peak,
        "page_mb": out.stat().st_size / 1e6,
    }


AFTER = """(async () => {
  const start = performance.now();
  %s;
  while (!(%s)) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
})()"""


def answered(out: Path, repeats: int) -> dict[str, float]:
    """Milliseconds until the page shows a requested state; the slowest of all repetitions each."""
    paints, filters, opens = [], [], []
    with Page() as page:
        for _ in range(repeats):
            page.open("about:blank")
            page.open(out)
            page.until(f"{BROWSER}.dataset.ready", 60)
            paints.append(page.value("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        for name, value in (("outcome", "wrong"), ("length", "131072"), ("q", "ka"), ("sort", "lowest")):
            done = f"{BROWSER}.querySelector('[role=status]').textContent"
            fill = f"const field = {BROWSER}.querySelector('[name={name}]'); field.value = '{value}'; " \
                "field.dispatchEvent(new Event('input', {bubbles: true}))"  # fmt: skip
            filters.append(page.value(AFTER % (fill, done)))
        links = page.value(f"[...{BROWSER}.querySelectorAll('.list tbody a')].map(a => a.textContent)")
        for key in links[: 4 * repeats]:
            follow = f"location.hash = '#items?item={key}'"
            opens.append(page.value(AFTER % (follow, f"{BROWSER}.dataset.shown === '{key}'")))
        assert not page.problems, page.problems
    return {
        "first_paint_ms": max(paints), "filter_ms": max(filters), "open_ms": max(opens),
        "open_median_ms": statistics.median(opens),
    }  # fmt: skip


def measured(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    made = made_examples(options, Words(random.Random(0)))
    rates = [0.9 - 0.1 * number for number in range(options.runs)]
    runs = [folder / f"run-{number}" for number in range(options.runs)]
    for number, (run, right) in enumerate(zip(runs, rates, strict=True)):
        write_run(run, made, right, number, options.per_context)
    texts = sum(len(example.prompt[0]["content"]) for example, *_ in made)
    held = {"contexts_mb": texts / options.per_context / 1e6}
    held["examples_mb"] = sum((run / EXAMPLES).stat().st_size for run in runs) / 1e6
    del made
    out = folder / "report.html"
    return held | written(runs, out) | answered(out, options.repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=1900)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--per-context", type=int, default=4, help="comparisons that share a context")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--fail", action="store_true", help="exit with an error if a limit is missed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(options, Path(folder))
    missed = [name for name, limit in LIMITS.items() if found[name] > limit]
    print(json.dumps({
        "command": "python " + shlex.join(sys.argv), "machine": f"{os.cpu_count()}-core {platform.machine()} CPU",
        **{name: round(value, 2) for name, value in found.items()}, "limits": LIMITS, "missed": missed,
    }))  # fmt: skip
    if missed and options.fail:
        sys.exit(f"over the limit: {', '.join(missed)}")


if __name__ == "__main__":
    main()
