"""The shared-prefix transformer: loading, attention, scores and log-probabilities, generation, prefix cache.

Start with `shared_prefix` (what is computed) and `attention` (how).
"""

import logging
from importlib import import_module

# Wherever DeepSpeed is installed, transformers imports it when it saves or trains a model. DeepSpeed then logs, on
# standard output, where results belong, a warning about a CPU.
logging.getLogger("DeepSpeed").addFilter(
    lambda record: "Setting accelerator to CPU" not in record.getMessage()
)
# And PEFT imports bitsandbytes wherever that is installed, which then misses a faster kernel for CPUs.
logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(
    lambda record: "gemm_4bit_forward" not in record.getMessage()
)


def __getattr__(name: str) -> object:
    """Imports the modules of docs/api.md at their first use: `import longrm` is enough to name their contents."""
    if name in ("attended_regions", "attention_scores"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
