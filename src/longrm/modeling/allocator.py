"""How the C library of a CPU gives memory back."""

import ctypes

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h
_BYTES = 4 * 2**20


def return_freed_memory() -> None:
    """Lets every tensor of 4 MiB or more go back to the system when it is freed, for the rest of this process.

    By itself glibc raises that size to 32 MiB while a program runs, and holds what is smaller in a heap that tensors
    of many sizes leave full of holes. A C library that has no such setting is left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _BYTES)
