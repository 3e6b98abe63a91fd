"""Memory of each comparison in a large evaluation: records are read in a stream, and kept as columns."""

import tracemalloc
from dataclasses import replace

import numpy as np

from longrm.evaluation.compare import compare
from longrm.evaluation.evaluate import Evaluation
from longrm.evaluation.read_run import Run
from longrm.evaluation.summarize import summarize
from longrm.reward_models.trials import aggregate_trials
from longrm.runs.folder import RunFolder
from longrm.runs.logs import GOLD, JUDGMENTS, Log
from longrm.runs.records import GoldRecord, JudgmentRecord
from longrm.types import Outcome, Trial

BOUND = 1_500  # bytes of a comparison in one run; twice as many if its record is kept


def write(folder, count, accuracy):
    """Pairs judged in both orders, 50 of each context."""
    rng = np.random.default_rng(int(100 * accuracy))
    with (
        RunFolder(folder, "evaluation", Evaluation(model="tiny", bench="probe")),
        Log(folder / JUDGMENTS, JudgmentRecord) as judgments,
        Log(folder / GOLD, GoldRecord) as gold,
    ):
        for number in range(count):
            trials = tuple(
                Trial(
                    order=order,
                    outcome=Outcome.ANSWERED,
                    scores=(1.0, 0.0) if rng.random() < accuracy else (0.0, 1.0),
                    explanation=f"In {number} the first response names what the entry says.",
                )
                for order in ((0, 1), (1, 0))
            )
            place = {"length": 1024 << number // 50 % 4, "depth": number % 11 / 10, "task": "Cite"}
            baselines = {name: (float(number % 7), 3.0) for name in ("longest", "overlap", "bm25")}
            name, group = f"pair-{number}", f"context-{number // 50}"
            record = JudgmentRecord.of(
                aggregate_trials(trials), id=name, group=group, trials=trials, baselines=baselines, **place
            )
            judgments.append(record)
            gold.append(GoldRecord(name, (1, 2), f"text {number}"))
    return folder


def summarize_run(folder):
    records = Run(folder).judgments
    summary = summarize(records, model="tiny", bench="probe", scale="verdict", resamples=100)
    with RunFolder(folder, "evaluation", Evaluation(model="tiny", bench="probe")) as run:
        run.write_summary(summary.to_dict())


def peak(function, *arguments):
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_comparison_takes_less_memory_than_its_record(tmp_path):
    peaks = []
    for count in (500, 2500):
        runs = [write(tmp_path / f"{count}-{a}", count, a) for a in (0.7, 0.8)]
        for run in runs:
            summarize_run(run)  # also loads what is loaded once
        peaks.append((peak(summarize_run, runs[0]), peak(compare, *runs)))
    summarized, compared = ((large - small) / 2000 for small, large in zip(*peaks, strict=True))
    assert summarized < BOUND
    assert compared < 2 * BOUND
    # Negative control: the records themselves
    kept = []
    records = Run(runs[0]).judgments
    assert peak(kept.extend, map(replace, records)) / len(records) > BOUND
