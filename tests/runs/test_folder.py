import json
import os
import re

import pytest
from click.testing import CliRunner

from longrm.cli.push import command as push
from longrm.cli.push import merge
from longrm.cli.runs import command as runs
from longrm.config import Config
from longrm.data import write
from longrm.errors import RunError
from longrm.modeling.loading import new_language_model
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.runs.folder import (
    CACHE,
    RunFolder,
    check_files,
    keep_umask,
    read_manifest,
    record_files,
    write_file,
)
from longrm.runs.logs import Log
from longrm.runs.records import GoldRecord
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.worlds import WorldPlan, generate, words_tokenizer


class Settings(Config):
    steps: int = 1


def refuses(path, match, kind="training", **settings):
    with pytest.raises(RunError, match=match), RunFolder(path, kind, Settings(**settings)):
        pass


def test_the_same_settings_continue_a_run_and_others_are_errors(tmp_path):
    with RunFolder(tmp_path / "run", "training", Settings()) as folder:
        assert not folder.continued
        (folder.path / "steps.jsonl").write_text("{}\n")
    with RunFolder(tmp_path / "run", "training", Settings()) as folder:
        assert folder.continued
    assert read_manifest(tmp_path / "run")["kind"] == "training"
    assert "numpy" in read_manifest(tmp_path / "run")["versions"]
    refuses(tmp_path / "run", "steps: 1 -> 2", steps=2)
    refuses(tmp_path / "run", "'training', not 'evaluation'", kind="evaluation")


def test_a_run_without_results_may_begin_again_with_other_settings(tmp_path):
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
    refuses(tmp_path, "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "precious"
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_two_processes_cannot_hold_one_folder(tmp_path):
    with RunFolder(tmp_path / "run", "training", Settings()):
        refuses(tmp_path / "run", "in use")
    with RunFolder(tmp_path / "run", "training", Settings()) as folder:
        assert folder.path.is_dir()


@pytest.mark.parametrize(
    ("begun", "written", "kept", "next_step"),
    [
        (False, None, False, "starts again"),
        (False, "ledger.jsonl", True, "continues where it stopped"),
        (False, CACHE, True, "continues where it stopped"),
        (True, None, True, "continues where it stopped"),
    ],
)
def test_an_interrupt_knows_what_the_same_command_does(tmp_path, begun, written, kept, next_step):
    if begun:
        with RunFolder(tmp_path / "run", "training", Settings()) as folder:
            (folder.path / "steps.jsonl").write_text("{}\n")

    def interrupted():
        with RunFolder(tmp_path / "run", "training", Settings()) as folder:
            if written:
                (folder.path / written).write_text("{}\n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=f"the same command {next_step}"):
        interrupted()
    assert (tmp_path / "run").exists() == kept


def test_a_failed_write_leaves_the_earlier_file_and_no_scratch(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_file(path, "first")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="No space left on device"):
        write_file(path, "second")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["a.json"]


def test_files_have_the_mode_of_the_users_umask(tmp_path):
    before = os.umask(0o002)
    try:
        with RunFolder(tmp_path / "run", "training", Settings()) as folder:
            write_file(folder.path / "model/card.md", "text")
            with Log(folder.path / "gold.jsonl", GoldRecord) as log:
                log.append(GoldRecord("1", (1, 2)))
            (folder.path / "made.safetensors").touch(0o600)
            keep_umask(folder.path / "made.safetensors")
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in folder.path.rglob("*") if file.is_file()}
    assert modes == dict.fromkeys(
        [".lock", "config.toml", "manifest.json", "card.md", "gold.jsonl", "made.safetensors"], 0o664
    )


def test_a_run_that_fails_before_any_work_leaves_nothing(tmp_path):
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


def test_names_that_are_not_utf_8_can_be_written(tmp_path):
    write_file(tmp_path / "a.json", json.dumps({"a": "\udcff"}, ensure_ascii=False))
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": "\udcff"}


@pytest.mark.parametrize("place", ["", "judge"])
def test_a_run_that_failed_before_its_first_result_may_begin_anew(tmp_path, place):
    """Its cache of answers stays: its keys are the requests."""

    def fail(folder):
        (folder.path / place).mkdir(exist_ok=True)
        (folder.path / "rows").mkdir()
        (folder.path / place / "completions.sqlite").write_bytes(b"answers")
        (folder.path / place / "completions.sqlite-wal").write_bytes(b"answers")
        (folder.path / "judgments.jsonl").touch()
        raise RunError("cannot reach the server")

    with pytest.raises(RunError), RunFolder(tmp_path / "run", "evaluation", Settings()) as folder:
        fail(folder)
    with RunFolder(tmp_path / "run", "training", Settings(steps=2)) as folder:
        assert not folder.continued
        assert (folder.path / place / "completions.sqlite").read_bytes() == b"answers"
        (folder.path / "rows").mkdir(exist_ok=True)
        (folder.path / "rows/rows-00000.jsonl").write_text("{}\n")
    refuses(tmp_path / "run", "other settings", steps=3)


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.toml", "steps = "), ("manifest.json", '{"kind": 5}'), ("manifest.json", "null")],
)
def test_a_damaged_settings_or_manifest_file_is_named(tmp_path, name, content):
    with RunFolder(tmp_path, "training", Settings()) as folder:
        (folder.path / "steps.jsonl").write_text("{}\n")
    (tmp_path / name).write_text(content)
    refuses(tmp_path, name)


# --- Damage to the files of a finished training, merge or synthesis is found ---


def zero(path):
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("damage", "digests"),
    [(lambda path: path.write_text("c"), False), (lambda path: path.unlink(), False), (zero, True)],
    ids=["truncated", "removed", "zeroed"],
)
def test_damage_is_found_and_the_file_is_named(tmp_path, damage, digests):
    path = tmp_path / "a.jsonl"
    path.write_text("content")
    record_files(tmp_path, [path])
    assert check_files(tmp_path) == check_files(tmp_path, digests=True) == ["a.jsonl"]
    damage(path)
    if digests:
        check_files(tmp_path)  # sizes alone do not show it
    with pytest.raises(RunError, match=r"a\.jsonl"):
        check_files(tmp_path, digests=digests)


@pytest.fixture
def trained(tmp_path):
    """The run folder of a training with adapters."""
    write(tmp_path / "rows.jsonl", generate(WorldPlan("records", 64, seed=3), 4, words_tokenizer()))
    shape = ModelShape(layers=1, hidden=16, heads=2, kv_heads=2, head_dim=8)
    save(new_language_model(shape, words_tokenizer(), seed=0), tmp_path / "base")
    settings = TrainingSettings.model_validate(
        {
            "objective": "bradley_terry",
            "model": {"path": str(tmp_path / "base"), "lora": {"r": 2}},
            "data": {"path": str(tmp_path / "rows.jsonl")},
            "optimizer": {"max_steps": 2},
        }
    )
    train(settings, tmp_path / "run")
    return tmp_path / "run"


def invoke(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_zeroed_weights_are_found_when_they_are_merged_and_pushed(trained, tmp_path):
    run = trained
    assert invoke(merge, run, "--out", tmp_path / "merged").exit_code == 0
    assert invoke(runs, "show", tmp_path / "merged", "--verify").exit_code == 0
    assert invoke(push, tmp_path / "merged", "acme/judge", "--dry-run").exit_code == 0
    zero(run / "model/adapter_model.safetensors")
    zero(tmp_path / "merged/tokenizer.json")
    for name, command in {
        "adapter_model.safetensors": (merge, run, "--out", tmp_path / "other"),
        "run/model/adapter_model.safetensors": (runs, "show", run, "--verify"),
        "merged/tokenizer.json": (push, tmp_path / "merged", "acme/judge", "--dry-run"),
    }.items():
        error = invoke(*command).exception
        assert isinstance(error, RunError), error
        assert name in str(error)


def test_every_file_of_a_trained_model_but_its_card_is_recorded(tmp_path):
    write(tmp_path / "rows.jsonl", generate(WorldPlan("records", 64, seed=3), 4, words_tokenizer()))
    settings = TrainingSettings.model_validate(
        {
            "objective": "bradley_terry",
            "model": {"new": {"layers": 1, "hidden": 16}},
            "data": {"path": str(tmp_path / "rows.jsonl")},
            "optimizer": {"max_steps": 1},
        }
    )
    run = tmp_path / "run"
    train(settings, run)
    names = {path.name for path in (run / "model").iterdir()}
    assert {"chat_template.jinja", "tokenizer_config.json"} <= names
    assert set(check_files(run / "model")) == names - {"README.md", "files.json"}
    for name in names - {"README.md", "files.json"}:
        path = run / "model" / name
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(RunError, match=re.escape(name)):
            train(settings, run)  # the same command
        path.write_bytes(bytes(len(content)))
        error = invoke(runs, "show", run, "--verify").exception
        assert isinstance(error, RunError), error
        assert name in str(error)
        path.write_bytes(content)
    (run / "model/README.md").write_text("edited")
    assert train(settings, run)["steps"] == 1
