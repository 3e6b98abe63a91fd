"""The shared-prefix transformer: loading, attention, scores and log-probabilities, generation, prefix cache.

Start with `shared_prefix` (what is computed) and `attention` (how).
"""

import logging

# Wherever DeepSpeed is installed, transformers imports it when it saves or trains a model. DeepSpeed then logs, on
# standard output, where results belong, a warning about a CPU.
logging.getLogger("DeepSpeed").addFilter(
    lambda record: "Setting accelerator to CPU" not in record.getMessage()
)
# And PEFT imports bitsandbytes wherever that is installed, which then misses a faster kernel for CPUs.
logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(
    lambda record: "gemm_4bit_forward" not in record.getMessage()
)
