"""A real instruction-tuned model, which judges by position, becomes a judge by reinforcement on its own judgments.

`rft` trains the recipe instruct_judge/rft; `shuffled` is the same with the rewards of a step shuffled among its
judgments (control); `grpo` is the same by GRPO. `judge` measures a model on held-out contexts in both orders, also
after contexts that have nothing to do with the question (control). Every command continues where it stopped.
"""

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from judge_rl import computed, shown, shuffled_rewards
from recording import circumstances

import longrm
from longrm.errors import RunError
from longrm.reading import read_json
from longrm.runs.records import Estimate
from longrm.training.settings import TrainingSettings
from longrm.training.train import train

RECIPES = Path(longrm.__file__).parent / "recipes" / "instruct_judge"
TEMPLATE = RECIPES / "judge.jinja"
HELD_OUT_SEED = 1_000_000  # of contexts that are measured on; no training comes so far
ARMS: dict[str, dict[str, Any]] = {
    "rft": {},
    "shuffled": {},
    "grpo": {"rollouts.advantage_estimator": "grpo"},
}


def trained(options: argparse.Namespace) -> None:
    """Trains an arm; prints what its judgments were like, step by step."""
    changes: dict[str, Any] = {
        "model.path": str(options.model),
        "data.world.template": str(TEMPLATE),
        **ARMS[options.command],
    }
    if options.steps:
        changes["optimizer.max_steps"] = options.steps
    run = options.out / options.command
    with shuffled_rewards() if options.command == "shuffled" else nullcontext():
        train(TrainingSettings.resolve(RECIPES / "rft.toml", changes), run)
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    print(
        json.dumps(
            {
                "arm": options.command,
                "tokens_computed": computed(run),
                "accuracy": [round(step["accuracy"], 3) for step in steps],
                "first_share": [round(step["losses"].get("first_share", -1), 3) for step in steps],
                **circumstances(options),
            }
        )
    )


def judged(options: argparse.Namespace) -> None:
    """Judges held-out contexts; prints accuracy with intervals, and whether both orders have the same verdict."""
    out = options.out / f"judged-{options.name}"
    settings = {
        "judge.format": "pairwise",
        **({} if options.default_prompt else {"judge.template": str(TEMPLATE)}),
        "judge.max_tokens": 32,
        "judge.retries": 0,
        "judging.baselines": [],
        "probe.seed": HELD_OUT_SEED,
        "probe.unrelated": options.unrelated,
    }
    model = str(options.judged or options.model)
    longrm.probe(model, out, lengths=options.lengths, tasks=options.worlds, n=options.n, settings=settings)
    summary = read_json(out / "summary.json", RunError)
    metrics, position = summary["metrics"], summary["position"] or {}

    def own(estimate: Any) -> Any:
        return estimate and shown(Estimate(**estimate))

    print(
        json.dumps(
            {
                "name": options.name,
                "n": metrics["overall"]["pair_accuracy"]["n"],
                "accuracy": own(metrics["overall"]["pair_accuracy"]),
                **{
                    kind: {key: own(cell["pair_accuracy"]) for key, cell in metrics[kind].items()}
                    for kind in ("by_length", "by_task")
                },
                "consistency": own(position.get("consistency")),
                "first_wins": own(position.get("first_wins")),
                **circumstances(options),
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="the instruction-tuned model")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--threads", type=int, default=1)
    commands = parser.add_subparsers(dest="command", required=True)
    for arm in ARMS:
        own = commands.add_parser(arm)
        own.add_argument("--steps", type=int, help="by default those of the recipe")
        own.set_defaults(run=trained)
    judge = commands.add_parser("judge")
    judge.add_argument("name", help="of the result")
    judge.add_argument("--judged", type=Path, help="a trained model or adapter; by default MODEL itself")
    judge.add_argument("--lengths", type=int, nargs="*", default=[256])
    judge.add_argument("--worlds", nargs="*", default=["single-fact", "two-hops"])
    judge.add_argument("--n", type=int, default=48, help="comparisons for each length and world")
    judge.add_argument("--default-prompt", action="store_true", help="not the prompt of the training")
    judge.add_argument("--unrelated", action="store_true", help="after contexts of other questions")
    judge.set_defaults(run=judged)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.run(options)


if __name__ == "__main__":
    main()
