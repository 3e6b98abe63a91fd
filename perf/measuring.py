"""Shared by the performance scripts: models, sequences, fair timing, and memory in a fresh process."""

import argparse
import copy
import gc
import json
import os
import platform
import random
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, Qwen3_5TextConfig

from longrm.data.tokenizing import Tokenizer
from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.shapes import TokenTree

PAD, END = 0, 1
"""Token ids: END closes every response, as a chat template would; PAD is in no sequence."""

Arm = Callable[[], Any]
_PIPE = "LONGRM_PERF_PIPE"


@dataclass(frozen=True, slots=True)
class Workload:
    """One prompt, its responses, and two models of equal weights: stock attention and ours."""

    tree: TokenTree
    stock: Any
    ours: Any


def model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", type=int, default=8192, help="tokens of the prompt")
    parser.add_argument("--response", type=int, default=128, help="tokens of each response")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--intermediate", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of text")


def make_workload(
    options: argparse.Namespace, prompt: int, responses: Sequence[int], *, writes: bool = False
) -> Workload:
    """Random weights and random tokens; the model is a language model if it generates, else it has a scalar head."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        max_position_embeddings=max(131_072, prompt + max(responses)),
        pad_token_id=PAD,
        initializer_range=0.1,  # attention is near uniform at the default, which would hide a wrong mask
    )
    config.num_labels = 1
    kind: Any = LlamaForCausalLM if writes else LlamaForSequenceClassification
    stock = kind(copy.deepcopy(config))
    stock.set_attn_implementation("sdpa")
    ours = kind(copy.deepcopy(config))
    ours.set_attn_implementation(SHARED_PREFIX)
    ours.load_state_dict(stock.state_dict())
    draw = random.Random(0)
    words = lambda n: [draw.randrange(END + 1, options.vocabulary) for _ in range(n)]  # noqa: E731 (a line's worth)
    tree = TokenTree(words(prompt), [[*words(n - 1), END] for n in responses])
    return Workload(tree, stock, ours)


def hybrid_config(options: argparse.Namespace) -> Qwen3_5TextConfig:
    """A small Qwen3.5: four layers, of which three are Gated DeltaNet."""
    size = options.hidden // options.heads
    return Qwen3_5TextConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_hidden_layers=4,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        head_dim=size,
        linear_num_key_heads=options.heads,
        linear_num_value_heads=options.heads,
        linear_key_head_dim=size,
        linear_value_head_dim=size,
        pad_token_id=PAD,
        initializer_range=0.1,
    )


def words_backend(vocabulary: int) -> tokenizers.Tokenizer:
    """A tokenizer in which every token is a word, so that libraries that accept only text get the same ids."""
    backend = tokenizers.Tokenizer(models.WordLevel({word(i): i for i in range(vocabulary)}, word(PAD)))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def word(token: int) -> str:
    return f"<{token}>"  # no word may begin with another one: special tokens are found anywhere


def as_text(tokens: Iterable[int]) -> str:
    return " ".join(map(word, tokens))


def train_bpe(texts: Iterable[str], vocabulary: int, special: Sequence[str], chat_template: str) -> Tokenizer:
    """A byte-level BPE tokenizer of these texts; its special tokens begin with `<|pad|>` and end with `<|end|>`."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer.from_backend(backend, chat_template=chat_template, eos="<|end|>", pad="<|pad|>")


def linear_flops_per_token(options: argparse.Namespace) -> int:
    """`c`: multiply-adds count as two; embeddings are looked up, not multiplied."""
    head = options.hidden // options.heads
    projections: int = options.hidden * head * 2 * (options.heads + options.kv_heads)
    layers: int = options.layers
    mlp: int = 3 * options.hidden * options.intermediate
    return 2 * layers * (projections + mlp)


def attention_flops_per_pair(options: argparse.Namespace) -> int:
    """`a`: scores and weighted values, for one query token and one key token, over all heads and layers."""
    width: int = options.hidden
    return 2 * 2 * width * int(options.layers)


def interleaved(arms: Mapping[str, Arm], repeats: int) -> dict[str, list[float]]:
    """Seconds of every repetition. The arms alternate, so that a slow minute affects all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name, arm in arms.items():
            seconds[name].append(timed(arm))
    return seconds


def timed(arm: Arm) -> float:
    gc.collect()
    start = time.perf_counter()
    arm()
    return time.perf_counter() - start


def medians(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in seconds.items()}


def peak_growth(warm: Arm, arm: Arm) -> int:
    """Largest growth of the resident set in bytes during one call, after a small call as warm-up."""
    warm()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    baseline = resident("VmRSS")
    arm()
    return resident("VmHWM") - baseline


def resident(field: str, process: int | str = "self") -> int:
    """Bytes that a process holds in memory (VmRSS), or held at most (VmHWM)."""
    file = Path(f"/proc/{process}/status")
    found = re.search(rf"^{field}:\s+(\d+) kB$", file.read_text(), re.MULTILINE)
    assert found, f"no {field} in {file}"
    return int(found[1]) * 1024


def process_tree(process: int) -> list[psutil.Process]:
    """A process and all that it started and that still run."""
    root = psutil.Process(process)
    return [root, *root.children(recursive=True)]


def peak_growth_in_fresh_process(arm: str, *more: str) -> int:
    """Runs this script with more arguments in a new process, which measures the memory of one arm."""
    return figure_of([*sys.argv, *more, "--memory-of", arm])


def figure_of(command: Sequence[str]) -> int:
    """Runs a script in a new process; returns the number that it sends.

    The number comes through a separate pipe, because any library may write to standard output.
    """
    reading, writing = os.pipe()
    with os.fdopen(reading) as pipe:
        try:
            subprocess.run(
                [sys.executable, *command],
                check=True,
                stdout=subprocess.DEVNULL,
                env={**os.environ, _PIPE: str(writing)},
                pass_fds=[writing],
            )
        finally:
            os.close(writing)
        return int(pipe.read())


def hand_over(figure: int) -> None:
    """Sends a number to the process that called `figure_of`; prints it if there is none."""
    if _PIPE not in os.environ:
        print(figure)
        return
    with os.fdopen(int(os.environ[_PIPE]), "w") as pipe:
        pipe.write(str(figure))


def circumstances(options: argparse.Namespace) -> dict[str, Any]:
    """Machine, versions and command: what is needed to repeat the measurement."""
    return {
        "command": "python " + shlex.join(sys.argv),
        "machine": f"{os.cpu_count()}-core {platform.machine()} CPU",
        "threads": options.threads,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def show(result: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
    else:
        print("  ".join(f"{key} {value}" for key, value in result.items() if isinstance(value, float)))
