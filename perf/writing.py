"""Answers that a local judge writes together, compared with one after another: seconds, with equal texts.

Both arms are the writer of `longrm evaluate` and `longrm serve`, over prompts that have nothing in common.
"""

import argparse
import random
import sys
from typing import Any

import torch
from measuring import (
    END,
    PAD,
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
from longrm.modeling.local_writer import LocalWriter


def measure(options: argparse.Namespace) -> dict[str, Any]:
    model = make_workload(options, options.prompt, [options.response], writes=True).ours.eval()
    model.to(getattr(torch, options.dtype))
    template = "{{ messages[0]['content'] }}"
    backend = words_backend(options.vocabulary)
    tokenizer = Tokenizer.from_backend(backend, chat_template=template, eos=word(END), pad=word(PAD))
    writer = LocalWriter(LanguageModel(model, tokenizer), "")
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
        found["together"] = writer.write(own)

    def singly() -> None:
        found["singly"] = [writer.write([request])[0] for request in own]

    together()  # warms up
    seconds: dict[str, list[float]] = {"together": [], "singly": []}
    differing = 0
    for _ in range(options.repeats):
        own[:] = requests()  # so that nothing of them is kept
        for name, values in interleaved({"together": together, "singly": singly}, 1).items():
            seconds[name] += values
        differing += sum(a.text != b.text for a, b in zip(found["together"], found["singly"], strict=True))
    if differing and options.dtype == "float32":
        raise SystemExit(f"error: {differing} texts differ")
    typical = medians(seconds)
    sizes = ("requests", "prompt", "response", "layers", "hidden", "vocabulary", "dtype")
    return {
        "speedup": round(typical["singly"] / typical["together"], 3),
        "differing_texts": differing,
        "seconds": rounded(typical),
        "seconds_each": {name: [round(value, 4) for value in values] for name, values in seconds.items()},
        **{name: getattr(options, name) for name in sizes},
        **circumstances(options),
    }


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
