"""One training step of a pretrained model of 135M parameters: where its time goes, and what makes it faster.

Every variant trains on the same tokens by Bradley-Terry; only forward and backward are timed, and variants alternate.
A line of results has, for each variant, tokens per second, its ratio to the first one, and the share of the step that
torch spends in matrix products, with the rate that they reach next to that of one large product.
"""

import argparse
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from measuring import circumstances, interleaved, medians, timed
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import pack, scores
from longrm.training.initial_model import initial_model
from longrm.training.settings import TrainingSettings

BF16, UPPER = {"bf16": True}, {"frozen_layers": 15}
VARIANTS: Mapping[str, dict[str, Any]] = {
    "LoRA": {"lora": {"r": 16}},
    "all weights": {},
    "LoRA, bf16": {"lora": {"r": 16}, **BF16},
    "all weights, bf16": BF16,
    "LoRA on the upper half, bf16": {"lora": {"r": 16}, **UPPER, **BF16},
    "upper half, fp32": UPPER,
    "upper half, bf16": {**UPPER, **BF16},
    "upper half, bf16, compiled": {**UPPER, **BF16, "compile": True},
}


def trees(options: argparse.Namespace) -> list[TokenTree]:
    """Pairs with a prompt and responses of uneven lengths, as they are in real data."""
    rng = random.Random(0)

    def tokens(low: int, high: int) -> list[int]:
        return [rng.randrange(options.tokens) for _ in range(rng.randint(low, high))]

    prompt, response = options.prompt, options.response
    return [
        TokenTree(tokens(prompt // 2, prompt), [tokens(response // 3, response) for _ in range(2)])
        for _ in range(options.pairs)
    ]


def step(options: argparse.Namespace, model: dict[str, Any], work: list[TokenTree]) -> Callable[[], None]:
    """Makes the model of a variant; returns its step, in micro-batches of some pairs."""
    tree = {
        "objective": "bradley_terry",
        "model": {"path": str(options.model), **model},
        "data": {"path": "none"},
    }
    trainee = initial_model(TrainingSettings.model_validate(tree), "scorer").model
    micro = [
        pack(work[start : start + options.per_micro_batch])
        for start in range(0, len(work), options.per_micro_batch)
    ]

    def run() -> None:
        for packed in micro:
            found = scores(trainee, packed)
            loss = -functional.logsigmoid(found[::2] - found[1::2]).mean()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        trainee.zero_grad()

    return run


def products(run: Callable[[], None]) -> dict[str, float]:
    """The share of matrix products in the time of a step, and of attention, by torch's profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        run()
    events = recorded.key_averages()
    total = sum(event.self_cpu_time_total for event in events)

    def share(*names: str) -> float:
        return round(sum(e.self_cpu_time_total for e in events if any(n in e.key for n in names)) / total, 3)

    return {
        "matrix_products": share("aten::mm", "aten::addmm"),
        "attention": share("flash_attention"),
        "copies_and_casts": share("aten::copy_", "aten::index", "aten::cat"),
    }


def rate(dtype: torch.dtype) -> float:
    """GFLOP/s of one product of two matrices of 2,048 x 2,048."""
    one, other = (torch.randn(2048, 2048).to(dtype) for _ in range(2))
    seconds = min(timed(lambda: one @ other) for _ in range(5))
    return round(2 * 2048**3 / seconds / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, default=Path("runs/real-model"), help="folder that make real-model wrote"
    )
    parser.add_argument("--prompt", type=int, default=200, help="most tokens of a prompt (%(default)s)")
    parser.add_argument("--response", type=int, default=300, help="most tokens of a response (%(default)s)")
    parser.add_argument("--tokens", type=int, default=40_000, help="token ids to draw from (%(default)s)")
    parser.add_argument("--pairs", type=int, default=8, help="pairs of a step (%(default)s)")
    parser.add_argument("--per-micro-batch", type=int, default=4, help="pairs at a time (%(default)s)")
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--repeats", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of text")
    parser.add_argument("--results", type=Path, help="JSONL file to add the result to")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    work = trees(options)
    count = sum(tree.size for tree in work)
    arms = {name: step(options, VARIANTS[name], work) for name in options.variants}
    for arm in arms.values():
        arm()  # compiles, and fills caches
    seconds = medians(interleaved(arms, options.repeats))
    first = seconds[options.variants[0]]
    result = {
        "tokens": count,
        "variants": {
            name: {
                "tokens_per_second": round(count / seconds[name]),
                "speedup": round(first / seconds[name], 2),
                **products(arms[name]),
            }
            for name in arms
        },
        "peak_gflops": {"float32": rate(torch.float32), "bfloat16": rate(torch.bfloat16)},
        "amx": bool(torch.cpu.get_capabilities().get("amx_bf16")),
        **circumstances(options),
    }
    if options.json:
        print(json.dumps(result))
    else:
        for name, found in result["variants"].items():
            print(f"{name:32} {found['tokens_per_second']:6,} tokens/s  {found['speedup']:5.2f} times")
    if options.results:
        with options.results.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
