"""Shared by the experiments: what is recorded with every result."""

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from typing import Any, Literal

import torch
import transformers


def precision() -> Literal["bfloat16", "float32"]:
    """How matrices are multiplied: in bf16 where the CPU has instructions for it; on others it is slower than fp32."""
    features = torch.cpu.get_capabilities()
    return "bfloat16" if features.get("amx_bf16") or features.get("avx512_bf16") else "float32"


def circumstances(options: argparse.Namespace) -> dict[str, Any]:
    """Machine, versions and command: what is needed to repeat the experiment."""
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


def show(result: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
    else:
        print("  ".join(f"{key} {value}" for key, value in result.items() if isinstance(value, float)))
