"""A tiny judge trained by TRL's GRPOTrainer on its verdicts, as docs/judge_training.md describes, and a control.

The judge is the demo's: it learned to judge contexts of up to 128 tokens by imitation. Then its rotary base is raised
from 1,000 to 3,000, as for longer contexts, which costs a part of its right verdicts: what GRPO can win back in few
steps. `longrm synthesize judge-prompts` makes prompts, and `examples/trainers/trl_judge.py` trains on them. In the
control gold verdicts are shuffled among the rows. Both are measured before and after on prompts of unseen contexts, one
sampled completion each (temperature 1, as in training): the share of right verdicts, by their real gold. Intervals are
cluster bootstraps over contexts.
"""

import argparse
import importlib.util
import json
import random
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from recording import circumstances
from transformers import AutoModelForCausalLM, AutoTokenizer

import longrm
from longrm.cli.commands import cli
from longrm.evaluation.estimates import RESAMPLES, ratio
from longrm.modeling.loading import load_language_model, rescale_rope
from longrm.modeling.saving import save
from longrm.runs.records import Estimate
from longrm.training.world_judgments import TEMPLATES

_MEASURED_SEED = 4_000_000  # of contexts that are measured on; no training comes so far
_GENERATIONS, _PROMPTS = (
    8,
    8,
)  # completions of a prompt, and prompts of a step: four comparisons in both orders
_TOKENS = 16  # of a completion
_THETA = 3000.0  # the rotary base of the judge that is trained


def run(*arguments: object) -> None:
    with redirect_stdout(sys.stderr):
        cli.main(["--quiet", *map(str, arguments)], standalone_mode=False)


def trained_judge(out: Path) -> Path:
    """The demo's judge of short contexts, with the seeds of the demo's contexts."""
    starts = {"generative_base": 6, "generative_short": 7}
    start: list[object] = []
    for recipe, seed in starts.items():
        settings = ["--set", f"data.world.seed={seed}", *start]
        run("train", "sft", "--config", f"demo/{recipe}", *settings, "--out", out / recipe)
        start = ["--set", f"model.path={out / recipe / 'model'}"]
    return out / "generative_short" / "model"


def rescaled(judge: Path, out: Path) -> Path:
    """The judge with a higher rotary base."""
    model = load_language_model(judge)
    rescale_rope(model.model, _THETA)
    save(model, out)
    return out


def prompts(out: Path, length: int, contexts: int, per_context: int, seed: int) -> Path:
    """Rows of judging prompts in both orders; returns their folder."""
    cells = [{"lengths": [length], "groups": contexts, "per_group": per_context}]
    settings = {"source": "probe", "probe.cells": cells, "probe.seed": seed, "tokenizer": "judge_words"}
    settings |= {"template": str(TEMPLATES["pairwise"])}
    chosen = [
        part
        for name, value in settings.items()
        for part in ("--set", f"{name}={value if isinstance(value, str) else toml(value)}")
    ]
    run("synthesize", "judge-prompts", *chosen, "--out", out)
    return out / "rows"


def toml(value: Any) -> str:
    """A list of tables as an inline value of TOML."""
    return json.dumps(value).replace('":', '" =')


def read(rows: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(rows.iterdir()) for line in file.open()]


def shuffled(rows: Path, out: Path, seed: int) -> Path:
    """The rows with their gold verdicts shuffled."""
    given = read(rows)
    gold = [row["gold"] for row in given]
    random.Random(seed).shuffle(gold)
    out.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({**row, "gold": one}) + "\n" for row, one in zip(given, gold, strict=True)]
    (out / "rows.jsonl").write_text("".join(lines))
    return out


@torch.inference_mode()
def right(model: Any, tokenizer: Any, rows: Sequence[dict[str, Any]]) -> list[float]:
    """Whether a sampled verdict is right, for every row."""
    torch.manual_seed(0)
    texts = []
    for first in range(0, len(rows), 32):
        batch = [row["prompt"] for row in rows[first : first + 32]]
        ids = tokenizer.apply_chat_template(
            batch, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        sampling = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
        written = model.eval().generate(**ids, max_new_tokens=_TOKENS, **sampling)
        texts += tokenizer.batch_decode(written[:, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    scores = longrm.verdict_reward(correct=1.0).judge(rows, texts, [None] * len(rows))
    return [score.reward for score in scores]


def mean(values: Sequence[float], rows: Sequence[dict[str, Any]], span: tuple[float, float]) -> list[float]:
    """The mean and its interval."""
    _, group = np.unique([row["group"] for row in rows], return_inverse=True)
    found: Estimate = ratio(
        np.array(values), np.ones(len(values)), group, span=span, seed=0, resamples=RESAMPLES
    )
    return [round(value, 4) for value in (found.value, found.low, found.high) if value is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of trainings and prompts")
    parser.add_argument("--judge", type=Path, help="start from this judge; by default it is trained first")
    parser.add_argument("--length", type=int, default=128, help="tokens of the contexts")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--held-out", type=int, default=64, help="contexts to measure on, two comparisons each"
    )
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="at the first step; it falls to 0")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="has no effect: results are always JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    judge = rescaled(options.judge or trained_judge(options.out), options.out / "judge")
    spec = importlib.util.spec_from_file_location(
        "trl_judge", Path(__file__).parents[1] / "examples/trainers/trl_judge.py"
    )
    assert spec is not None, "the example is part of the repository"
    assert spec.loader is not None, "it is a Python file"
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    tokenizer = AutoTokenizer.from_pretrained(judge, padding_side="left")
    held_out = read(prompts(options.out / "held-out", options.length, options.held_out, 2, _MEASURED_SEED))
    before = right(AutoModelForCausalLM.from_pretrained(judge), tokenizer, held_out)
    gains: dict[str, list[list[float]]] = {"gold": [], "shuffled": []}
    for seed in options.seeds:
        contexts = options.steps * _PROMPTS // 2
        rows = prompts(options.out / f"prompts-{seed}", options.length, contexts, 1, seed)
        arms = {"gold": rows, "shuffled": shuffled(rows, options.out / f"shuffled-{seed}", seed)}
        for arm, folder in arms.items():
            with redirect_stdout(sys.stderr):  # TRL prints its logs
                trainer = example.train(
                    str(judge),
                    str(folder),
                    str(options.out / f"{arm}-{seed}"),
                    max_steps=options.steps,
                    learning_rate=options.learning_rate,
                    num_generations=_GENERATIONS,
                    per_device_train_batch_size=_GENERATIONS * _PROMPTS,
                    max_completion_length=_TOKENS,
                    logging_steps=1,
                    seed=seed,
                    report_to="none",
                    save_strategy="no",
                    use_cpu=True,
                    bf16=False,
                    disable_tqdm=True,
                )
            curve = [one["verdict/correct"] for one in trainer.state.log_history if "verdict/correct" in one]
            after = right(trainer.model, tokenizer, held_out)
            gains[arm].append([end - start for start, end in zip(before, after, strict=True)])
            result = {
                "arm": arm,
                "seed": seed,
                "length": options.length,
                "steps": options.steps,
                "right_before": mean(before, held_out, (0.0, 1.0)),
                "right_after": mean(after, held_out, (0.0, 1.0)),
                "gain": mean(gains[arm][-1], held_out, (-1.0, 1.0)),
                "reward_curve": [round(value, 4) for value in curve],
                "prompts_held_out": len(held_out),
            }
            print(json.dumps(result | circumstances(options) | {"trl": trl.__version__}), flush=True)
    for arm, found in gains.items():
        average = [sum(values) / len(values) for values in zip(*found, strict=True)]
        gain = mean(average, held_out, (-1.0, 1.0))
        print(json.dumps({"arm": arm, "seeds": options.seeds, "mean_gain": gain}), flush=True)


if __name__ == "__main__":
    main()
