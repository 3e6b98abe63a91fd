"""A pretrained model of 135M parameters that never writes a verdict becomes a judge, by SFT and then by GRPO.

`data` writes judgments to imitate, `sft` trains on them, `grpo` rewards right verdicts, and `judge` evaluates a model
on held-out contexts. Every command continues where it stopped.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from recording import circumstances

from longrm.benchmarks import Probe, ProbeCell
from longrm.errors import LongRMError
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.judging import load_format
from longrm.judging.judge_prompts import judge_prompt_rows
from longrm.modeling.saving import merge
from longrm.reward_models import JudgeSettings
from longrm.runs.logs import GOLD, JUDGMENTS, Log
from longrm.runs.records import GoldRecord, JudgmentRecord
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.types import message_text
from longrm.worlds import WorldPlan, generate
from longrm.worlds.words_tokenizer import load_tokenizer

RECIPES = Path(__file__).parents[1] / "src/longrm/recipes/smollm2"
TEMPLATE = RECIPES / "judge_pairwise.jinja"
WORLD, TEXTS = "single-fact", ("minutes", "ledger", "mail", "chat")
SHORT, LENGTHS = 128, (256, 512, 1024)
"""Tokens of the contexts: of demonstrations, and of evaluations."""
SFT_SEED, HELD_OUT_SEED = 10, 1_000_000
"""Seeds of the contexts: of demonstrations, and of evaluations; that of GRPO is in its recipe."""
DEMONSTRATIONS = "demonstrations.jsonl"
JUDGE = JudgeSettings(format="pairwise", template=str(TEMPLATE), retries=0, max_tokens=64)


def data(options: argparse.Namespace) -> None:
    """Writes short demonstrations: the sentence that decides, with the right verdict, in both orders."""
    tokenizer = load_tokenizer(str(options.model))
    format = load_format("pairwise", template=TEMPLATE)
    plan = WorldPlan(WORLD, SHORT, seed=SFT_SEED, texts=TEXTS)
    lines = []
    for row in generate(plan, options.demonstrations // 2, tokenizer):
        (span,) = row.evidence
        fact = message_text(row.prompt[span.message])[span.start : span.end].rstrip(".")
        for prompt in judge_prompt_rows(row, format, tokenizer=tokenizer):
            completion = f"{fact} [[{prompt['gold']}]]"
            lines.append(json.dumps({"prompt": prompt["prompt"], "completion": completion}) + "\n")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / DEMONSTRATIONS).write_text("".join(lines), encoding="utf-8")


def sft(options: argparse.Namespace) -> None:
    """Trains on the demonstrations, until the model keeps their form."""
    data = {"data.path": str(options.out / DEMONSTRATIONS)}
    trained(options, "sft", {"model.path": str(options.model), **data})


def grpo(options: argparse.Namespace) -> None:
    """Rewards right verdicts of the model that `sft` left."""
    start = {"model.path": str(options.out / "sft" / "merged"), "data.world.template": str(TEMPLATE)}
    trained(options, "grpo", start)


def trained(options: argparse.Namespace, stage: str, changes: dict[str, Any]) -> None:
    """Runs a recipe and merges its adapter, so that the next stage starts from a plain model."""
    run = options.out / stage
    train(TrainingSettings.resolve(RECIPES / f"judge_{stage}.toml", changes), run, progress=show)
    if not (run / "merged").exists():
        merge(run / "model", run / "merged")


def judge(options: argparse.Namespace) -> None:
    """Judges held-out contexts in both orders; prints and stores accuracy and the verdicts that could be read."""
    cell = ProbeCell(worlds=(WORLD,), lengths=options.lengths, groups=options.contexts, per_group=2)
    probe = Probe(seed=options.seed, texts=TEXTS, cells=(cell,), tokenizer=str(options.model))
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


def verdicts(run: Path, length: int) -> dict[str, int]:
    """Counts single verdicts, one for each comparison and order; a tie is not right."""
    gold = {record.id: record.ranks for record in Log(run / GOLD, GoldRecord)}
    records = [record for record in Log(run / JUDGMENTS, JudgmentRecord) if record.length == length]
    trials = [(gold[record.id], trial) for record in records for trial in record.trials]
    parsed = [(ranks, trial) for ranks, trial in trials if trial.outcome == "answered"]
    # Every comparison is a pair: scores and ranks have two entries, in the comparison's own order.
    return {
        "verdicts": len(trials),
        "parsed": len(parsed),
        "right": sum(trial.scores[ranks.index(1)] == 1 for ranks, trial in parsed if ranks),
        "for_the_first": sum(trial.scores[trial.order[0]] == 1 for _, trial in parsed),
        # The other order of an answered comparison is answered, too.
        "same_winner": sum(
            record.outcome == "answered" and len({trial.scores for trial in record.trials}) == 1
            for record in records
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
    making = commands.add_parser("data", parents=[common], help="write judgments to imitate")
    making.add_argument("--demonstrations", type=int, default=400, help="rows for SFT (%(default)s)")
    making.set_defaults(run=data)
    for stage, about in ((sft, "learn the form of a judgment"), (grpo, "learn to judge from rewards")):
        training = commands.add_parser(stage.__name__, parents=[common], help=about)
        training.set_defaults(run=stage)
    judging = commands.add_parser("judge", parents=[common], help="evaluate a model on held-out contexts")
    judging.add_argument("name", help="of the result, such as before or sft")
    judging.add_argument("--judged", type=Path, help="folder of the model to evaluate (--model)")
    judging.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="of the contexts (all)")
    judging.add_argument("--contexts", type=int, default=20, help="per length, 2 pairs each (%(default)s)")
    judging.add_argument(
        "--seed", type=int, default=HELD_OUT_SEED, help="of the contexts; another one for the last evaluation"
    )
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
