"""Answers that a local judge writes together, compared with one after another: seconds, with equal texts.

Both arms are the writer of `longrm evaluate` and `longrm serve`, over prompts that have nothing in common. A batch
changes the order of sums, so two texts may part where two tokens are equally likely up to rounding. Such near-ties are
counted; in fp32 any other difference is an error.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from measuring import (
    END,
    as_text,
    circumstances,
    interleaved,
    make_workload,
    medians,
    model_arguments,
    rounded,
    show,
    word,
    words_backend,
)

from longrm.clients import Completion, Request
from longrm.data.tokenizing import Tokenizer
from longrm.modeling.loading import LanguageModel
from longrm.modeling.local_generator import LocalTextGenerator

NEAR_TIE = 1e-3
"""Difference of two logits that rounding may bridge: the logits of both ways of writing were up to 1.2e-4 apart, and up
to 2.6e-4 from those of transformers' own attention."""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    workload = make_workload(options, options.prompt, [options.response], writes=True)
    model = workload.ours.eval().to(getattr(torch, options.dtype))
    template = "{{ messages[0]['content'] }}"
    backend = words_backend(options.vocabulary)
    # Without a padding token, which decoding would omit from texts.
    tokenizer = Tokenizer.from_backend(backend, chat_template=template, eos=word(END))
    writer = LocalTextGenerator(LanguageModel(model, tokenizer), "")
    draw = random.Random(0)

    def requests() -> list[Request]:
        prompts = [
            draw.choices(range(END + 1, options.vocabulary), k=options.prompt)
            for _ in range(options.requests)
        ]
        messages = [({"role": "user", "content": as_text(prompt)},) for prompt in prompts]
        return [Request(message, options.response) for message in messages]

    own = requests()
    found: dict[str, list[Completion]] = {}

    def together() -> None:
        found["together"] = writer.generate(own)

    def singly() -> None:
        found["singly"] = [writer.generate([request])[0] for request in own]

    together()  # warms up
    seconds: dict[str, list[float]] = {"together": [], "singly": []}
    gaps: list[float] = []  # where texts part
    for _ in range(options.repeats):
        own[:] = requests()  # so that nothing of them is kept
        for name, values in interleaved({"together": together, "singly": singly}, 1).items():
            seconds[name] += values
        for request, first, second in zip(own, found["together"], found["singly"], strict=True):
            texts = [request.messages[0]["content"], first.text, second.text]
            prompt, one, other = (backend.encode(text).ids for text in texts)
            if one != other:
                gaps.append(gap_between(workload.stock, prompt, one, other))
    if options.dtype == "float32" and max(gaps, default=0.0) > NEAR_TIE:
        raise SystemExit(f"error: texts differ by more than rounding: {gaps}")
    typical = medians(seconds)
    sizes = ("requests", "prompt", "response", "layers", "hidden", "vocabulary", "dtype")
    return {
        "speedup": round(typical["singly"] / typical["together"], 3),
        "texts": options.requests * options.repeats,
        "differing_texts": len(gaps),
        "largest_gap": max(gaps, default=None),
        "seconds": rounded(typical),
        "seconds_each": {name: [round(value, 4) for value in values] for name, values in seconds.items()},
        **{name: getattr(options, name) for name in sizes},
        **circumstances(options),
    }


def gap_between(stock: Any, prompt: Sequence[int], one: Sequence[int], other: Sequence[int]) -> float:
    """How far the tokens at which two texts part are below the best one, by the logits of transformers' own model."""
    pairs = enumerate(zip_longest(one, other, fillvalue=END))
    at, parted = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    with torch.inference_mode():
        logits = stock(torch.tensor([[*prompt, *one[:at]]]), logits_to_keep=1).logits[0, -1]
    return float(logits.max() - logits[list(parted)].min())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    model_arguments(parser)
    parser.set_defaults(
        prompt=512, response=128, layers=8, hidden=1024, intermediate=2816, heads=16, kv_heads=4
    )
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args()
    show(measure(options), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
