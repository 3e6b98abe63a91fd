"""A tiny judge of short contexts, trained on long ones by reinforcement on its verdicts or by imitation.

All seeds have one base, which finds facts in contexts of up to 128 tokens (of other seeds, few learn to). For every
seed, SFT on contexts of that length makes the start: a judge, with rotary positions that are stretched already. From
it, on the same contexts:

- `grpo`: the recipe demo/generative_grpo, with groups over both orders of a comparison;
- `rft`: as many steps of rejection sampling, which imitates the judge's own right judgments;
- `grpo-prompt`: as `grpo`, with a group for each prompt;
- `sft`: imitation of right judgments, which the world knows, with as many tokens computed as `grpo`;
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
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from recording import circumstances

import longrm
from longrm.errors import ConfigError, RunError
from longrm.reading import read_json, read_toml
from longrm.reward_models.verdict_rewards import VerdictReward, VerdictScore
from longrm.runs.logs import Log
from longrm.runs.records import Estimate, RolloutRecord, StepRecord
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.training.world_judgments import TEMPLATES

OTHER_ARMS = ("rft", "grpo-prompt", "sft", "shuffled")
RECIPES = Path(longrm.__file__).parent / "recipes" / "demo"
ROPE_THETA = (
    100_000.0  # as in demo/generative_grpo; stretched only there, the judge would write no verdict at first
)
_MEASURED_SEED = 1_000_000  # of contexts that are measured on; no training comes so far


@contextmanager
def shuffled_rewards() -> Iterator[None]:
    """Every judgment has the reward of a random one of the same step."""
    own = VerdictReward.judge

    def judge(self: VerdictReward, rows: Any, texts: Sequence[str], tokens: Any) -> list[VerdictScore]:
        scores = own(self, rows, texts, tokens)
        drawn = random.Random("\0".join(texts)).sample(scores, len(scores))
        return [
            replace(one, reward=other.reward, terms=other.terms)
            for one, other in zip(scores, drawn, strict=True)
        ]

    VerdictReward.judge = judge  # type: ignore[method-assign]
    try:
        yield
    finally:
        VerdictReward.judge = own  # type: ignore[method-assign]


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


def arms(out: Path, seed: int, steps: int, names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yields the names and run folders of the trainings of a seed, as they end."""
    data = 10 * seed  # as the demo does: no two trainings read the same contexts
    base = trained(out / "base", "generative_base")
    own = out / str(seed)
    start = trained(
        own / "start",
        "generative_short",
        seed=seed,
        data__world__seed=data + 7,
        model__path=str(base / "model"),
        model__rope_theta=ROPE_THETA,
    )
    yield "start", start
    long = {"seed": seed, "data__world__seed": data + 8, "model__path": str(start / "model")}
    rollouts = {"rollouts__group_by": "comparison", "optimizer__max_steps": steps}
    grpo = trained(own / "grpo", "generative_grpo", **long, **rollouts)
    yield "grpo", grpo
    for name in names:
        folder = own / name
        if name == "rft":
            change = {**long, **rollouts, "rollouts__advantage_estimator": "rft"}
            yield name, trained(folder, "generative_grpo", **change)
        elif name == "grpo-prompt":
            yield name, trained(folder, "generative_grpo", **long, optimizer__max_steps=steps)
        elif name == "shuffled":
            with shuffled_rewards():
                run = trained(folder, "generative_grpo", **long, **rollouts)
            yield name, run
        else:
            assert name == "sft", name
            curriculum = read_toml(RECIPES / "generative_grpo.toml", ConfigError)["curriculum"]
            imitation = {
                **long,
                "data__world__completions": ["pairwise"],
                "curriculum__lengths": curriculum["lengths"],
                "curriculum__ramp": curriculum["ramp"],
            }
            tenth = trained(own / "sft-tenth", "generative_long", **imitation, optimizer__max_steps=10)
            same = round(10 * computed(grpo) / computed(tenth))
            yield name, trained(folder, "generative_long", **imitation, optimizer__max_steps=same)


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

    def own(estimate: Mapping[str, float | None] | None) -> list[float | None] | None:
        return estimate and shown(Estimate(**estimate))

    return {
        "accuracy": own(metrics["overall"]["pair_accuracy"]),
        "by_length": {length: own(cell["pair_accuracy"]) for length, cell in metrics["by_length"].items()},
        "consistency": own(position.get("consistency")),
        "first_wins": own(position.get("first_wins")),
    }


def shown(estimate: Estimate) -> list[float | None]:
    """A value with its interval."""
    return [estimate.value, estimate.low, estimate.high]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the trainings; a killed one continues"
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--arms", nargs="*", choices=OTHER_ARMS, default=OTHER_ARMS, help="next to start and grpo"
    )
    parser.add_argument("--steps", type=int, default=150, help="steps of GRPO")
    parser.add_argument("--lengths", type=int, nargs="*", default=[128, 256, 512, 1024, 2048])
    parser.add_argument("--n", type=int, default=64, help="comparisons per length, each in both orders")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for seed in options.seeds:
        start: Path | None = None  # its evaluation
        for arm, run in arms(options.out, seed, options.steps, options.arms):
            for name, unrelated in (
                (arm, False),
                *([("grpo, unrelated contexts", True)] if arm == "grpo" else []),
            ):
                out = options.out / str(seed) / "measured" / name.replace(", ", "-").replace(" ", "-")
                found = measured(run / "model", out, options, seed, unrelated=unrelated)
                if arm == "start":
                    start = out
                elif not unrelated:
                    assert start is not None, "the start is measured first"
                    parts = longrm.compare(start, out).by_length.items()
                    found["gain_by_length"] = {length: shown(part.difference) for length, part in parts}
                about = {
                    "arm": name,
                    "seed": seed,
                    "tokens_computed": computed(run),
                    "steps": read_json(run / "summary.json", RunError)["steps"],
                }
                print(json.dumps(about | found | circumstances(options)), flush=True)


if __name__ == "__main__":
    main()
