"""The ways to compute one comparison, each timed: with a shared prefix, and every response in a sequence of its own."""

import gc
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.device_memory import is_out_of_memory
from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import Packed, pack, scores
from longrm.training.losses import bradley_terry


@dataclass(frozen=True, slots=True)
class Work:
    """What is computed.

    Attributes:
        mode: "lora" or "full", a step of training without the optimizer's; "scoring", a forward.
        prompt: Tokens.
        response: Tokens of every response.
        responses: How many: one chosen and K rejected ones, or N candidates.
    """

    mode: str
    prompt: int
    response: int
    responses: int

    def trees(self, vocabulary: int) -> list[TokenTree]:
        """One tree: the prompt and its responses."""
        lengths = [self.prompt, *[self.response] * self.responses]
        draw = random.Random(0)
        prompt, *responses = ([draw.randrange(3, vocabulary) for _ in range(n)] for n in lengths)
        return [TokenTree(prompt, responses)]


SEPARATE = ("packed", "one by one", "one causal call")
"""The arms in which every response has a sequence of its own."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to compute it.

    Attributes:
        parts: What is computed one after the other.
        attention: What transformers calls the attention of it.
    """

    parts: Sequence[Packed]
    attention: str = SHARED_PREFIX


def arms_of(work: Work, vocabulary: int, device: str) -> dict[str, Arm]:
    """The shared arm, and separate sequences in three ways.

    To our attention a sequence of its own is a tree of one branch, which takes the two calls of a kernel that a shared
    prefix needs; "one causal call" is what a separate sequence takes where nobody thinks of trees.
    """
    trees = work.trees(vocabulary)
    alone = apart(trees)
    shared, packed = pack(trees).to(device), pack(alone).to(device)
    one_by_one = [pack([tree]).to(device) for tree in alone]
    return {
        "shared": Arm([shared]),
        "packed": Arm([packed]),
        "one by one": Arm(one_by_one),
        "one causal call": Arm(one_by_one, "sdpa"),
    }


def apart(trees: Sequence[TokenTree]) -> list[TokenTree]:
    """Every response in a sequence of its own: all but its last token, where it is scored, is prefix."""
    return [TokenTree([*t.tokens, *b[:-1]], [b[-1:]]) for t in trees for b in t.branches]


def step(model: Any, parts: Sequence[Packed], mode: str) -> None:
    """Scores all parts; in training, with the backward pass, one by one for parts of one response."""
    if mode == "scoring":
        with torch.inference_mode():
            for part in parts:
                scores(model, part)
        return
    for part in parts:
        found = scores(model, part)
        loss = bradley_terry(found, [[1] + [2] * (len(found) - 1)])[0] if len(found) > 1 else found.sum()
        loss.backward()
    model.zero_grad(set_to_none=True)


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of every repetition, and bytes: of all tensors at the peak, and above those that were there."""

    seconds: list[float]
    peak: int
    growth: int

    @property
    def median(self) -> float:
        """Of the seconds."""
        return statistics.median(self.seconds)


def measure(model: Any, arm: Arm, mode: str, repeats: int, warm: Sequence[Packed]) -> Measured | str:
    """Times an arm; in words, why it cannot be.

    Args:
        model: The scorer; it keeps the arm's attention.
        arm: What is computed.
        mode: As `Work` has it.
        repeats: How often it is timed.
        warm: What is computed once before that: kernels are chosen and compiled, and memory is asked for.
    """
    cuda = warm[0].input_ids.is_cuda
    seconds: list[float] = []
    try:
        model.set_attn_implementation(arm.attention)
        before = _settle(cuda)
        step(model, warm, mode)
        for _ in range(repeats):
            _wait(cuda)
            start = time.perf_counter()
            step(model, arm.parts, mode)
            _wait(cuda)
            seconds.append(time.perf_counter() - start)
    # Whatever fails, out of memory in one of its many forms or not, the other arms may do.
    except Exception as error:
        model.zero_grad(set_to_none=True)
        return why(error)
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    return Measured(seconds, peak, peak - before)


OUT_OF_MEMORY = "out of memory"
"""What a cell tells where a device is full, in whatever words the device says so."""


def why(error: Exception) -> str:
    """In one line, what a cell tells in place of a figure."""
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    lines = str(error).strip().splitlines()
    return f"error: {type(error).__name__}" + (f": {lines[0][:160]}" if lines else "")


def _wait(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


def _settle(cuda: bool) -> int:
    if not cuda:
        return 0
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()
