"""The memory that is left on this machine, and within the limit of a container."""

import os

import pytest

from longrm.training.plan.available import available_memory

GIB = 2**30


@pytest.fixture
def system(tmp_path):
    """Makes the files of a system with 20 GiB available, and of its cgroups."""

    def make(groups="", **files):
        for name, text in {
            "proc/meminfo": f"MemTotal: {2**25} kB\nMemAvailable: {20 * 2**20} kB\nSwapFree: 0 kB\nHugePages: 0\n",
            "proc/self/cgroup": groups,
            **{name: str(text) for name, text in files.items()},
        }.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return available_memory(tmp_path / "proc", tmp_path / "cgroup")

    return make


def group(folder, limit, used, droppable=0):
    names = ("memory.max", "memory.current", "inactive_file")
    if folder.startswith("cgroup/memory"):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return {
        f"{folder}/{names[0]}": limit,
        f"{folder}/{names[1]}": used,
        f"{folder}/memory.stat": f"anon 5\n{names[2]} {droppable}\n",
    }


def test_without_a_limit_it_is_what_the_machine_has_available(system):
    assert system() == 20 * GIB
    assert system("0::/a\n", **group("cgroup/a", "max", 5)) == 20 * GIB
    assert system("4:memory:/\n", **group("cgroup/memory", 2**63 - 4096, 5)) == 20 * GIB


@pytest.mark.parametrize(
    ("line", "top"), [("0::/a/b\n", "cgroup"), ("5:cpu:/a\n4:memory:/a/b\n", "cgroup/memory")]
)
def test_the_limit_of_a_container_counts_without_files_that_can_be_dropped(system, line, top):
    own = group(f"{top}/a/b", 16 * GIB, 3 * GIB, GIB)
    assert system(line, **own) == 14 * GIB
    assert system(line, **own, **group(f"{top}/a", 12 * GIB, 4 * GIB)) == 8 * GIB, "or that of a group above"
    assert system("0::/elsewhere\n4:memory:/elsewhere\n", **group(top, 6 * GIB, GIB)) == 5 * GIB


def test_processes_of_one_launcher_share_it(system, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert system() == 5 * GIB


def test_a_system_that_does_not_show_it_has_all_its_memory(tmp_path):
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert available_memory(tmp_path, tmp_path) == total
    assert 0 < available_memory() <= total
