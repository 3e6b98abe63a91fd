"""Files and folders appear completely or not at all, and leftovers of killed processes are removed."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from longrm.config import Config
from longrm.runs import scratch
from longrm.runs.folder import RunFolder, write_file
from longrm.runs.scratch import discard, new_folder, replacing, sweep
from tests.kills import Killed, killed_after, killed_everywhere


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def leave_scratch_file(path):
    """Kills a process that replaces a file."""
    code = f"""
import os
from pathlib import Path
from longrm.runs.scratch import replacing
with replacing(Path({str(path)!r})) as file:
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_file_is_replaced_completely_or_not_at_all(tmp_path):
    path = tmp_path / "made" / "out.jsonl"
    with replacing(path) as file:
        file.write(b"one")
        assert not path.exists()
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"%d" % (1 // 0))
    assert path.read_bytes() == b"one"
    assert names(path.parent) == ["out.jsonl"]


@pytest.fixture
def disk(monkeypatch):
    """What a power cut leaves: the names and bytes of files at their last sync, by inode."""
    synced = {}
    fsync = os.fsync

    def see(descriptor):
        fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        state = sorted(names(path)) if path.is_dir() else path.read_bytes()
        synced[os.fstat(descriptor).st_ino] = state

    monkeypatch.setattr(os, "fsync", see)
    return lambda path: synced.get(path.stat().st_ino)


def test_a_replaced_file_survives_a_power_cut(tmp_path, disk):
    write_file(tmp_path / "out.json", "whole")
    assert disk(tmp_path / "out.json") == b"whole"
    assert disk(tmp_path) == ["out.json"], "its name, too"


def test_a_new_folder_survives_a_power_cut(tmp_path, disk):
    with new_folder(tmp_path / "model") as folder:
        (folder / "part").mkdir()
        (folder / "part/one").write_text("1")
        (folder / "two").write_text("2")
    model = tmp_path / "model"
    assert (disk(model / "part/one"), disk(model / "two")) == (b"1", b"2")
    assert (disk(model), disk(model / "part")) == (["part", "two"], ["one"])
    assert "model" in disk(tmp_path)


def test_the_scratch_file_of_a_killed_process_is_removed_with_the_next_write(tmp_path):
    path = tmp_path / "out [1].jsonl"
    leave_scratch_file(path)
    (left,) = names(tmp_path)
    write_file(tmp_path / "other.jsonl", "")
    assert left in names(tmp_path), "it belongs to another file"
    write_file(path, "whole")
    assert names(tmp_path) == ["other.jsonl", "out [1].jsonl"]


def test_a_run_folder_removes_leftovers_first(tmp_path):
    (tmp_path / "run").mkdir()
    leave_scratch_file(tmp_path / "run" / "config.toml")
    with RunFolder(tmp_path / "run", "training", Config()):
        assert names(tmp_path / "run") == [".lock", "config.toml", "manifest.json"]


def test_files_of_running_processes_stay(tmp_path):
    path = tmp_path / "out.jsonl"
    with replacing(path) as one:
        with replacing(path) as other:
            sweep(tmp_path)
            assert len(names(tmp_path)) == 2
            other.write(b"other")
        assert path.read_bytes() == b"other"
        one.write(b"one")
    assert path.read_bytes() == b"one"
    assert names(tmp_path) == ["out.jsonl"]


@pytest.mark.parametrize("taken", ["held", "gone"])
def test_a_scratch_file_that_another_process_swept_is_written_again(tmp_path, monkeypatch, taken):
    """Another process may sweep between the creation of a file and its lock."""
    calls = []

    def flock(descriptor, operation):
        calls.append(operation)
        if len(calls) > 1:
            return
        if taken == "held":
            raise BlockingIOError
        next(tmp_path.iterdir()).unlink()

    monkeypatch.setattr(scratch.fcntl, "flock", flock)
    with replacing(tmp_path / "out.jsonl") as file:
        file.write(b"whole")
    assert (tmp_path / "out.jsonl").read_bytes() == b"whole"
    assert len(calls) == 2


def test_writing_through_a_link_replaces_the_file_that_it_leads_to(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far/target.html").write_text("old")
    (tmp_path / "link.html").symlink_to("far/target.html")
    (tmp_path / "dangling.html").symlink_to("far/new.html")
    write_file(tmp_path / "link.html", "new")
    write_file(tmp_path / "dangling.html", "new")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "dangling.html").is_symlink()
    assert names(tmp_path / "far") == ["new.html", "target.html"]
    assert (tmp_path / "far/target.html").read_text() == (tmp_path / "far/new.html").read_text() == "new"


def test_a_new_folder_killed_at_any_change_is_complete_the_next_time(tmp_path):
    def work(place):
        for content in ("old", "new"):
            with new_folder(place / "model") as folder:
                for name in ("one", "two"):
                    (folder / name).write_text(content)

    def check(place):
        assert names(place) == ["model"]
        contents = {path.name: path.read_text() for path in (place / "model").iterdir()}
        assert contents == {"one": "new", "two": "new"}

    assert killed_everywhere(work, check, tmp_path) > 10


def test_a_folder_whose_removal_was_killed_is_there_in_full_or_not_at_all(tmp_path):
    for kills in range(9):
        place = tmp_path / str(kills)
        for name in ("one", "two", "three"):
            (place / "run").mkdir(parents=True, exist_ok=True)
            (place / "run" / name).touch()
        with suppress(Killed), killed_after(kills, place):
            discard(place / "run")
        assert not (place / "run").exists() or names(place / "run") == ["one", "three", "two"]
        discard(place / "run")
        assert names(place) == []


def test_a_failed_new_folder_leaves_the_old_one(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/one").write_text("old")
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "model") as folder:
        (folder / "one").write_text(f"{1 // 0}")
    assert names(tmp_path) == ["model"]
    assert (tmp_path / "model/one").read_text() == "old"
