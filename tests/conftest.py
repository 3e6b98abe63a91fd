"""Every test runs offline, with the caches of all libraries in a temporary folder."""

import os
import tempfile

_CACHES = tempfile.mkdtemp(prefix="longrm-tests-")
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_HOME=f"{_CACHES}/huggingface",
    TORCH_EXTENSIONS_DIR=f"{_CACHES}/torch_extensions",
    TORCHINDUCTOR_CACHE_DIR=f"{_CACHES}/inductor",
    XDG_CACHE_HOME=f"{_CACHES}/cache",
    TOKENIZERS_PARALLELISM="false",
)
