"""The value of the short-to-long recipe compared with naive long data, under a simulated judge (paper, section 3).

Both arms train a tiny discriminative model on the same rows: the same long contexts, questions and responses of a
generated world. Only the labels differ. The method's judge reads only the critical chunks; the naive judge reads the
long context and prefers the wrong response in more of the pairs (by the gap, in points). This does not show how large
the gap of a real judge is, only from which gap on the recipe pays for models this small.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from recording import circumstances
from scipy import stats

from longrm.benchmarks import Probe, ProbeCell
from longrm.clients import Completion
from longrm.data import write
from longrm.data.chunking import approximate_tokens
from longrm.data.formats import from_native_row
from longrm.demo import RECIPES
from longrm.evaluation.estimates import paired_difference
from longrm.evaluation.evaluate import Evaluation
from longrm.evaluation.evaluate import run_evaluation as evaluate
from longrm.evaluation.trials import JudgingSettings
from longrm.rng import Rng
from longrm.runs.judgments import Judgments
from longrm.synthesis.chunks import DistractorPool
from longrm.synthesis.documents import Candidate, Document
from longrm.synthesis.models import TaskRequest
from longrm.synthesis.pipeline import InputOutcome
from longrm.synthesis.recipes.short_to_long import JudgeLabeling, ShortToLongRecipe
from longrm.training.settings import TrainingSettings
from longrm.training.train import MODEL, train
from longrm.types import Comparison, Outcome, message_text, text_of
from longrm.worlds import WorldPlan, generate, words_tokenizer

# Fixed before any training of the sweep, and never changed after one.
ERROR_SHORT = 0.05
"""The share of pairs in which the judge prefers the wrong response, where it reads the short context."""
GAPS = (0.0, 0.1, 0.2, 0.3)
"""What is added to it where the judge reads the long context."""
CONTROL = 0.45
"""With this gap half of the naive labels are wrong, so nothing can be learned from them; trained last."""
SEEDS = (0, 1, 2, 3)
"""Each has documents, errors of the judge, a starting model, an order of the rows and an exam of its own."""

ROWS = 480
LENGTHS = (256, 512)
"""Tokens of the rows; the starting model knows contexts of up to 128."""
DOCUMENT = 640
"""Tokens of a document, whose other chunks pad its rows."""
RECIPE: dict[str, Any] = {
    "objective": "bradley_terry",
    "plateau_steps": 0,
    "model": {"rope_theta": 100_000.0},
    "data": {"per_step": 12},
    "optimizer": {
        "num_train_epochs": 2,
        "learning_rate": 2e-3,
        "lr_scheduler_type": "linear",
        "warmup_steps": 0.05,
        "weight_decay": 0.01,
    },
}
EXAM = ProbeCell(lengths=(512,), groups=128, per_group=4)
"""Held-out pairs at the longest of these lengths."""
_SUBJECT = re.compile(r"of (\w+)\?")


class Arm(NamedTuple):
    """One training.

    Attributes:
        name: "method" or "naive".
        gap: How much more often the naive judge errs.
    """

    name: str
    gap: float = 0.0

    @property
    def reads(self) -> str:
        """The context that the judge reads."""
        return "short" if self.name == "method" else "long"

    @property
    def error(self) -> float:
        """The planned share of wrong labels."""
        return round(ERROR_SHORT + self.gap, 6)

    @property
    def label(self) -> str:
        """The name of its folders."""
        return self.name if self.name == "method" else f"{self.name}-{100 * self.gap:.0f}"


METHOD = Arm("method")
ARMS = (METHOD, *(Arm("naive", gap) for gap in (*GAPS, CONTROL)))


class PairJudge:
    """Scores responses one by one, and prefers the wrong one in an exact share of the pairs.

    Which pairs these are is drawn anew for each of the two ways of reading; with a larger share more are added.

    Attributes:
        name: How rows call it.
        read: Approximate tokens of every prompt that it was shown.
    """

    def __init__(self, sources: Sequence[Document], arm: Arm, seed: int) -> None:
        self.name = f"simulated:{arm.error:g}"
        self.read: list[int] = []
        self._by_subject: dict[str, list[Document]] = {}
        for source in sources:
            self._by_subject.setdefault(_subject(source.question), []).append(source)
        drawn = [*Rng("wrong labels", seed, arm.reads).order([one.id for one in sources])]
        self._misjudged = {*drawn[: round(arm.error * len(drawn))]}

    async def ask(self, requests: Sequence[TaskRequest]) -> list[Completion]:
        """Answers every request alone, in the same order."""
        return [self._score(request) for request in requests]

    def _score(self, request: TaskRequest) -> Completion:
        assert request.task == "judge", "nothing else is asked"
        parts = request.parts
        self.read.append(approximate_tokens(text_of(request.messages)))
        (source,) = [
            source
            for source in self._by_subject[_subject(parts["question"])]
            if all(fact in parts["context"] for fact in _facts(source))
            and parts["response"] in [candidate.text for candidate in source.candidates]
        ]
        right = (parts["response"] == source.answer) != (source.id in self._misjudged)
        return Completion(Outcome.ANSWERED, f"[[{9 if right else 2}]]")


def sources_of(seed: int) -> list[Document]:
    """Documents of a generated world, each with a right and a wrong answer.

    What decides between the two are the fact that is asked for and the one that the wrong answer mistakes for it.
    """
    plan = WorldPlan("records", DOCUMENT, seed=500_000 + seed)
    return [_source(comparison) for comparison in generate(plan, ROWS, words_tokenizer())]


def _source(comparison: Comparison) -> Document:
    assert comparison.question is not None
    content = message_text(comparison.prompt[0])
    text = content[: comparison.context[0].end]
    answers = [text_of(response) for response in comparison.responses]
    right, wrong = (answers[place] for place in comparison.best_first())
    (fact,) = comparison.evidence
    mistaken = re.search(rf"[^.]*\b{re.escape(wrong.split()[-1])}", text)
    assert mistaken is not None, "a wrong answer holds the value of another fact"
    start = mistaken.start() + (mistaken[0][0] == " ")
    return Document(
        comparison.id,
        text,
        content[comparison.question.start : comparison.question.end],
        right,
        metadata={"evidence": [[fact.start, fact.end], [start, mistaken.end()]]},
        candidates=tuple(Candidate(comparison.id, "world", answer) for answer in answers),
    )


def _facts(document: Document) -> list[str]:
    return [document.text[start:end] for start, end in document.metadata["evidence"]]


def _subject(text: str) -> str:
    return str(_SUBJECT.findall(text)[-1])


def rows_of(sources: Sequence[Document], arm: Arm, seed: int) -> tuple[list[Comparison], float]:
    """The training rows of an arm, and the mean approximate tokens that its judge read."""
    judge = PairJudge(sources, arm, seed)
    recipe = ShortToLongRecipe.resolve(
        None,
        {
            "documents.path": "generated",
            "candidates.synthetic": True,
            "judge.model": judge.name,
            "rows": "pairs",
            "judge_reads": arm.reads,
            "lengths": LENGTHS,
            "tolerance": 32,
            "chunk_size": 32,
            "evidence_from": "given",
            "distractor_check": "none",  # no two facts of a world are about the same entity
            "in_document_share": 1.0,
            "seed": seed,
        },
    )
    labeling = JudgeLabeling(recipe, words_tokenizer(), DistractorPool([], []), judge)
    made = asyncio.run(_all_rows(labeling, sources))
    rows = [_row(source, one.rows) for source, one in zip(sources, made, strict=True)]
    return rows, float(np.mean(judge.read))


async def _all_rows(labeling: JudgeLabeling, sources: Sequence[Document]) -> list[InputOutcome]:
    return await asyncio.gather(*map(labeling.make_rows, sources))


def _row(source: Document, made: Sequence[Any]) -> Comparison:
    """A pair in the words that the `words` tokenizer knows, its responses in the document's order, without a margin."""
    (row,) = made
    pair = from_native_row(row, 0)
    (context,) = pair.context
    content = message_text(pair.prompt[context.message])[context.start : context.end]
    better = text_of(pair.responses[pair.best_first()[0]])
    texts = [candidate.text for candidate in source.candidates]
    return Comparison(
        id=source.id,
        group=source.id,
        prompt=({"role": "user", "content": f"{content}\n\n{source.question}"},),
        responses=tuple(({"role": "assistant", "content": text},) for text in texts),
        ranks=tuple(1 if text == better else 2 for text in texts),
    )


def label_error(sources: Sequence[Document], rows: Sequence[Comparison]) -> float:
    """The share of rows whose chosen response is the wrong one."""
    better = [text_of(row.responses[row.best_first()[0]]) for row in rows]
    return float(np.mean([text != one.answer for text, one in zip(better, sources, strict=True)]))


def start_of(seed: int, out: Path) -> Path:
    """Trains the starting model on contexts of up to 128 tokens, as the demo's first stage is."""
    changes = {"seed": seed, "data.world.seed": 10 * seed}
    train(TrainingSettings.resolve(RECIPES / "short.toml", changes), out / "start")
    return out / "start" / MODEL


def examined(model: Path, seed: int, out: Path) -> float:
    """Accuracy on held-out pairs."""
    probe = Probe(seed=1_000_000 + seed, cells=(EXAM,))
    summary = evaluate(
        Evaluation(model=str(model), bench="probe", probe=probe, judging=JudgingSettings(baselines=())), out
    ).to_dict()
    return float(summary["metrics"]["overall"]["pair_accuracy"]["value"])


def trained(arm: Arm, seed: int, out: Path) -> dict[str, Any]:
    """Trains and evaluates an arm; the rows are checked against the method's."""
    began = time.perf_counter()
    start = start_of(seed, out)
    sources = sources_of(seed)
    rows, read = rows_of(sources, arm, seed)
    others, _ = rows_of(sources, METHOD, seed)
    unlabelled = [[replace(row, ranks=None) for row in part] for part in (rows, others)]
    assert unlabelled[0] == unlabelled[1], "the arms differ in more than their labels"
    folder = out / arm.label
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "rows.jsonl", rows)
    source = {"path": str(folder / "rows.jsonl")}
    given = {"model": {"path": str(start)}, "data": source}
    settings = RECIPE | {name: RECIPE[name] | value for name, value in given.items()} | {"seed": seed}
    summary = train(
        TrainingSettings.model_validate({"objective": "bradley_terry"} | settings), folder / "training"
    )
    accuracy = examined(folder / "training" / MODEL, seed, folder / "exam")
    return {
        "kind": "training",
        "seed": seed,
        "arm": arm.name,
        "gap": arm.gap,
        "planned_error": arm.error,
        "label_error": label_error(sources, rows),
        "judge_read_words": read,
        "rows": len(rows),
        "steps": summary["steps"],
        "tokens": summary["tokens"],
        "start_accuracy": examined(start, seed, out / "start-exam"),
        "accuracy": accuracy,
        "seconds": time.perf_counter() - began,
    }


def advantages(out: Path, seeds: Sequence[int], found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """By gap, how much more the method's models judge right, over the seeds that are complete.

    A training is the unit of `low` and `high`: Student's interval over the seeds. `low_of_models` and `high_of_models`
    resample the exams' contexts and take the trained models as given.
    """
    by_key = {(one["seed"], one["arm"], one["gap"]): one for one in found}
    for gap in (*GAPS, CONTROL):
        done = [s for s in seeds if {(s, "method", 0.0), (s, "naive", gap)} <= by_key.keys()]
        if len(done) < 2:
            continue
        arms = [[by_key[s, *arm] for s in done] for arm in (("method", 0.0), ("naive", gap))]
        method, naive = (np.array([one["accuracy"] for one in arm]) for arm in arms)
        judged = [
            [record for s in done for record in Judgments(out / f"seed-{s}" / label / "exam")]
            for label in (METHOD.label, Arm("naive", gap).label)
        ]
        given = paired_difference(judged[0], judged[1])
        each = method - naive
        half = stats.t.ppf(0.975, len(done) - 1) * each.std(ddof=1) / len(done) ** 0.5
        yield {
            "kind": "advantage",
            "gap": gap,
            "seeds": done,
            "method": method.mean(),
            "naive": naive.mean(),
            "start": float(np.mean([one["start_accuracy"] for one in arms[0]])),
            "advantage": each.mean(),
            "low": each.mean() - half,
            "high": each.mean() + half,
            "low_of_models": given.low,
            "high_of_models": given.high,
            "pairs": given.n,
            "contexts": given.groups,
            "by_seed": each.tolist(),
            "label_errors": [float(np.mean([one["label_error"] for one in arm])) for arm in arms],
        }


def sweep(options: argparse.Namespace, around: dict[str, Any]) -> None:
    """Appends a line for every training that is not in the results yet."""
    known = {(one["seed"], one["arm"], one["gap"]) for one in results(options.results)}
    due = [(seed, arm) for arms in (ARMS[:-1], ARMS[-1:]) for seed in options.seeds for arm in arms]
    for seed, arm in due:
        if (seed, arm.name, arm.gap) in known:
            continue
        line = rounded(trained(arm, seed, options.out / f"seed-{seed}"))
        with options.results.open("a") as file:
            file.write(json.dumps(line | around) + "\n")
        print(json.dumps(line), file=sys.stderr, flush=True)


def results(path: Path) -> list[dict[str, Any]]:
    """The finished trainings."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [one for one in map(json.loads, lines) if one["kind"] == "training"]


def rounded(line: dict[str, Any]) -> dict[str, Any]:
    return {name: _rounded(value) for name, value in line.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(float(value), 4)
    if isinstance(value, dict):
        return rounded(value)
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def table(found: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "| gap | wrong labels, method / naive | method | naive | advantage | of these models |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        errors = " / ".join(f"{100 * error:.1f}%" for error in one["label_errors"])
        name = "coin" if one["gap"] == CONTROL else f"{100 * one['gap']:.0f}"
        spans = [f"[{_points(one[f'low{of}'])}, {_points(one[f'high{of}'])}]" for of in ("", "_of_models")]
        cells = [name, errors, _points(one["method"]), _points(one["naive"])]
        lines.append("| " + " | ".join([*cells, f"{_points(one['advantage'])} {spans[0]}", spans[1]]) + " |")
    return [*lines, *(f"\nBefore training: {_points(one['start'])}" for one in found[:1])]


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for rows, models and evaluations")
    parser.add_argument(
        "--results",
        type=Path,
        required=True,
        help="JSONL file with a line per training; these trainings are not repeated",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument(
        "--starts", action="store_true", help="only train the starting models, and print their accuracy"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON line per gap instead of the table"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.starts:
        for seed in options.seeds:
            found = examined(
                start_of(seed, options.out / f"seed-{seed}"), seed, options.out / f"seed-{seed}/start-exam"
            )
            print(json.dumps({"seed": seed, "accuracy": found}), flush=True)
        return
    around = circumstances(options)
    around["versions"] |= {"numpy": np.__version__, "scipy": scipy.__version__}
    sweep(options, around)
    lines = [rounded(one) for one in advantages(options.out, options.seeds, results(options.results))]
    print("\n".join([json.dumps(one | around) for one in lines] if options.json else table(lines)))


if __name__ == "__main__":
    main()
