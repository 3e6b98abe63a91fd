import fcntl
import os

import pytest

from longrm.config import Config
from longrm.errors import RunError
from longrm.runs.folder import RunFolder
from longrm.runs.removal import is_running, remove_runs, run_folders, size_of


class Nothing(Config):
    """No settings."""


@pytest.fixture
def run(tmp_path):
    def make(name):
        with RunFolder(tmp_path / name, "evaluation", Nothing()):
            (tmp_path / name / "work.jsonl").write_text("x" * 10)
        return tmp_path / name

    return make


def test_a_run_is_removed_completely_and_links_are_not_followed(tmp_path, run):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("stays")
    folder = run("one")
    (folder / "link").symlink_to(outside)
    (folder / "file").symlink_to(outside / "precious")
    remove_runs([folder])
    assert not folder.exists()
    assert (outside / "precious").read_text() == "stays"


def test_a_removal_that_is_killed_leaves_no_half_of_a_run(tmp_path, run, monkeypatch):
    folder, other = run("one"), run("two")

    def killed(place, **options):
        (place / "work.jsonl").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_runs([folder])
    assert not folder.exists()
    assert [*run_folders(tmp_path)] == [other]
    remove_runs([other])
    assert not any(tmp_path.iterdir()), "leftovers of the killed removal are removed, too"


def test_nothing_is_removed_if_one_folder_is_not_a_run(tmp_path, run):
    kept, foreign = run("kept"), tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("all of it")
    (tmp_path / "alias").symlink_to(kept)
    (tmp_path / "half").mkdir()
    (tmp_path / "half/manifest.json").write_text('{"name": "a browser extension", "manifest_version": 3}')
    (tmp_path / "half/config.toml").write_text("")
    refused = {
        foreign: r"manifest\.json",
        tmp_path / "none": "none",
        foreign / "thesis.tex": "thesis",
        tmp_path / "alias": "alias",
        tmp_path / "half": r"manifest\.json, field 'schema_version'",
    }
    for folder, message in refused.items():
        with pytest.raises(RunError, match=message):
            remove_runs([kept, folder])
    assert (kept / "work.jsonl").exists()
    assert (foreign / "thesis.tex").exists()
    (kept / "config.toml").unlink()
    with pytest.raises(RunError, match="config.toml"):
        remove_runs([kept])
    assert kept.exists()


def test_a_running_run_is_not_removed_even_inside_another(tmp_path, run):
    outer, inner = run("outer"), run("outer/stages/inner")
    with (inner / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert (is_running(outer), is_running(inner)) == (False, True)
        with pytest.raises(RunError, match="inner"):
            remove_runs([outer])
    assert not is_running(inner)
    remove_runs([outer])
    assert not outer.exists()


def test_the_size_counts_every_file_once_and_a_link_as_itself(tmp_path, run):
    folder = run("one")
    (folder / "deep").mkdir()
    (folder / "deep/big").write_bytes(b"x" * 1000)
    before = size_of(folder)
    counted = sum(
        os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(folder) for name in names
    )
    assert before == counted >= 1010
    (tmp_path / "huge").write_bytes(b"x" * 10**6)
    (folder / "link").symlink_to(tmp_path / "huge")
    assert before < size_of(folder) < before + 1000
