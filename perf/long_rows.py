"""A load test on real rows: one epoch of Bradley-Terry training with the shared prefix, on a tiny model.

A byte-level BPE tokenizer is trained on the rows themselves. The arm with separate sequences takes the shortest
rows only. It makes no claim of quality: the model is random and small.
"""

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tokenizers
import torch
from measuring import peak_growth, timed
from tokenizers import decoders, models, pre_tokenizers, trainers

from longrm.config import to_toml
from longrm.data import read
from longrm.data.tokenizing import Tokenizer
from longrm.modeling.encoding import Encoded, encode, plant
from longrm.modeling.heads import scores
from longrm.modeling.loading import ModelShape, Scorer, new_scorer
from longrm.modeling.shared_prefix import pack
from longrm.training.bradley_terry import BradleyTerryTraining, run
from longrm.training.losses import bradley_terry
from longrm.types import text_of

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
SHAPE = {"layers": 2, "hidden": 64, "heads": 4, "head_dim": 32}


def train_tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|pad|>", "<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (
        text_of([*row.comparison.prompt, *response])
        for row in read(path)
        for response in row.comparison.responses
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer.from_backend(backend, chat_template=TEMPLATE, eos="<|end|>", pad="<|pad|>")


def shared_step(scorer: Scorer, item: Encoded, ranks: tuple[int, ...]) -> torch.Tensor:
    loss, _ = bradley_terry(scores(scorer.model, pack(plant([item]))), [ranks])
    return _backward(scorer, loss)


def separate_step(scorer: Scorer, item: Encoded, ranks: tuple[int, ...]) -> torch.Tensor:
    """Every response in a sequence of its own, through transformers' SDPA."""
    model = scorer.model
    sequences = [torch.tensor([[*item.prompt, *response]]) for response in item.responses]
    ends = [model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, -1] for ids in sequences]
    loss, _ = bradley_terry(model.score(torch.stack(ends))[:, 0], [ranks])
    return _backward(scorer, loss)


def _backward(scorer: Scorer, loss: torch.Tensor) -> torch.Tensor:
    torch.autograd.backward(loss)
    scorer.model.zero_grad(set_to_none=True)
    return loss.detach()


def compare_on_the_shortest(path: Path, tokenizer: Tokenizer, count: int) -> dict[str, Any]:
    """Seconds and peak memory growth of both arms on the shortest rows, and the difference of their losses."""
    rows = [row.comparison for row in read(path)]
    items = [(encode(tokenizer, row.prompt, row.responses), row.ranks or ()) for row in rows]
    items = sorted(items, key=lambda pair: pair[0].longest)[:count]
    shape = ModelShape(init_std=0.1, **SHAPE)
    ours, stock = (new_scorer(shape, tokenizer, seed=0) for _ in range(2))
    stock.model.set_attn_implementation("sdpa")
    seconds = {"shared": 0.0, "separate": 0.0}
    memory = {"shared": 0, "separate": 0}
    gap = 0.0
    small = (Encoded(items[0][0].prompt[:64], [r[:8] for r in items[0][0].responses]), items[0][1])
    for name, step, scorer in (("shared", shared_step, ours), ("separate", separate_step, stock)):
        for item in items:
            seconds[name] += timed(lambda item=item, step=step, scorer=scorer: step(scorer, *item))
            grown = peak_growth(
                lambda step=step, scorer=scorer: step(scorer, *small),
                lambda item=item, step=step, scorer=scorer: step(scorer, *item),
            )
            memory[name] = max(memory[name], grown)
    for item in items[:1]:
        gap = abs(float(shared_step(ours, *item) - separate_step(stock, *item)))
    return {
        "rows": count,
        "tokens": [item.longest for item, _ in items],
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "speedup": round(seconds["separate"] / seconds["shared"], 2),
        "memory_bytes": memory,
        "memory_ratio": round(memory["shared"] / memory["separate"], 3),
        "loss_difference": gap,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="preference data in any format that longrm reads"
    )
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--shortest", type=int, default=4, help="rows of the arm with separate sequences")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = train_tokenizer(options.data, options.vocabulary)
        tokenizer.save(Path(scratch) / "tokenizer")
        settings = BradleyTerryTraining.model_validate(
            {
                "model": {"new": {**SHAPE, "tokenizer": f"{scratch}/tokenizer"}},
                "data": {"path": str(options.data), "per_step": 1},
                "optimizer": {"epochs": 1, "learning_rate": 1e-4},
            }
        )
        began = time.perf_counter()
        summary = run(settings, Path(scratch) / "run")
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        steps = [json.loads(line) for line in (Path(scratch) / "run/steps.jsonl").read_text().splitlines()]
        result = {
            "epoch": {
                "rows": summary["steps"],
                "prompt_tokens": sorted(step["length"] for step in steps),
                "tokens": summary["tokens"],
                "seconds": round(seconds, 1),
                "peak_resident_bytes": peak,
                "settings": to_toml(settings.to_dict()),
            },
            "shortest": compare_on_the_shortest(options.data, tokenizer, options.shortest),
            "machine": f"{os.cpu_count()}-core {platform.machine()} CPU",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
    json.dump(result, sys.stdout)
    print()


if __name__ == "__main__":
    main()
