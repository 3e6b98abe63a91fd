"""What glibc does with the freed memory of this process, such as that of tensors on a CPU; elsewhere nothing happens.

By default it returns blocks of megabytes to the system, which clears the pages of every new one, and raises the size
from which it does so up to 32 MiB while a program runs.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h


def keep_freed_memory() -> None:
    """Keeps all freed memory for the next tensors, so that passes take less time."""
    # glibc before 2.35 refuses more than 32 MiB.
    if not _set(_MMAP_THRESHOLD, 2**30):
        _set(_MMAP_THRESHOLD, 2**25)
    _set(_TRIM_THRESHOLD, 2**31 - 1)


def return_freed_memory() -> None:
    """Returns blocks of 4 MiB or more at once; tensors of many sizes, as in training, would fragment what is kept."""
    _set(_MMAP_THRESHOLD, 4 * 2**20)
    _set(_TRIM_THRESHOLD, 128 * 2**10)  # the default


def _set(parameter: int, value: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(parameter, value))
