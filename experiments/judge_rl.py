"""A tiny judge of short contexts, trained on long ones by reinforcement on its verdicts or by imitation.

For every seed, SFT on contexts of up to 128 tokens makes the start. From it, at equal tokens computed:

- `grpo`: the recipe demo/generative_grpo;
- `sft`: imitation of right judgments on the same lengths;
- `shuffled`: as `grpo`, but the rewards of a step are shuffled among all of its judgments (control).

All are measured on unseen contexts, and `grpo` also on contexts that have nothing to do with the question, where only
guessing is left (control). Tokens computed are those that a forward pass reads, and three times those of a step of
training, as the backward pass costs twice the forward pass.
"""

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from recording import circumstances

import longrm
from longrm.errors import ConfigError, RunError
from longrm.reading import read_json, read_toml
from longrm.reward_models.verdict_rewards import VerdictReward, VerdictScore
from longrm.runs.logs import Log
from longrm.runs.records import RolloutRecord, StepRecord
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.training.world_judgments import TEMPLATES

RECIPES = Path(longrm.__file__).parent / "recipes" / "demo"
_MEASURED_SEED = 1_000_000  # of contexts that are measured on; no training comes so far


class Shuffled(VerdictReward):
    """Gives every judgment the reward of a random one of the same call."""

    def judge(
        self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str], tokens: Sequence[int | None]
    ) -> list[VerdictScore]:
        """As `VerdictReward.judge`, shuffled."""
        scores = super().judge(rows, texts, tokens)
        random.Random("\0".join(texts)).shuffle(scores)
        return scores


@contextmanager
def rewarded_by(reward: type[VerdictReward]) -> Iterator[None]:
    from longrm.training import rollouts

    rollouts.VerdictReward, before = reward, rollouts.VerdictReward
    try:
        yield
    finally:
        rollouts.VerdictReward = before


def trained(out: Path, recipe: str, **changes: Any) -> Path:
    """Trains a recipe of the demo into a folder, or continues there."""
    named = {name.replace("__", "."): value for name, value in changes.items()}
    train(TrainingSettings.resolve(RECIPES / f"{recipe}.toml", named), out)
    return out


def computed(run: Path) -> int:
    """Tokens that a training computed, forward."""
    update = 3 * sum(record.tokens for record in Log(run / "steps.jsonl", StepRecord))
    groups = list(Log(run / "rollouts.jsonl", RolloutRecord)) if (run / "rollouts.jsonl").exists() else []
    return update + sum(group.length + sum(map(len, group.tokens)) for group in groups)


def arms(out: Path, seed: int, steps: int) -> dict[str, Path]:
    """The run folders of all trainings of a seed."""
    data = 10 * seed  # as the demo does: no two trainings read the same contexts
    base = trained(out / "base", "generative_base", seed=seed, data__world__seed=data + 6)
    start = trained(
        out / "start",
        "generative_short",
        seed=seed,
        data__world__seed=data + 7,
        model__path=str(base / "model"),
    )
    long = {"seed": seed, "data__world__seed": data + 8, "model__path": str(start / "model")}
    grpo = trained(out / "grpo", "generative_grpo", **long, optimizer__max_steps=steps)
    with rewarded_by(Shuffled):
        shuffled = trained(out / "shuffled", "generative_grpo", **long, optimizer__max_steps=steps)
    curriculum = read_toml(RECIPES / "generative_grpo.toml", ConfigError)["curriculum"]
    imitation = {
        **long,
        "data__world__completions": ["pairwise"],
        "curriculum__lengths": curriculum["lengths"],
        "curriculum__ramp": curriculum["ramp"],
    }
    tenth = trained(out / "sft-tenth", "generative_long", **imitation, optimizer__max_steps=10)
    same = round(10 * computed(grpo) / computed(tenth))
    sft = trained(out / "sft", "generative_long", **imitation, optimizer__max_steps=same)
    return {"start": start, "grpo": grpo, "sft": sft, "shuffled": shuffled}


def measured(
    model: Path, out: Path, options: argparse.Namespace, seed: int, *, unrelated: bool = False
) -> dict[str, Any]:
    """Accuracy by length with intervals, and position consistency."""
    settings = {
        "judge.format": "pairwise",
        "judge.template": str(TEMPLATES["pairwise"]),
        "judge.max_tokens": 16,
        "judge.retries": 0,
        "judging.baselines": [],
        "probe.seed": _MEASURED_SEED + seed,
        "probe.unrelated": unrelated,
    }
    longrm.probe(str(model), out, lengths=options.lengths, tasks=["records"], n=options.n, settings=settings)
    summary = read_json(out / "summary.json", RunError)

    metrics, position = summary["metrics"], summary["position"] or {}

    def shown(estimate: Mapping[str, float | None] | None) -> list[float | None] | None:
        return estimate and [estimate[part] for part in ("value", "low", "high")]

    return {
        "accuracy": shown(metrics["overall"]["pair_accuracy"]),
        "by_length": {length: shown(cell["pair_accuracy"]) for length, cell in metrics["by_length"].items()},
        "consistency": shown(position.get("consistency")),
        "first_wins": shown(position.get("first_wins")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the trainings; a killed one continues"
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=150, help="steps of GRPO")
    parser.add_argument("--lengths", type=int, nargs="*", default=[128, 256, 512, 1024, 2048])
    parser.add_argument("--n", type=int, default=64, help="comparisons per length, each in both orders")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for seed in options.seeds:
        folder = options.out / str(seed)
        for arm, run in arms(folder, seed, options.steps).items():
            for name, unrelated in (
                (arm, False),
                *([("grpo, unrelated contexts", True)] if arm == "grpo" else []),
            ):
                found = measured(
                    run / "model",
                    folder / "measured" / name.replace(", ", "-").replace(" ", "-"),
                    options,
                    seed,
                    unrelated=unrelated,
                )
                about = {
                    "arm": name,
                    "seed": seed,
                    "tokens_computed": computed(run),
                    "steps": read_json(run / "summary.json", RunError)["steps"],
                }
                print(json.dumps(about | found | circumstances(options)), flush=True)


if __name__ == "__main__":
    main()
