"""How well judges use one criterion: on pairs of the world `checklist`, in which one of three criteria is broken.

Simulated judges err at a stated rate for each criterion, so the result is known. A local model judges by the log-odds
of one token. For the broken criterion, the script reports the share of right verdicts, ties counted half; for the two
others, the size of their leads compared with the lead of the broken one; and for the weighted mean of all, how often
the right response leads, compared with one general question to the same judge.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recording import circumstances

import longrm
from longrm.benchmarks import LoadedBenchmark
from longrm.evaluation.estimates import ratio
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.evaluation.table import codes_of
from longrm.runs.logs import JUDGMENTS, Log
from longrm.runs.records import JudgmentRecord
from longrm.types import Comparison
from longrm.worlds import WorldPlan, generate
from longrm.worlds.words_tokenizer import load_tokenizer


def judged(model: str, rows: Sequence[Comparison], **judge: Any) -> dict[str, JudgmentRecord]:
    """The judgments of an evaluation of the rows."""
    settings = Evaluation(model=model, bench="checklist", judge=judge)
    bench = LoadedBenchmark("checklist", rows)
    loaded = longrm.load(model, judge=settings.judge, gold=rows)
    with tempfile.TemporaryDirectory() as folder:
        run_evaluation(settings, Path(folder) / "run", bench=bench, model=loaded)
        return {one.id: one for one in Log(Path(folder) / "run" / JUDGMENTS, JudgmentRecord)}


def lead(scores: Sequence[float], ranks: Sequence[int]) -> float:
    """The lead of the response that gold ranks first."""
    first = ranks.index(1)
    return scores[first] - scores[1 - first]


def credit(value: float) -> float:
    return 0.5 if not value else float(value > 0)


def measure(model: str, length: int, n: int, seed: int, tokenizer: str) -> dict[str, Any]:
    rows = list(generate(WorldPlan("checklist", length, seed=seed), n, load_tokenizer(tokenizer)))
    in_general = judged(model, rows)
    general = [credit(lead(in_general[row.id].scores, tuple(row.ranks or ()))) for row in rows]
    return {
        "model": Path(model).name if "/" in model else model,
        "length": length,
        "n": n,
        "seed": seed,
        **by_criteria(model, rows),
        "asked_in_general_right": share(general, rows),
    }


def by_criteria(model: str, rows: Sequence[Comparison], **judge: Any) -> dict[str, Any]:
    """How often the broken criterion, and the weighted mean of all, name the right response; and how others lead.

    A missing verdict counts as a tie.
    """
    found, broken, intact, whole = judged(model, rows, rubrics="item", **judge), [], [], []
    for row in rows:
        record, told = found[row.id], row.metadata["criterion_ranks"]
        ranks = tuple(row.ranks or ())
        for criterion, gold in zip(record.criteria or [(0.0, 0.0)] * len(told), told, strict=True):
            (intact if len({*gold}) == 1 else broken).append(lead(criterion, ranks))
        whole.append(credit(lead(record.scores or (0.0, 0.0), ranks)))
    decided = statistics.fmean(map(abs, broken))
    return {
        "broken_criterion_right": share([credit(value) for value in broken], rows),
        "intact_to_broken_lead": statistics.fmean(map(abs, intact)) / decided if decided else None,
        "weighted_mean_right": share(whole, rows),
        "answered": statistics.fmean(bool(found[row.id].criteria) for row in rows),
    }


def share(values: Sequence[float], rows: Sequence[Comparison]) -> list[float | None]:
    """Their mean with its interval, over the groups of the rows."""
    groups = codes_of(row.group for row in rows)
    found = ratio(np.array(values), np.ones(len(rows)), groups, seed=0, resamples=2000)
    return [found.value, found.low, found.high]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", default=["simulated:0", "simulated:0.2"])
    parser.add_argument("--length", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--n", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", default="approximate")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for model in options.model:
        for length in options.length:
            found = measure(model, length, options.n, options.seed, options.tokenizer)
            print(json.dumps(found | circumstances(options)), flush=True)


if __name__ == "__main__":
    main()
