"""Freed memory is used again where longrm asks for it."""

import platform
import subprocess
import sys

import pytest


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_freed_memory_is_used_again():
    """Counts the pages that the system gives a process which allocates and frees 64 blocks of 48 MiB."""
    counted = """
import resource, sys
from longrm.runs.freed_memory import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(64):
    block = bytearray(48 * 2**20)
    block[::4096] = b"1" * len(block[::4096])
    del block
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    pages = {
        how: int(subprocess.check_output([sys.executable, "-c", counted, how], text=True))
        for how in ("kept", "returned")
    }
    assert pages["kept"] * 16 < pages["returned"], pages
