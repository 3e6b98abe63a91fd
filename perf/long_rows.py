"""A load test on real rows: one epoch of a training on a tiny model, and both layouts on the shortest rows.

A byte-level BPE tokenizer is trained on the rows. The arm with separate sequences reads only the shortest rows, one
response at a time, with transformers' SDPA and heads at response positions only. For demonstrations, which have one
completion each, both arms compute the same. The model is random and small, so its quality means nothing. No text of the
rows is stored.
"""

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from measuring import hand_over, peak_growth, peak_growth_in_fresh_process, timed, train_bpe
from torch import Tensor
from torch.nn import functional

from longrm.data import read, read_demonstrations
from longrm.data.joining import Encoded
from longrm.data.tokenizing import Tokenizer
from longrm.data.training_rows import Example
from longrm.training import losses
from longrm.training.batches import Batches
from longrm.training.initial_model import initial_model
from longrm.training.objectives import SFT, BradleyTerry, Objective, Preference
from longrm.training.settings import LossSettings, TrainingSettings
from longrm.training.sources import open_source
from longrm.training.train import train
from longrm.types import text_of

LOGO = LossSettings(loss_type="logo", rejected=2, beta=2.5, gamma=0.5, nll_coef=0.05)
TRAINED: dict[str, tuple[str, dict[str, Any], Objective]] = {
    "bradley_terry": ("bradley_terry", {}, BradleyTerry(LossSettings(loss_type="bradley_terry"))),
    "sft": ("sft", {}, SFT(LossSettings(loss_type="sft"))),
    "logo": ("preference", {"loss": LOGO.to_dict()}, Preference(LOGO)),
}
"""What `--objective` takes -> the recipe's objective, its own settings, and the objective."""

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
SPECIALS = ("<|pad|>", "<|start|>", "<|end|>")
SHAPE = {"layers": 2, "hidden": 64}


def texts(path: Path, objective: str) -> Iterator[str]:
    if objective == "sft":
        for own in read_demonstrations(path):
            yield text_of([*own.demonstration.prompt, *own.demonstration.completion])
    else:
        for row in read(path):
            for response in row.comparison.responses:
                yield text_of([*row.comparison.prompt, *response])


class _Row:
    """A source with one example."""

    def __init__(self, example: Example) -> None:
        self._example = example

    def batch(self, step: int, length: int | None) -> list[Example]:
        return [self._example]


def shared_step(model: Any, objective: Objective, example: Example) -> Tensor:
    limit = example.tokens.longest
    step = Batches(_Row(example), objective, budget=1, limit=limit, curriculum=None).prepare(0)
    (micro,) = step.micro_batches
    return _backward(model, objective.loss(model, micro)[0])


def separate_step(model: Any, objective: Objective, example: Example) -> Tensor:
    """Every response in a separate sequence, through transformers' SDPA."""
    prompt, responses = example.tokens.prompt, example.tokens.responses
    values: list[Tensor] = []
    for response in responses:
        ids = torch.tensor([[*prompt, *response]])
        states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
        if isinstance(objective, BradleyTerry):
            values.append(model.score(states[-1])[0])
        else:
            logits = model.lm_head(states[len(prompt) - 1 : -1])
            values.append(-functional.cross_entropy(logits, torch.tensor(response), reduction="none"))
    return _backward(model, _loss(objective, values, example))


def _loss(objective: Objective, values: list[Tensor], example: Example) -> Tensor:
    if isinstance(objective, BradleyTerry):
        return losses.bradley_terry(torch.stack(values), [example.ranks])[0]
    if isinstance(objective, SFT):
        return losses.sft(torch.cat(values))[0]
    assert LOGO.beta is not None
    assert LOGO.gamma is not None
    return losses.logo(values, [len(values)], beta=LOGO.beta, gamma=LOGO.gamma, nll_coef=LOGO.nll_coef)[0]


def _backward(model: Any, loss: Tensor) -> Tensor:
    torch.autograd.backward(loss)
    model.zero_grad(set_to_none=True)
    return loss.detach()


ARMS: dict[str, Callable[[Any, Objective, Example], Tensor]] = {
    "shared": shared_step,
    "separate": separate_step,
}


def make_arm(recipe: TrainingSettings, objective: Objective, name: str) -> Callable[[Example], Tensor]:
    kind: Any = "scorer" if isinstance(objective, BradleyTerry) else "language_model"
    model = initial_model(recipe, kind).model
    if name == "separate":
        model.set_attn_implementation("sdpa")
    return partial(ARMS[name], model, objective)


def shortest(recipe: TrainingSettings, objective: Objective, count: int) -> list[Example]:
    assert recipe.model.new is not None, "made by `main`"
    source = open_source(
        recipe.data,
        Tokenizer.load(recipe.model.new.tokenizer),
        recipe.seed,
        kind="demonstration" if isinstance(objective, SFT) else "comparison",
        limit=recipe.model.new.shape().max_positions,
    )
    selected = map(objective.select, source.examples())
    return sorted(selected, key=lambda example: example.tokens.longest)[:count]


def memory_of(arm: Callable[[Example], Tensor], example: Example) -> int:
    tokens = Encoded(example.tokens.prompt[:64], [one[:8] for one in example.tokens.responses])
    return peak_growth(partial(arm, replace(example, tokens=tokens)), partial(arm, example))


def compare_on_the_shortest(
    recipe: TrainingSettings, objective: Objective, count: int, *again: str
) -> dict[str, Any]:
    """Seconds of both arms on the shortest rows, peak growth on the longest of these, and the loss difference."""
    examples = shortest(recipe, objective, count)
    arms = {name: make_arm(recipe, objective, name) for name in ARMS}
    seconds = {name: sum(timed(partial(arm, one)) for one in examples) for name, arm in arms.items()}
    memory = {name: peak_growth_in_fresh_process(name, *again) for name in ARMS}
    return {
        "rows": len(examples),
        "tokens": [one.tokens.longest for one in examples],
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "speedup": round(seconds["separate"] / seconds["shared"], 2),
        "memory_bytes": memory,
        "memory_ratio": round(memory["shared"] / memory["separate"], 3),
        "loss_difference": abs(float(arms["shared"](examples[0]) - arms["separate"](examples[0]))),
    }


def timed_training(recipe: TrainingSettings, out: Path) -> dict[str, Any]:
    began = time.perf_counter()
    summary = train(recipe, out)
    seconds = time.perf_counter() - began
    steps = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    return {
        "steps": summary["steps"],
        "data": summary["data"],
        "longest_prompts": sorted(step["length"] for step in steps),
        "tokens": summary["tokens"],
        "seconds": round(seconds, 1),
        "peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def make_recipe(options: argparse.Namespace, scratch: Path) -> TrainingSettings:
    named, own, _ = TRAINED[options.objective]
    model = {**SHAPE, "tokenizer": str(scratch / "tokenizer")}
    data = {
        "path": str(options.data),
        "max_length": options.max_tokens,
        "too_long": "skip",
        "per_step": options.per_step,
    }
    optimizer = {"num_train_epochs": 1, "learning_rate": 1e-4}
    settings = {"model": {"new": model}, "data": data, "optimizer": optimizer, **own}
    return TrainingSettings.model_validate({"objective": named} | settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="rows of the objective, in any format that longrm reads"
    )
    parser.add_argument("--objective", choices=list(TRAINED), default="bradley_terry")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--max-tokens", type=int, default=65_536, help="longer rows are skipped and counted")
    parser.add_argument("--per-step", type=int, default=1)
    parser.add_argument(
        "--shortest", type=int, default=4, help="number of rows for the arm with separate sequences"
    )
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--memory-of", choices=list(ARMS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    objective = TRAINED[options.objective][2]
    if options.memory_of:
        recipe = make_recipe(options, options.scratch)
        example = shortest(recipe, objective, options.shortest)[-1]
        hand_over(memory_of(make_arm(recipe, objective, options.memory_of), example))
        return
    with tempfile.TemporaryDirectory() as scratch:
        rows = texts(options.data, options.objective)
        train_bpe(rows, options.vocabulary, SPECIALS, TEMPLATE).save(Path(scratch) / "tokenizer")
        recipe = make_recipe(options, Path(scratch))
        result = {
            "objective": options.objective,
            "max_tokens": options.max_tokens,
            "per_step": options.per_step,
            "epoch": timed_training(recipe, Path(scratch) / "run"),
            "shortest": compare_on_the_shortest(recipe, objective, options.shortest, "--scratch", scratch),
            "machine": f"{os.cpu_count()}-core {platform.machine()} CPU",
            "threads": torch.get_num_threads(),
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }
    json.dump(result, sys.stdout)
    print()


if __name__ == "__main__":
    main()
