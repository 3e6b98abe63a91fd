"""Damage to the files of a finished training, merge or synthesis is found."""

import re

import pytest
from click.testing import CliRunner

from longrm.cli.push import command as push
from longrm.cli.push import merge
from longrm.cli.runs import command as runs
from longrm.data import write
from longrm.errors import RunError
from longrm.modeling.loading import new_language_model
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.runs.folder import check_files, record_files
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.worlds import WorldPlan, generate, words_tokenizer


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
            "model": {"path": str(tmp_path / "base"), "lora": {"rank": 2}},
            "data": {"path": str(tmp_path / "rows.jsonl")},
            "optimizer": {"steps": 2},
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
            "optimizer": {"steps": 1},
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
