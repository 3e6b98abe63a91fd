"""A pretrained model of 135M parameters that never writes a verdict becomes a judge, by SFT and then by GRPO.

`data` writes the rows, `sft` trains on judgments to imitate, `judge` evaluates a model on held-out contexts. Every
command continues where it stopped.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from measuring import circumstances

from longrm.benchmarks import Probe, ProbeCell
from longrm.errors import LongRMError
from longrm.evaluation.evaluation_run import Evaluation, run_evaluation
from longrm.judging import load_format
from longrm.modeling.saving import merge
from longrm.reward_models import JudgeSettings
from longrm.runs.logs import JUDGMENTS, Log
from longrm.runs.records import JudgmentRecord
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.types import Comparison, message_text, query_of
from longrm.worlds import WorldPlan, generate
from longrm.worlds.words_tokenizer import load_tokenizer

RECIPES = Path(__file__).parents[1] / "recipes" / "smollm2"
TEMPLATE = RECIPES / "judge_pairwise.jinja"
WORLD, TEXTS = "single-fact", ("minutes", "ledger", "mail", "chat")
LENGTHS = (256, 512, 1024)
SFT_SEED, PROMPTS_SEED, HELD_OUT_SEED = 10, 20, 1_000_000
"""Seeds of the contexts: of the demonstrations, of the prompts for GRPO, and of the evaluations."""
JUDGE = JudgeSettings(format="pairwise", template=str(TEMPLATE), retries=0, max_tokens=64)


def comparisons(
    options: argparse.Namespace, length: int, n: int, seed: int, per_group: int
) -> Iterator[Comparison]:
    plan = WorldPlan(WORLD, length, per_group=per_group, seed=seed, texts=TEXTS)
    return generate(plan, n, load_tokenizer(str(options.model)))


def prompts(
    options: argparse.Namespace, rows: Iterator[Comparison]
) -> Iterator[tuple[Comparison, dict[str, Any]]]:
    """Each comparison in both orders, as a row of judge prompts."""
    format = load_format("pairwise", template=TEMPLATE)
    tokenizer = load_tokenizer(str(options.model))
    for row in rows:
        for order in ((0, 1), (1, 0)):
            ((message,),) = format.render(query_of(row, order))
            yield (
                row,
                {
                    "prompt": [message],
                    "gold": "AB"[order.index(row.best_first()[0])],
                    "order": list(order),
                    "id": row.id,
                    "group": row.group,
                    "length": len(tokenizer.generation_ids([message])),
                    "format": "pairwise",
                },
            )


def data(options: argparse.Namespace) -> None:
    """Writes demonstrations of 256 tokens, and prompts for GRPO of every length."""
    folder = options.out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    short = comparisons(options, LENGTHS[0], options.demonstrations // 2, SFT_SEED, 1)
    write(folder / "sft.jsonl", (demonstration(row, prompt) for row, prompt in prompts(options, short)))
    for length in LENGTHS:
        rows = comparisons(options, length, options.prompts // 2, PROMPTS_SEED, 2)
        write(folder / f"prompts-{length}.jsonl", (prompt for _, prompt in prompts(options, rows)))


def demonstration(row: Comparison, prompt: dict[str, Any]) -> dict[str, Any]:
    """Quotes the deciding sentence, then gives the verdict."""
    (span,) = row.evidence
    fact = message_text(row.prompt[span.message])[span.start : span.end]
    completion = f"The text says: {fact}\n[[{prompt['gold']}]]"
    return {"id": f"{row.id}-{prompt['order'][0]}", "prompt": prompt["prompt"], "completion": completion}


def write(file: Path, rows: Iterator[dict[str, Any]]) -> None:
    lines = [json.dumps(row) + "\n" for row in rows]
    file.write_text("".join(lines), encoding="utf-8")
    print(f"Wrote {len(lines)} rows to {file}")


def sft(options: argparse.Namespace) -> None:
    """Trains on the demonstrations and merges the adapter, so that GRPO can start from a plain model."""
    changes = {"model.path": str(options.model), "data.path": str(options.out / "data" / "sft.jsonl")}
    settings = TrainingSettings.resolve(RECIPES / "judge_sft.toml", changes)
    run = options.out / "sft"
    train(settings, run, progress=show)
    if not (run / "merged").exists():
        merge(run / "model", run / "merged")


def judge(options: argparse.Namespace) -> None:
    """Judges held-out contexts in both orders; prints and stores accuracy and the verdicts that could be read."""
    cell = ProbeCell(worlds=(WORLD,), lengths=options.lengths, groups=options.contexts, per_group=2)
    probe = Probe(seed=HELD_OUT_SEED, texts=TEXTS, cells=(cell,), tokenizer=str(options.model))
    model = options.judged or options.model
    settings = Evaluation.model_validate(
        {"model": str(model), "judge": JUDGE, "bench": "probe", "probe": probe}
    )
    run = options.out / f"judged-{options.name}"
    began = time.process_time()
    summary = run_evaluation(settings, run, progress=show).to_dict()
    result = {
        "name": options.name,
        "cpu_seconds": round(time.process_time() - began),
        "by_length": {
            length: {"pair_accuracy": metrics["pair_accuracy"], **verdicts(run, int(length))}
            for length, metrics in summary["metrics"]["by_length"].items()
        },
        **circumstances(options),
    }
    print(json.dumps(result))
    if options.results:
        with options.results.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(result) + "\n")


def verdicts(run: Path, length: int) -> dict[str, Any]:
    """Counts single verdicts: one per comparison and order."""
    records = [record for record in Log(run / JUDGMENTS, JudgmentRecord) if record.length == length]
    trials = [(record, trial) for record in records for trial in record.trials]
    parsed = [(record, trial) for record, trial in trials if trial.outcome == "answered"]
    right = sum(
        trial.scores.index(max(trial.scores)) == record.ranks.index(1) and len(set(trial.scores)) > 1
        for record, trial in parsed
        if record.ranks
    )
    shown_first = Counter(trial.scores[trial.order[0]] for _, trial in parsed)
    return {
        "verdicts": len(trials),
        "parsed": len(parsed),
        "right": right,
        "for_the_first": shown_first[1.0],
        "consistent": sum(
            len({trial.scores for trial in record.trials}) == 1
            for record in records
            if all(trial.outcome == "answered" for trial in record.trials)
        ),
    }


def show(label: str, done: int, total: int, note: str = "") -> None:
    print(f"{label}: {done}/{total} {note}".rstrip(), file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--model", type=Path, default=Path("runs/real-model"), help="folder of make real-model (%(default)s)"
    )
    common.add_argument(
        "--out", type=Path, default=Path("runs/real-judge"), help="folder of data and runs (%(default)s)"
    )
    common.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="threads of torch (%(default)s)"
    )
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("data", parents=[common], help="write demonstrations and prompts")
    making.add_argument("--demonstrations", type=int, default=400, help="rows for SFT (%(default)s)")
    making.add_argument("--prompts", type=int, default=1200, help="prompts per length (%(default)s)")
    making.set_defaults(run=data)
    training = commands.add_parser("sft", parents=[common], help="learn the form of a judgment")
    training.set_defaults(run=sft)
    judging = commands.add_parser("judge", parents=[common], help="evaluate a model on held-out contexts")
    judging.add_argument("name", help="of the result, such as before or sft")
    judging.add_argument("--judged", type=Path, help="folder of the model to evaluate (--model)")
    judging.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="of the contexts (all)")
    judging.add_argument("--contexts", type=int, default=20, help="per length, 2 pairs each (%(default)s)")
    judging.add_argument("--results", type=Path, help="JSONL file to add the result to")
    judging.set_defaults(run=judge)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    try:
        options.run(options)
    except LongRMError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
