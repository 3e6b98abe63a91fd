"""The formats in which clients ask for scores, one file per client."""

from collections.abc import Sequence

from longrm.serving import wire
from longrm.serving.wire_formats.llama_factory import LLAMA_FACTORY
from longrm.serving.wire_formats.longrm_scores import NATIVE
from longrm.serving.wire_formats.nemo_gym import NEMO_GYM
from longrm.serving.wire_formats.openrlhf import OPENRLHF
from longrm.serving.wire_formats.sglang import SGLANG
from longrm.serving.wire_formats.slime import SLIME
from longrm.serving.wire_formats.vllm import VLLM

WIRE_FORMATS: dict[str, Sequence[wire.Route]] = {
    "native": NATIVE,
    "vllm": VLLM,
    "sglang": SGLANG,
    "openrlhf": OPENRLHF,
    "slime": SLIME,
    "llama-factory": LLAMA_FACTORY,
    "nemo-gym": NEMO_GYM,
}
"""The registry of wire formats: a new one is one file of routes and one entry."""
