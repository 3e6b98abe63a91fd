"""Does a small judge write verdicts that can be parsed, and do they depend on the order of the responses?

Judges generated contexts and short pairs of RMB in both orders, greedily, with the pairwise prompt; `--request`
replaces its last paragraph. The model is served by any OpenAI-compatible server.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import circumstances

import longrm
from longrm import benchmarks
from longrm.benchmarks import BenchmarkSource, Leval, Probe
from longrm.data import write_rows
from longrm.data.formats import to_native_row
from longrm.errors import LongRMError
from longrm.judging.pairwise import Pairwise
from longrm.runs.records import JudgmentRecord
from longrm.types import Comparison, text_of

WORLDS = ("single-fact", "two-hops")
LENGTH = 256  # tokens of the contexts


def settings_of(bench: str, options: argparse.Namespace) -> dict[str, Any]:
    """The settings of a benchmark."""
    if bench == "probe":
        groups = options.n // (2 * len(WORLDS))
        cells = [{"lengths": [LENGTH], "worlds": WORLDS, "groups": groups, "per_group": 2}]
        return {"bench": "probe", "probe.cells": cells, "probe.tokenizer": str(options.tokenizer)}
    pairs = options.rmb if options.rmb.is_file() else short_pairs(options)
    return {"bench": f"file:{pairs}", "source.limit": options.n}


def short_pairs(options: argparse.Namespace) -> Path:
    """Writes the short pairs of RMB to a file: a prompt of 1,000 tokens takes seconds on one core."""
    loaded = benchmarks.load(
        f"rmb:{options.rmb}", source=BenchmarkSource(), probe=Probe(), leval=Leval()
    ).comparisons
    file: Path = options.out / "rmb.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_rows(file, [to_native_row(one) for one in loaded if characters(one) <= options.most_characters])
    return file


def characters(pair: Comparison) -> int:
    return sum(map(len, map(text_of, [pair.prompt, *pair.responses])))


def counts(records: Sequence[JudgmentRecord]) -> dict[str, int]:
    """Counts over single answers (two a comparison), and over comparisons."""
    trials = [(record, trial) for record in records for trial in record.trials]
    parsed = [(record, trial) for record, trial in trials if trial.scores]
    return {
        "comparisons": len(records),
        "answers": len(trials),
        "verdicts_first_attempt": sum(trial.attempts == 1 for _, trial in parsed),
        "verdicts": len(parsed),
        "ties": sum(len({*trial.scores}) == 1 for _, trial in parsed),
        "for_the_first": sum(trial.scores[trial.order[0]] == 1 for _, trial in parsed),
        "right": sum(trial.scores[(record.ranks or ()).index(1)] == 1 for record, trial in parsed),
        # The same scores, in the comparison's own order, in both presented orders.
        "consistent": sum(
            len(record.scores) > 0 and len({trial.scores for trial in record.trials}) == 1
            for record in records
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="openai:URL#NAME")
    parser.add_argument("--tokenizer", type=Path, required=True, help="the model's folder or Hub id")
    parser.add_argument("--rmb", type=Path, help="folder Pairwise_set of RMB, or a file of its pairs")
    parser.add_argument("--name", required=True, help="of the prompt in the results, such as before")
    parser.add_argument(
        "--request", help="another last paragraph of the prompt: what to write, and in which form"
    )
    parser.add_argument("--n", type=int, default=100, help="comparisons of each benchmark (%(default)s)")
    parser.add_argument(
        "--most-characters", type=int, default=2000, help="of a pair of RMB with its prompt (%(default)s)"
    )
    parser.add_argument("--bench", choices=("probe", "rmb"), nargs="+", default=("probe", "rmb"))
    parser.add_argument("--max-tokens", type=int, default=256, help="of an answer (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of the server, for the record")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/judge-prompt"), help="folder of runs (%(default)s)"
    )
    parser.add_argument("--results", type=Path, help="JSONL file to add the results to")
    options = parser.parse_args()
    settings = {
        "judge.format": "pairwise",
        "judge.max_tokens": options.max_tokens,
        "judging.orders": "both",
        "remote.concurrency": 16,
    }
    if options.request:
        Pairwise.request = options.request
    for bench in options.bench:
        try:
            source = settings_of(bench, options)
            out = options.out / f"{options.name}-{bench}"
            run = longrm.evaluate(options.model, source["bench"], out, {**source, **settings})
        except LongRMError as error:
            raise SystemExit(f"error: {error}") from None
        outcomes = {"name": options.name, "bench": bench, **counts(run.judgments)}
        accuracy = run.evaluation.to_dict()["metrics"]["overall"]["pair_accuracy"]
        result = {**outcomes, "pair_accuracy": accuracy, **circumstances(options)}
        print(json.dumps(result))
        if options.results:
            with options.results.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
