"""The peak memory that `longrm plan` predicts, against the measured growth of the resident set on a CPU.

Each configuration is trained by `longrm.training.train.train` for two steps in a fresh process, on a generated file,
after a tiny training as warm-up; two steps, so that the optimizer has its state when the second step peaks. The
script fails if a prediction on the test set is off by more than 15%. The fitting set was used while the formulas were
written. In the set grpo, "rejected" is the number of sampled judgments. `--set real --model DIR` trains the model of
`real_model.py prepare` in small micro-batches, where many tensors have less than 4 MiB.
"""

import argparse
import gc
import json
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers
import torch
from measuring import circumstances, figure_of, hand_over, peak_growth
from tokenizers import models, pre_tokenizers

from longrm.config import parse_assignments
from longrm.data.tokenizing import Tokenizer
from longrm.modeling.loading import new_language_model, new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.training.plan.plan import plan_training
from longrm.training.settings import TrainingSettings
from longrm.training.train import train

TOLERANCE = 0.15

# Sizes of the model, rows of a step, tokens of a prompt and of a response, K rejected responses, and settings.
_COLUMNS = (
    "objective layers hidden heads kv_heads intermediate vocabulary rows prompt response rejected settings"
)
_ADAPTERS_AND_CHECKPOINTING = "model.lora.r=8 memory.gradient_checkpointing=true"
_CHECKPOINTING_AND_TILES = "memory.gradient_checkpointing=true memory.tiled_mlp=true"
_FITTING: tuple[tuple[Any, ...], ...] = (
    ("bradley_terry", 4, 512, 8, 8, 1536, 1000, 1, 4096, 64, 1, ""),
    ("bradley_terry", 4, 512, 8, 8, 1536, 1000, 1, 4096, 64, 1, "memory.gradient_checkpointing=true"),
    ("preference", 4, 512, 8, 2, 1024, 32000, 1, 4096, 64, 3, ""),
    ("bradley_terry", 8, 1024, 16, 16, 3072, 1000, 1, 700, 32, 1, ""),
)
_TEST: tuple[tuple[Any, ...], ...] = (
    ("bradley_terry", 6, 384, 6, 6, 1024, 2000, 1, 6000, 100, 3, ""),
    ("preference", 3, 640, 10, 2, 1792, 16000, 2, 2500, 200, 2, ""),
    ("bradley_terry", 6, 1024, 16, 4, 2816, 8000, 1, 2000, 50, 1, "memory.gradient_checkpointing=true"),
    ("bradley_terry", 5, 512, 8, 8, 2048, 4000, 3, 1500, 64, 1, "model.lora.r=16"),
    ("sft", 2, 896, 14, 14, 2304, 24000, 1, 3000, 900, 0, "memory.max_tokens_per_microbatch=2048"),
    ("preference", 6, 768, 12, 4, 2048, 48000, 2, 1200, 150, 7, _ADAPTERS_AND_CHECKPOINTING),
    ("bradley_terry", 4, 512, 8, 8, 2048, 1000, 1, 6000, 64, 1, "memory.gradient_checkpointing=true"),
    ("bradley_terry", 4, 512, 8, 8, 2048, 1000, 1, 6000, 64, 1, _CHECKPOINTING_AND_TILES),
)
# GRPO: a step of rows of a prompt each, and of judgments with the most tokens. The divergence has a gradient, although
# judgments of random weights all have the same reward.
_GRPO = "loss.beta=0.1 rollouts.reward_weights={format=1.0}"
_SAMPLED: tuple[tuple[Any, ...], ...] = (
    ("grpo", 4, 512, 8, 2, 1536, 4000, 2, 3000, 48, 4, _GRPO),
    ("grpo", 4, 512, 8, 8, 1536, 4000, 2, 6000, 8, 4, f"{_GRPO} {_ADAPTERS_AND_CHECKPOINTING}"),
)
# Rows of a step, tokens of a prompt and of a response, K rejected responses, and settings.
_SIMPO = "loss.loss_type=simpo"
_REAL_COLUMNS = "objective rows prompt response rejected settings"
_REAL: tuple[tuple[Any, ...], ...] = (
    ("bradley_terry", 1, 250, 25, 1, "model.lora.r=16"),
    ("bradley_terry", 1, 500, 50, 1, "model.lora.r=16"),
    ("preference", 1, 250, 25, 1, _SIMPO),
    ("preference", 1, 500, 50, 1, _SIMPO),
    ("preference", 1, 500, 50, 1, f"{_SIMPO} memory.gradient_checkpointing=true"),
    ("preference", 1, 500, 50, 1, f"{_SIMPO} model.lora.r=16"),
    ("preference", 4, 250, 25, 1, f"{_SIMPO} memory.max_tokens_per_microbatch=700"),
)
_WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school")
SETS = {
    "fitting": [dict(zip(_COLUMNS.split(), case, strict=True)) for case in _FITTING],
    "test": [dict(zip(_COLUMNS.split(), case, strict=True)) for case in _TEST],
    "grpo": [dict(zip(_COLUMNS.split(), case, strict=True)) for case in _SAMPLED],
    "real": [dict(zip(_REAL_COLUMNS.split(), case, strict=True)) for case in _REAL],
}


def make_model(case: dict[str, Any], folder: Path) -> list[str]:
    """Writes a model of a configuration's sizes; returns the words that are one token each."""
    words = ["<unk>", "<end>", "<pad>", *(f"w{index}" for index in range(3, case["vocabulary"]))]
    vocabulary = {word: index for index, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = Tokenizer.from_backend(backend, eos="<end>", pad="<pad>")
    shape = ModelShape(
        **{name: case[name] for name in ("layers", "hidden", "heads", "kv_heads", "intermediate")},
        head_dim=case["hidden"] // case["heads"],
    )
    new = new_scorer if case["objective"] == "bradley_terry" else new_language_model
    save(new(shape, tokenizer, seed=0), folder)
    return words[3:]


def make(case: dict[str, Any], folder: Path, model: Path | None = None) -> Path:
    """Writes data and recipe of a configuration, and a model if none is given; returns the recipe's file."""
    words = make_model(case, folder / "model") if model is None else _WORDS
    draw = random.Random(0)

    def text(tokens: int) -> str:
        return " ".join(draw.choices(words, k=tokens))

    with (folder / "data.jsonl").open("w") as stream:
        for index in range(2 * case["rows"]):
            row: dict[str, Any] = {"id": str(index), "prompt": text(case["prompt"])}
            if case["objective"] == "grpo":
                row["prompt"] = [{"role": "user", "content": row["prompt"]}]
                row |= {"gold": "A", "order": [0, 1], "group": row["id"], "format": "pairwise"}
                row["length"] = case["prompt"]
            elif case["rejected"]:
                row |= {
                    "chosen": text(case["response"]),
                    "rejected": [text(case["response"]) for _ in range(case["rejected"])],
                }
            else:
                row["completion"] = text(case["response"])
            stream.write(json.dumps(row) + "\n")
    settings = {
        "objective": case["objective"],
        "model": {"path": str(model or folder / "model")},
        "data": {
            "path": str(folder / "data.jsonl"),
            "per_step": case["rows"],
        },
        "optimizer": {"max_steps": 2},
        "plateau_steps": 0,
    }
    if case["objective"] == "grpo":
        settings["rollouts"] = {"num_generations": case["rejected"], "max_tokens": case["response"]}
    file = folder / "recipe.json"
    file.write_text(json.dumps(settings))
    return file


def recipe_of(file: Path, assignments: list[str]) -> TrainingSettings:
    settings = json.loads(file.read_text())
    for key, value in parse_assignments(assignments).items():
        *groups, last = key.split(".")
        place = settings
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return TrainingSettings.model_validate(settings)


def measure(folder: Path, assignments: list[str]) -> int:
    """Growth of the resident set in bytes while a recipe is trained, after a tiny one as warm-up."""
    torch.set_num_threads(1)
    tiny, real = (recipe_of(folder / name / "recipe.json", assignments) for name in ("tiny", "real"))
    growth = peak_growth(
        lambda: train(tiny, folder / "tiny" / "run"), lambda: train(real, folder / "real" / "run")
    )
    gc.collect()
    return growth


def compare(case: dict[str, Any], model: Path | None) -> dict[str, Any]:
    """One configuration: predicted and measured."""
    assignments = case["settings"].split()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in ("tiny", "real"):
            (folder / size).mkdir()
        tiny = {"layers": 1, "hidden": 64, "heads": 4, "kv_heads": 2, "intermediate": 128, "vocabulary": 500}
        make(case | tiny | {"prompt": 64, "response": 8}, folder / "tiny")
        predicted = plan_training(recipe_of(make(case, folder / "real", model), assignments), "cpu").memory
        predicted = replace(predicted, process=0.0)  # the baseline of what is measured has it
        measured = figure_of([__file__, "--measure", name, *assignments])
    return case | {
        "predicted_bytes": round(predicted.total),
        "measured_bytes": measured,
        "predicted_over_measured": round(predicted.total / measured, 3),
        "peak": predicted.when,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=list(SETS), default="test", dest="which")
    parser.add_argument("--model", type=Path, help="model of the set real")
    parser.add_argument("--only", type=int, help="number of the only configuration to measure, from 0")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        folder, *assignments = options.measure
        hand_over(measure(Path(folder), assignments))
        return 0
    options.threads = 1
    off = False
    if (options.which == "real") is not (options.model is not None):
        parser.error("--set real needs --model, and other sets make their own")
    cases = SETS[options.which]
    for case in cases if options.only is None else [cases[options.only]]:
        result = compare(case, options.model)
        off |= abs(result["predicted_over_measured"] - 1) > TOLERANCE
        print(json.dumps({"set": options.which, **result, **circumstances(options)}), flush=True)
    if off and options.which == "test":
        print(f"a prediction is off by more than {TOLERANCE:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
