import json
import os

import pytest

from longrm.config import Config
from longrm.errors import RunError
from longrm.runs.folder import RunFolder, read_manifest, read_summary, write_file


class Settings(Config):
    steps: int = 1


def test_the_same_settings_continue_and_others_are_refused_by_name(tmp_path):
    with RunFolder(tmp_path / "run", "training", Settings()) as folder:
        assert not folder.continued
        (folder.path / "steps.jsonl").write_text("{}\n")
    with RunFolder(tmp_path / "run", "training", Settings()) as folder:
        assert folder.continued
    with (
        pytest.raises(RunError, match=r"other settings \(steps: 1 -> 2\)"),
        RunFolder(tmp_path / "run", "training", Settings(steps=2)),
    ):
        pass
    with (
        pytest.raises(RunError, match="holds a run of kind 'training', not 'evaluation'"),
        RunFolder(tmp_path / "run", "evaluation", Settings()),
    ):
        pass


def test_a_run_that_recorded_nothing_may_begin_anew_with_other_settings(tmp_path):
    for steps in (1, 2):
        with RunFolder(tmp_path, "training", Settings(steps=steps)) as folder:
            assert not folder.continued
            (folder.path / "steps.jsonl").touch()
    assert "steps = 2" in (tmp_path / "config.toml").read_text()


def test_a_run_killed_while_it_claimed_its_folder_can_begin_again(tmp_path):
    with RunFolder(tmp_path, "training", Settings()):
        pass
    (tmp_path / "manifest.json").unlink()
    with RunFolder(tmp_path, "training", Settings()) as folder:
        assert not folder.continued


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with (
        pytest.raises(RunError, match=r"holds no run \(thesis.tex"),
        RunFolder(tmp_path, "training", Settings()),
    ):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "precious"
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_two_processes_cannot_hold_one_folder(tmp_path):
    with (
        RunFolder(tmp_path / "run", "training", Settings()),
        pytest.raises(RunError, match="in use by another process"),
        RunFolder(tmp_path / "run", "training", Settings()),
    ):
        pass
    with RunFolder(tmp_path / "run", "training", Settings()) as folder:
        assert folder.path.is_dir()


def test_a_path_under_a_file_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunError, match="cannot use .*file/run as a run folder: Not a directory"),
        RunFolder(tmp_path / "file" / "run", "training", Settings()),
    ):
        pass


def test_the_manifest_and_summary_are_read_back(tmp_path):
    with RunFolder(tmp_path, "training", Settings()) as folder:
        folder.write_summary({"schema_version": 1, "kind": "training"})
    assert read_manifest(tmp_path)["kind"] == "training"
    assert "numpy" in read_manifest(tmp_path)["versions"]
    assert read_summary(tmp_path) == {"schema_version": 1, "kind": "training"}


def test_a_missing_a_foreign_and_a_damaged_summary_are_named(tmp_path):
    with pytest.raises(RunError, match=r"holds no summary\.json"):
        read_summary(tmp_path)
    (tmp_path / "summary.json").write_text(json.dumps({"schema_version": 99}))
    with pytest.raises(RunError, match="schema version 99"):
        read_summary(tmp_path)
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(RunError, match="not valid JSON"):
        read_summary(tmp_path)


def test_a_failed_write_leaves_the_earlier_file_and_no_scratch(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_file(path, "first")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="cannot write .*: No space left on device"):
        write_file(path, "second")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_run_that_is_refused_before_any_work_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="refused"), RunFolder(tmp_path / "new", "evaluation", Settings()):
        raise ValueError("refused")
    assert not (tmp_path / "new").exists()

    def fail_later():
        with RunFolder(tmp_path / "new", "evaluation", Settings()) as run:
            (run.path / "log.jsonl").write_text("work")
            raise ValueError("later")

    with pytest.raises(ValueError, match="later"):
        fail_later()
    assert (tmp_path / "new" / "log.jsonl").exists()


def test_a_failed_run_leaves_the_parts_of_others_alone(tmp_path):
    def fail(folder):
        (folder.path / "log.part-1.jsonl").touch()  # another process is about to write to it
        raise RunError("no")

    with pytest.raises(RunError), RunFolder(tmp_path / "run", "test", Settings()) as folder:
        fail(folder)
    assert (tmp_path / "run/log.part-1.jsonl").exists()
    assert (tmp_path / "run/manifest.json").exists()
