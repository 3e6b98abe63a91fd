"""Damage to the files of a finished training, merge or synthesis is found."""

import pytest
from click.testing import CliRunner

from longrm.cli.merge import command as merge
from longrm.cli.push import command as push
from longrm.cli.runs import command as runs
from longrm.data import write
from longrm.errors import RunError
from longrm.modeling.loading import new_language_model
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.runs.promised_files import check_files, record_files
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.worlds import WorldPlan, generate, words_tokenizer


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def remove(path):
    path.unlink()


def zero(path):
    path.write_bytes(bytes(path.stat().st_size))


def test_damage_is_found_and_the_file_is_named(tmp_path):
    for damage, digests in ((truncate, False), (remove, False), (zero, True)):
        path = tmp_path / "rows" / "a.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("content")
        record_files(tmp_path, [path])
        assert check_files(tmp_path) == check_files(tmp_path, digests=True) == ["rows/a.jsonl"]
        damage(path)
        if digests:
            check_files(tmp_path)  # sizes alone do not show it
        with pytest.raises(RunError, match=r"a\.jsonl"):
            check_files(tmp_path, digests=digests)


@pytest.fixture
def trained(tmp_path):
    """The settings of a training with adapters, and its run folder."""
    write(tmp_path / "rows.jsonl", generate(WorldPlan("records", 64, seed=3), 4, words_tokenizer()))
    shape = ModelShape(layers=1, hidden=16, heads=2, kv_heads=2, head_dim=8)
    save(new_language_model(shape, words_tokenizer(), seed=0), tmp_path / "base")
    settings = TrainingSettings.model_validate(
        {"objective": "bradley_terry"}
        | {
            "model": {"path": str(tmp_path / "base"), "lora": {"rank": 2}},
            "data": {"path": str(tmp_path / "rows.jsonl")},
            "optimizer": {"steps": 2},
        }
    )
    train(settings, tmp_path / "run")
    return settings, tmp_path / "run"


def invoke(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_zeroed_weights_are_found_when_they_are_merged_pushed_and_verified(trained, tmp_path):
    run = trained[1]
    assert invoke(runs, "show", run, "--verify").exit_code == 0
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
