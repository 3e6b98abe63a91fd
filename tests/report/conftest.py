"""Synthetic run folders, written by the package's own classes: four models, six lengths, plausible curves."""

import random
import re
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from longrm.attribution.records import (
    ATTRIBUTIONS,
    AttributionRecord,
    EvidenceFound,
    SentenceWeight,
    Target,
    TopDrop,
    Trust,
)
from longrm.attribution.run import summary_of
from longrm.config import Config, to_toml
from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import AboveChanceReach, ContextBoundary, Crossing
from longrm.reward_models.trials import aggregate_trials
from longrm.runs.folder import RunFolder
from longrm.runs.logs import Log
from longrm.runs.records import UNDEFINED, ExampleRecord, GoldRecord, JudgmentRecord, StepRecord, TimingRecord
from longrm.types import CommittedAnswer, Cut, Outcome, Span, Trial

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
CURVES = {
    "untrained": (0.50, 0.51, 0.49, 0.50, 0.50, 0.50),
    "short": (0.99, 0.86, 0.66, 0.57, 0.53, 0.50),
    "control": (0.995, 0.95, 0.80, 0.66, 0.56, 0.52),
    "long": (0.995, 0.995, 0.99, 0.99, 0.98, 0.96),
}
JUDGES = {
    "judge: short": (0.96, 0.72, 0.64, 0.52, 0.50, 0.50),
    "judge: long": (0.99, 0.99, 0.98, 0.98, 0.97, 0.90),
}
PEOPLE = ("Marlow", "Ibsen", "Quill", "Tamsin", "Okoro", "Fenwick", "Ludo", "Anselm")
HOSTILE = "</script><script>alert(1)</script><img src=https://evil.example/x onerror=alert(2)>\u2028'\"&"


class Settings(Config):
    """The settings of any run."""

    seed: int = 0
    model: str = "tiny"


def example(name: str, length: int, responses: int, rng: random.Random) -> ExampleRecord:
    """A comparison of about `length` words with its evidence somewhere in the middle."""
    lines = [
        f"In the old ledger {rng.choice(PEOPLE)} holds item {rng.randrange(64)}." for _ in range(length // 8)
    ]
    fact = "The access code of Edmund is granite."
    place = rng.randrange(len(lines))
    before, after = " ".join(lines[:place]), " ".join(lines[place:])
    question = "Question: What is the access code of Edmund?"
    text = f"{before} {fact} {after}\n\n{question}"
    start = len(before) + 1
    return ExampleRecord(
        id=name,
        prompt=({"role": "user", "content": text},),
        responses=tuple(
            ({"role": "assistant", "content": f"The access code of Edmund is {word}."},)
            for word in ("granite", "lantern", "velvet", "copper")[:responses]
        ),
        context=(Span(0, 0, len(text) - len(question) - 2),),
        question=Span(0, len(text) - len(question), len(text)),
        evidence=(Span(0, start, start + len(fact)),),
    )


def answered(name: str, scores: tuple[float, ...] = (1.0, 0.0), **fields: Any) -> JudgmentRecord:
    """A comparison that was answered with these scores; a pair whose first response is chosen by default."""
    given = {"group": "g", "ranks": (1, 2), "order": tuple(range(len(scores)))} | fields
    return JudgmentRecord(id=name, outcome=Outcome.ANSWERED, scores=scores, **given)


def judgments(
    accuracies: tuple[float, ...], seed: int, *, responses: int = 2, groups: int = 40
) -> list[JudgmentRecord]:
    """Scores of a model that recognizes the best response at the given rates, one for each length."""
    rng = random.Random(seed)
    records = []
    for length, accuracy in zip(LENGTHS, accuracies, strict=True):
        for number in range(groups * 2):
            knows = rng.random() < 2 * accuracy - 1 if accuracy > 0.5 else False
            scores = [rng.gauss(0, 1) for _ in range(responses)]
            if knows:
                scores = [score - 4 * index for index, score in enumerate(sorted(scores, reverse=True))]
            records.append(
                answered(
                    f"records-{length}-{responses}-{number:04}",
                    tuple(scores),
                    group=f"{length}-{number // 2}",
                    ranks=tuple(range(1, responses + 1)),
                    order=tuple(rng.sample(range(responses), responses)),
                    length=length,
                    depth=(number % 10) / 9,
                    task="records",
                )
            )
    return records


def written(
    seed: int, *, votes: int = 2, groups: int = 24, lengths: tuple[int, ...] = (1024, 4096)
) -> list[JudgmentRecord]:
    """A generative judge in both orders, with every failure: some comparisons were cut, unparsed, truncated or retried,
    or the judge contradicts itself or ignores the context."""
    rng = random.Random(seed)
    records = []
    for number in range(groups * 2):
        length, task = lengths[number % len(lengths)], ("Cite", "Code", "Math")[number % 3]
        orders = [order for order in ((1, 0), (0, 1)) for _ in range(votes)]
        trials = tuple(_trial(order, number, rng) for order in orders)
        whole = aggregate_trials(trials)
        records.append(
            JudgmentRecord(
                id=f"{task}-{length}-{number:04}",
                group=f"{number // 2}",
                outcome=whole.outcome,
                ranks=(1, 2),
                order=(1, 0),
                scores=whole.scores,
                length=length,
                task=task,
                subtype="inter" if number % 2 else "intra",
                characters=(100 + 7 * (number % 5), 115),
                cut=Cut("middle", 300 + number) if number % 8 == 3 else None,
                trials=trials,
                context_check=("same", "changed", "unanswered")[number % 3],
                committed=CommittedAnswer("amber", Outcome.ANSWERED, number % 5 < 3),
                baselines={"longest": (0.0, 1.0), "overlap": (float(number % 3), 1.0)},
            )
        )
    return records


def _trial(order: tuple[int, int], number: int, rng: random.Random) -> Trial:
    said = f"<think>Is it {number}?</think>The first one names the code. "
    if number % 16 == 5:
        return Trial(order=order, outcome=Outcome.UNPARSED, explanation=said, detail="no verdict", attempts=2)
    if number % 16 == 9:
        return Trial(order=order, outcome=Outcome.TRUNCATED, explanation=said, detail="ended at 64 tokens")
    best = order[0] if rng.random() < 0.3 else int(rng.random() < 0.2)
    verdict = "A" if order[0] == best else "B"
    scores = (1.0, 0.0) if best == 0 else (0.0, 1.0)
    return Trial(
        order=order,
        outcome=Outcome.ANSWERED,
        scores=scores,
        explanation=f"{said}[[{verdict}]]",
        contradicted=number % 7 == 0,
    )


AUDIT = {
    "comparisons": 48,
    "findings": {
        "duplicates": {
            "what": "comparisons that came before",
            "count": 2,
            "examples": ["Cite/1", "<b>Cite/2"],
        },
        "empty_responses": {"what": "comparisons with an empty response", "count": 0, "examples": []},
    },
}


def write_evaluation(
    folder: Path,
    records: list[JudgmentRecord],
    *,
    model: str = "tiny",
    finished: bool = True,
    kept: int = 3,
    added: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """An evaluation's run folder; its examples are the same whatever the judgments.

    `options` go to `summarize`, and what is `added` into the summary that it makes.
    """
    rng = random.Random(7)
    with RunFolder(folder, "evaluation", Settings(model=model)) as run:
        with Log(folder / "judgments.jsonl", JudgmentRecord) as log:
            log.append(*(replace(record, ranks=None) for record in records))
        with Log(folder / "gold.jsonl", GoldRecord) as log:
            log.append(*(GoldRecord(record.id, record.ranks, f"of {record.id}") for record in records))
        with Log(folder / "examples.jsonl", ExampleRecord) as log:
            for record in records:
                if kept and record.length and int(record.id[-4:]) < kept:
                    log.append(example(record.id, record.length, len(record.order), rng))
        summary = summarize(records, model=model, bench="probe", resamples=200, **options).to_dict() | (
            added or {}
        )
        if finished:
            run.write_summary(summary)
    return summary


def explained(example: ExampleRecord, *, shown: bool = True, digest: str = "") -> AttributionRecord:
    """An attribution in which the evidence raises the lead of the first response, and the next sentence lowers it."""
    text, (fact,) = example.prompt[0]["content"], example.evidence
    ends = [found.end() for found in re.finditer(r"\. ?", text[: example.context[0].end])]
    spans = list(pairwise([0, *ends]))
    at = next(number for number, (_, end) in enumerate(spans) if end > fact.start)
    weights = {at: 2.0, at + 1: -1.0, 0: 0.25}
    sentences = tuple(
        SentenceWeight(0, start, end, weights.get(number, 0.0)) for number, (start, end) in enumerate(spans)
    )
    top = TopDrop(1, 2.0, 0.25, 0.125, 1.75)
    trust = Trust(shown, "" if shown else "predicted & true differ", 0.9, 3.0, 2.0, 0.25, 6.25, (top,), ())
    return AttributionRecord(
        example.id,
        Target(0, 1),
        example.id,
        int(example.id.split("-")[1]),
        0.5,
        True,
        sentences,
        trust,
        EvidenceFound(1.0, 1.0, 2 / 3.25),
        tokens_computed=500,
        prompts=9,
        digest=digest or f"of {example.id}",
    )


def write_attribution(
    folder: Path, evaluation: Path, *, model: str = "tiny", **how: Any
) -> list[AttributionRecord]:
    """An attribution of the comparisons that an evaluation keeps in full; `how` goes to `explained`."""
    examples = list(Log(evaluation / "examples.jsonl", ExampleRecord))
    records = [explained(example, **how) for example in examples]
    with RunFolder(folder, "attribution", Settings(model=model)) as run:
        with Log(folder / ATTRIBUTIONS, AttributionRecord) as log:
            log.append(*records)
        with Log(folder / "examples.jsonl", ExampleRecord) as log:
            log.append(*examples)
        run.write_summary(summary_of(records, model, "probe").to_dict())
    return records


def write_training(
    folder: Path,
    *,
    steps: int = 200,
    start: int = 24,
    end: int = 128,
    timed: bool = True,
    held_out: dict[int, float] | None = None,
) -> None:
    """A training run whose loss falls while its contexts grow; `held_out` is about its accuracy in evaluations."""
    rng = random.Random(3)
    with RunFolder(folder, "training", Settings()) as run:
        with Log(folder / "steps.jsonl", StepRecord) as log:
            for step in range(1, steps + 1):
                share = step / steps
                length = round(start * (end / start) ** share)
                loss = max(0.02, 0.693 * (1 - share) ** 2 + rng.gauss(0, 0.03))
                log.append(StepRecord(step, loss, 1 - loss / 1.386, 1.0, 3e-3, length, 16 * length))
        if timed:
            with Log(folder / "timing.jsonl", TimingRecord) as log:
                for step in range(1, steps + 1):
                    log.append(TimingRecord(step, 4000, 0.05 + 0.02 * rng.random()))
        evaluations = None
        if held_out:
            values = {}
            for step, accuracy in held_out.items():
                records = judgments((accuracy,) * len(LENGTHS), step)
                summary = write_evaluation(folder / "evaluations" / str(step), records)
                values[str(step)] = summary["metrics"]["overall"]["pair_accuracy"]["value"]
            best = max(held_out, key=lambda step: (values[str(step)], -step))
            evaluations = {"metric": "pair_accuracy", "values": values, "best": best}
        run.write_summary(training_summary(steps) | {"evaluations": evaluations})


def training_summary(steps: int) -> dict[str, Any]:
    """The summary of a training."""
    return {
        "schema_version": 1,
        "kind": "training",
        "objective": "bradley_terry",
        "steps": steps,
        "tokens": 4000 * steps,
        "window": 20,
        "loss": 0.02,
        "accuracy": 0.98,
        "data": {},
        "evaluations": None,
        "model_step": steps,
    }


def write_groups(folder: Path, curves: dict[str, tuple[float, ...]] = CURVES) -> Path:
    """Runs of several models on pairs, in brief on best of 4, and three trainings; returns the file of their groups.

    The judges are a group of their own, with scores for single responses instead of best of 4.
    """
    groups: dict[str, dict[str, str]] = {}
    for number, (name, accuracies) in enumerate(curves.items()):
        judge = name.startswith("judge")
        exams = ("judges", "single scores") if judge else ("scalar models", "best of 4")
        for exam, responses in zip(exams, (2, 2 if judge else 4), strict=True):
            brief = exam == exams[1]
            records = judgments(
                accuracies, number + 10 * brief, responses=responses, groups=20 if brief else 40
            )
            place = f"{name}/{exam}".replace(" ", "_")
            kept = 1 if brief else 3
            write_evaluation(folder / place, records, model=name, scale="logit", kept=kept)
            groups.setdefault(exam, {})[name] = place
    for name, end in (("short", 128), ("control", 128), ("long", 4096)):
        write_training(folder / name / "training", end=end)
        groups.setdefault("trainings", {})[name] = f"{name}/training"
    settings = {
        "title": "Short and long",
        "notes": ["Read this first."],
        "groups": [
            {"title": title, "runs": runs, "brief": title in ("best of 4", "single scores")}
            for title, runs in groups.items()
        ],
        "contrasts": [["long", "control"], ["long", "short"]],
        "meanings": {name: f"the model {name}" for name in curves},
    }
    (folder / "report.toml").write_text(to_toml(settings))
    return folder / "report.toml"


def boundary(status: Any, at_least: int | None, below: int | None, value: float | None) -> ContextBoundary:
    """A boundary between 128 and 4,096 tokens."""
    outside = {"beyond_range": "beyond_range", "rising": "undefined", "not_monotone": "undefined"}
    side: Any = "within_range" if value else outside.get(status, "below_range")
    ends = {"value": value, "low": value and value - 30, "high": value and value + 40}
    return ContextBoundary(
        metric="pair_accuracy",
        chance=0.5,
        tau=0.75,
        status=status,
        at_least=at_least,
        below=below,
        estimate=Crossing(**ends, value_place=side, low_place=side, high_place=side),
        slope_per_doubling=UNDEFINED,
        above_chance_reach=AboveChanceReach(tokens=None, smallest_n=1, depends_on_n=True),
        effective_n={str(128 * 2**step): 300.0 for step in range(6)},
        pairs_to_resolve=None,
        headline="boundary",
    )


@pytest.fixture(scope="session")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of groups of runs; read only."""
    return write_groups(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """The functions above."""
    return sys.modules[__name__]
