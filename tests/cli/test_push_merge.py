"""`longrm merge`."""

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForSequenceClassification

from longrm.cli.push import merge as command
from longrm.data import write
from longrm.errors import LongRMError
from longrm.modeling.loading import load_scorer, new_language_model
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape, TokenTree
from longrm.modeling.shared_prefix import pack, scores
from longrm.training import model_card
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.kills import Killed, killed_after

TREE = TokenTree(list(range(5, 42)), [[50, 51, 4], [60, 4]])


def merge(*arguments):
    return CliRunner().invoke(command, list(map(str, arguments)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The run folder of a reward model that was trained with adapters."""
    place = tmp_path_factory.mktemp("trained")
    write(place / "rows.jsonl", generate(WorldPlan("records", 64, seed=3), 8, words_tokenizer()))
    save(
        new_language_model(ModelShape(hidden=16, heads=2, kv_heads=2, head_dim=8), words_tokenizer(), seed=0),
        place / "base",
    )
    settings = {
        "model": {"path": str(place / "base"), "lora": {"r": 2}},
        "data": {"path": str(place / "rows.jsonl")},
        "optimizer": {"max_steps": 4, "learning_rate": 1e-2},
    }
    train(TrainingSettings.model_validate({"objective": "bradley_terry"} | settings), place / "run")
    return place / "run"


def test_a_run_is_merged_to_a_model_that_scores_the_same(trained, tmp_path):
    done = merge(trained, "--out", tmp_path / "merged")
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        f"Wrote {tmp_path / 'merged'}",
        f"next: longrm push {tmp_path / 'merged'} OWNER/NAME --dry-run",
    ]
    with torch.no_grad():
        truth = scores(load_scorer(trained / "model").model, pack([TREE]))
        base = scores(load_scorer(trained.parent / "base", head_seed=0).model, pack([TREE]))
        merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
        plain = [
            merged(input_ids=torch.tensor([[*TREE.tokens, *branch]])).logits[0, 0] for branch in TREE.branches
        ]
    assert (torch.stack(plain) - truth).abs().max() < 1e-5
    assert (base - truth).abs().max() > 1e-3
    card = (tmp_path / "merged" / "README.md").read_text()
    assert "library_name: transformers" in card
    assert "library_name: peft" in (trained / "model" / "README.md").read_text()


def test_a_folder_without_an_adapter_and_an_output_with_files_are_errors(trained, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("")
    for run, out, named in (
        (trained.parent / "base", tmp_path / "merged", "base"),
        (tmp_path / "gone", tmp_path / "merged", "gone"),
        (trained, tmp_path / "precious", "precious"),
    ):
        done = merge(run, "--out", out)
        assert isinstance(done.exception, LongRMError)
        assert named in str(done.exception)
    assert [entry.name for entry in tmp_path.iterdir()] == ["precious"]


def test_a_merge_that_was_killed_before_its_last_file_can_be_repeated(trained, tmp_path, monkeypatch):
    with monkeypatch.context() as patched, killed_after(10**9, tmp_path) as killer:
        patched.setattr(model_card, "save_card_context", lambda *_: killer.kill())
        with pytest.raises(Killed):
            command.main([str(trained), "--out", str(tmp_path / "merged")], standalone_mode=False)
    assert [path.name for path in tmp_path.iterdir()] == [".merged.tmp"]
    assert merge(trained, "--out", tmp_path / "merged").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]
    assert (tmp_path / "merged/card.json").is_file()
    assert "# merged" in (tmp_path / "merged/README.md").read_text()
