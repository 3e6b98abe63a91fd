"""CPU memory that is available: on the machine, within the limit of this process's cgroup."""

import os
from collections.abc import Iterator
from pathlib import Path

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_V1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
_V2 = "memory.max", "memory.current", "inactive_file"


def available_memory(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Bytes that the system would still give this process, in addition to what it holds.

    Free swap counts, as it keeps the kernel from killing. Processes that torchrun started on this machine share what
    is left. Where the system does not show it, the result is the size of its memory.
    """
    try:
        machine = _kibibytes(proc / "meminfo")
        left = [machine["MemAvailable"] + machine["SwapFree"], *_left_in_cgroups(proc, cgroups)]
        return min(left) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _kibibytes(file: Path) -> dict[str, int]:
    """The sizes in a file of /proc, in bytes."""
    lines = (line.split() for line in file.read_text().splitlines())
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words[-1] == "kB"}


def _left_in_cgroups(proc: Path, cgroups: Path) -> Iterator[int]:
    """What the limit of every cgroup above this process leaves; files that the kernel can drop count as free."""
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = cgroups / controllers
        limit, usage, droppable = _V1 if controllers else _V2
        # A container may not see this folder, only the group at the top, which is its own.
        own = top / path.lstrip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(top) and (folder / limit).is_file():
                most = (folder / limit).read_text().strip()
                if most != "max":
                    counted = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                    yield int(most) - int((folder / usage).read_text()) + int(counted[droppable])
