"""A tiny process reward model learns which steps of an agent are wrong; how far back it judges them.

The world `trajectory` makes everything. All arms start from one model that finds facts in contexts of up to 128 tokens
(recipe demo/short), and train on labels of steps (`longrm train prm`):

- `short`: trajectories of up to 256 tokens;
- `control`: from `short`, as many tokens again of up to 256;
- `long`: from `short`, the same number of tokens, in trajectories of up to 2,048.

All are measured on unseen trajectories. A killed command continues. `judge` evaluates any model on a benchmark of
trajectories, and prints what was measured.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from recording import circumstances

import longrm
from longrm.data.trajectories import to_row
from longrm.errors import RunError
from longrm.jsonl import json_text
from longrm.reading import read_json
from longrm.runs.logs import STEPS, Log
from longrm.runs.records import StepRecord
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.worlds.trajectories import TrajectoryPlan, trajectories
from longrm.worlds.words_tokenizer import load_tokenizer

RECIPES = Path(longrm.__file__).parent / "recipes" / "demo"
HELD_OUT_SEED = 1_000_000
ROPE_THETA = 100_000.0
# Lengths in tokens, with the fewest and the most steps that fit them.
SHORT = ((72, 1, 1), (128, 2, 2), (192, 2, 3), (256, 3, 4))
LONG = (*SHORT[1:], (512, 4, 7), (1024, 4, 12), (2048, 4, 12))
METRICS = ("step_accuracy", "first_error_accuracy", "auc", "pair_accuracy")


def rows(file: Path, lengths: Sequence[tuple[int, int, int]], tokens: int, seed: int) -> Path:
    """Trajectories of these lengths, with about as many tokens of each, shuffled by the training."""
    if not file.exists():
        counts, made = load_tokenizer("words"), list[dict[str, Any]]()
        for length, fewest, most in lengths:
            plan = TrajectoryPlan(length, steps=(fewest, most), per_group=4, seed=seed)
            made += map(to_row, trajectories(plan, max(4, tokens // len(lengths) // length), counts))
        for number, row in enumerate(made):
            row["id"] = f"{number}-{row['id']}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json_text(row) + "\n" for row in made))
    return file


def trained(
    out: Path, start: Path, data: Path, per_step: int, options: argparse.Namespace, seed: int
) -> Path:
    """Trains on labels of steps for one epoch."""
    changes = {
        "objective": "prm",
        "model.path": str(start / "model"),
        "model.rope_theta": ROPE_THETA,
        "data.path": str(data),
        "data.per_step": per_step,
        "optimizer.learning_rate": options.learning_rate,
        "optimizer.num_train_epochs": 1,
        "optimizer.lr_scheduler_type": "linear",
        "optimizer.warmup_steps": 0.05,
        "optimizer.weight_decay": 0.01,
        "memory.max_tokens_per_microbatch": 8192,
        "seed": seed,
    }
    train(TrainingSettings.resolve(None, changes), out)
    return out


def arms(options: argparse.Namespace, seed: int) -> Iterator[tuple[str, Path]]:
    """Yields the names and run folders of the trainings of a seed, as they end."""
    base, own, tokens = options.out / "base", options.out / str(seed), options.tokens
    train(TrainingSettings.resolve(RECIPES / "short.toml", {}), base)
    short = trained(
        own / "short", base, rows(own / "short.jsonl", SHORT, tokens, 10 * seed + 1), 32, options, seed
    )
    yield "short", short
    control = rows(own / "control.jsonl", SHORT, 2 * tokens, 10 * seed + 2)
    yield "control", trained(own / "control", short, control, 32, options, seed)
    long = rows(own / "long.jsonl", LONG, 2 * tokens, 10 * seed + 3)
    yield "long", trained(own / "long", short, long, 8, options, seed)


def measured(run: Any) -> dict[str, Any]:
    """What an evaluation of trajectories found, each number with its interval."""
    summary = read_json(run.path / "summary.json", RunError)

    def shown(found: dict[str, Any]) -> dict[str, Any]:
        return {name: [one["value"], one["low"], one["high"]] for name, one in found.items()}

    boundary = summary["boundary"] and summary["boundary"]["estimate"]
    return {
        "trajectories": summary["trajectories"],
        "steps": summary["steps"],
        "metrics": shown(summary["metrics"]),
        "by_length": {
            length: shown({name: found[name] for name in METRICS if name in found})
            for length, found in summary["by_length"].items()
        },
        "baselines": {rule: shown(found) for rule, found in summary["baselines"].items()},
        "success": shown(summary["success"]),
        "boundary": boundary and [boundary["value"], boundary["low"], boundary["high"]],
        "outcomes": summary["outcomes"],
        "cut": summary["cut"],
    }


def grow(options: argparse.Namespace) -> None:
    """Trains and measures all arms."""
    for seed in options.seeds:
        for name, folder in arms(options, seed):
            settings = {"probe.seed": HELD_OUT_SEED + seed}
            out = options.out / str(seed) / "measured" / name
            run = longrm.probe(
                str(folder / "model"),
                out,
                lengths=options.lengths,
                tasks="trajectory",
                n=options.n,
                settings=settings,
            )
            tokens = sum(record.tokens for record in Log(folder / STEPS, StepRecord))
            about = {"arm": name, "seed": seed, "tokens": tokens, **measured(run)}
            print(json.dumps(about | circumstances(options)), flush=True)


def judge(options: argparse.Namespace) -> None:
    """Evaluates a model on a benchmark."""
    settings = dict(one.split("=", 1) for one in options.set)
    run = longrm.evaluate(options.model, options.bench, options.out / options.name, settings)
    print(json.dumps({"name": options.name, **measured(run), **circumstances(options)}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--threads", type=int, default=1)
    commands = parser.add_subparsers(required=True)
    own = commands.add_parser("grow")
    own.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    own.add_argument(
        "--tokens", type=int, default=240_000, help="of the arm short; the others have twice as many"
    )
    own.add_argument("--learning-rate", type=float, default=3e-3)
    own.add_argument("--lengths", type=int, nargs="*", default=[256, 512, 1024, 2048])
    own.add_argument("--n", type=int, default=128, help="trajectories for each length")
    own.set_defaults(run=grow)
    own = commands.add_parser("judge")
    own.add_argument("name", help="of the result")
    own.add_argument("--model", required=True)
    own.add_argument("--bench", required=True)
    own.add_argument("--set", nargs="*", default=[], help="settings of longrm evaluate, as NAME=VALUE")
    own.set_defaults(run=judge)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.run(options)


if __name__ == "__main__":
    main()
