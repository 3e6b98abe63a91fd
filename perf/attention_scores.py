"""Memory of FR and IG by the length of the context: how far the resident set grows, each length in a fresh process.

`rows` is `attention_rows` at the scored tokens of two responses, and `embeddings` is `embedding_gradients`. `full` is
the control: eager attention that returns the matrices of all layers and their gradients, for one response. Linear
memory doubles with the length; memory for matrices quadruples. The script fails if `rows` or `embeddings` grows
faster than the length by more than a tenth over all lengths.
"""

import argparse
import json
import sys
from functools import partial
from itertools import pairwise

import torch
from measuring import (
    Arm,
    Workload,
    circumstances,
    hand_over,
    make_workload,
    model_arguments,
    peak_growth,
    peak_growth_in_fresh_process,
)

from longrm.modeling.attention_scores import attention_rows, embedding_gradients
from longrm.modeling.device_memory import return_freed_memory
from longrm.modeling.shared_prefix import branch_scores, pack

LENGTHS = (1024, 2048, 4096, 8192, 16_384, 32_768)
LONGEST_FULL = 4096
_ALLOWED = 1.1


def arms_of(load: Workload) -> dict[str, Arm]:
    packed, read = pack([load.tree]), partial(branch_scores, load.ours)
    return {
        "rows": lambda: attention_rows(load.ours, packed)[0],
        "embeddings": lambda: embedding_gradients(load.ours, packed, read),
        "full": lambda: full_matrices(load),
    }


def full_matrices(load: Workload) -> torch.Tensor:
    load.stock.set_attn_implementation("eager")
    ids = torch.tensor([[*load.tree.tokens, *load.tree.branches[0]]])
    output = load.stock(input_ids=ids, output_attentions=True)
    return torch.autograd.grad(output.logits.sum(), output.attentions)[0]


def bytes_of(arm: str, options: argparse.Namespace) -> int:
    return_freed_memory()  # as a training does
    tiny, real = (
        arms_of(make_workload(options, prompt, [options.response] * 2))[arm]
        for prompt in (128, options.prompt)
    )
    return peak_growth(tiny, real)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    model_arguments(parser)
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], help="longest prompt in tokens")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        hand_over(bytes_of(options.memory_of, options))
        return 0
    lengths = [length for length in LENGTHS if length <= options.longest]
    found: dict[str, dict[int, int]] = {}
    for arm, longest in (("rows", lengths[-1]), ("embeddings", lengths[-1]), ("full", LONGEST_FULL)):
        found[arm] = {
            length: peak_growth_in_fresh_process(arm, "--prompt", str(length))
            for length in lengths
            if length <= longest
        }
    growth = {
        arm: [round(sizes[long] / sizes[short], 2) for short, long in pairwise(sizes)]
        for arm, sizes in found.items()
    }
    print(json.dumps({"memory_bytes": found, "growth_a_doubling": growth, **circumstances(options)}))
    longer = lengths[-1] / lengths[0]
    if any(
        found[arm][lengths[-1]] > _ALLOWED * longer * found[arm][lengths[0]] for arm in ("rows", "embeddings")
    ):
        print("memory grows faster than the context", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
