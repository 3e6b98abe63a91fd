"""Models are uploaded to a fake Hub in one commit, and the Hub's own client reads their cards."""

import hashlib
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import huggingface_hub
import pytest
from click.testing import CliRunner, Result
from huggingface_hub import CommitOperationAdd, ModelCard
from huggingface_hub.errors import HfHubHTTPError

from longrm.cli.evaluate import command as evaluate_command
from longrm.cli.push import command
from longrm.cli.push import merge as merge_command
from longrm.data import write
from longrm.errors import LongRMError
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.evaluation.summary_schema import read_summary
from longrm.modeling.loading import new_language_model
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.runs.progress import no_progress
from longrm.training.evaluations import evaluator_of
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.worlds import WorldPlan, generate, words_tokenizer

SHAPE = ModelShape(layers=1, hidden=16, heads=2, kv_heads=2, head_dim=8, init_std=0.2)
CELLS = [{"lengths": [64, 128], "depths": [0.5], "groups": 10, "per_group": 2}]
NAME = "acme/judge"


class FakeHub:
    """In place of `huggingface_hub.HfApi`: the files of every branch, whether repositories are private, and commits."""

    endpoint = "https://hub.example"

    def __init__(self) -> None:
        self.branches: dict[str, dict[str, dict[str, bytes]]] = {}
        self.private: dict[str, bool] = {}
        self.commits: list[tuple[str, str, str]] = []

    def create_repo(self, identity: str, private: bool | None, exist_ok: bool) -> None:
        if identity.startswith("others/"):
            request = httpx.Request("POST", self.endpoint)
            raise HfHubHTTPError("403", response=httpx.Response(403, request=request))
        self.branches.setdefault(identity, {"main": {".gitattributes": b""}})
        self.private.setdefault(identity, bool(private))

    def create_branch(self, identity: str, branch: str, exist_ok: bool) -> None:
        self.branches[identity].setdefault(branch, dict(self.branches[identity]["main"]))

    def model_info(self, identity: str, revision: str | None = None) -> Any:
        files = self.branches[identity][revision or "main"]
        return SimpleNamespace(private=self.private[identity], sha=self._digest(files))

    def list_repo_files(self, identity: str, revision: str | None) -> list[str]:
        return [*self.branches[identity][revision or "main"]]

    def create_commit(self, identity: str, operations: Any, commit_message: str, revision: str | None) -> Any:
        files = self.branches[identity][revision or "main"]
        before = self._digest(files)
        for one in operations:
            if isinstance(one, CommitOperationAdd):
                with one.as_file() as content:
                    files[one.path_in_repo] = content.read()
            else:
                del files[one.path_in_repo]
        if self._digest(files) != before:  # the Hub creates no empty commit
            self.commits.append((identity, revision or "main", commit_message))
        return SimpleNamespace(oid=self._digest(files))

    def _digest(self, files: dict[str, bytes]) -> str:
        return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model, its evaluation made in training and one made later, an adapter, and a model merged from it."""
    place = tmp_path_factory.mktemp("secret-home")
    write(place / "private-rows.jsonl", generate(WorldPlan("records", 64, seed=3), 8, words_tokenizer()))
    save(new_language_model(SHAPE, words_tokenizer(), seed=0), place / "my-base")
    (place / "my-base/README.md").write_text("---\nlicense: llama3.1\n---\n# Base\n")
    data, optimizer = {"path": str(place / "private-rows.jsonl")}, {"max_steps": 2, "learning_rate": 1e-2}
    for name, lora in (("full", {}), ("adapter", {"lora": {"r": 2}})):
        settings = {
            "data": data,
            "optimizer": optimizer,
            "model": {"path": str(place / "my-base"), **lora},
            "evaluation": {"eval_steps": 2, "settings": {"bench": "probe", "probe": {"cells": CELLS}}},
        }
        recipe = TrainingSettings.model_validate({"objective": "bradley_terry"} | settings)
        train(recipe, place / name, evaluator=evaluator_of(recipe.evaluation, no_progress))
    merged = CliRunner().invoke(merge_command, [str(place / "adapter"), "--out", str(place / "merged")])
    assert merged.exit_code == 0
    evaluate(place / "full/model", f"file:{place / 'private-rows.jsonl'}", place / "later")
    return place


def evaluate(model: Path | str, bench: str, out: Path, **settings: Any) -> None:
    run_evaluation(Evaluation.resolve(overrides={"model": str(model), "bench": bench, **settings}), out)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    return fake


def push(*arguments: Any) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def refusal(*arguments: Any) -> str:
    done = push(*arguments)
    assert isinstance(done.exception, LongRMError), done.output
    assert "\n" not in str(done.exception)
    return str(done.exception)


def test_a_run_is_uploaded_complete_and_nothing_else(place: Path, hub: FakeHub):
    (place / "full/model/notes.txt").write_text("my notes")
    done = push(place / "full", NAME)
    (place / "full/model/notes.txt").unlink()
    assert done.exit_code == 0, done.exception
    held = hub.branches[NAME]["main"]
    expected = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert (
        expected
        <= held.keys()
        <= expected | {"chat_template.jinja", ".gitattributes", "generation_config.json"}
    )
    for name in held.keys() - {"README.md", ".gitattributes"}:
        assert held[name] == (place / "full/model" / name).read_bytes()
    assert not any(b"secret-home" in content for content in held.values())
    assert hub.commits == [(NAME, "main", "Upload judge with longrm")]
    assert not hub.private[NAME]
    assert "notes.txt" in done.output.partition("Not uploaded: ")[2]
    uploaded, following = done.output.splitlines()[-2:]
    assert uploaded.endswith(f" bytes to {hub.endpoint}/{NAME}")
    assert following == f"next: longrm serve --model {NAME}"


def test_the_card_has_the_results_of_the_evaluations(place: Path, hub: FakeHub):
    assert push(place / "full", NAME, "--results", place / "later").exit_code == 0
    text = hub.branches[NAME]["main"]["README.md"].decode()
    data = ModelCard(text).data
    kind = (data.library_name, data.pipeline_tag, data.license)
    assert kind == ("transformers", "text-classification", "llama3.1")
    assert data.base_model is None, "the initial model is a local folder"
    expected = {}
    for bench, run in (("probe", "full/evaluations/2"), ("file:private-rows.jsonl", "later")):
        metrics = read_summary(place / run)["metrics"]
        parts = {f"{bench}, {int(size):,} tokens": part for size, part in metrics["by_length"].items()}
        for name, part in {bench: metrics["overall"], **parts}.items():
            expected[name] = part["pair_accuracy"]["value"]
    assert {one.dataset_name: one.metric_value for one in data.eval_results} == expected
    # The Hub's client reads the same results from the metadata that it writes.
    assert ModelCard(f"---\n{data.to_yaml()}\n---\n").data.eval_results == data.eval_results
    assert text.count("Context boundary (") == 2
    assert f'longrm.load("{NAME}")' in text
    assert "secret-home" not in text


def test_a_dry_run_changes_nothing_and_shows_the_card(place: Path, hub: FakeHub):
    before = sorted((place / "full").rglob("*"))
    done = push(place / "full/model", NAME, "--dry-run")
    assert not hub.branches
    assert sorted((place / "full").rglob("*")) == before
    assert f"{(place / 'full/model/model.safetensors').stat().st_size:,}" in done.output
    card = done.stdout.partition("with this card:\n\n")[2]
    assert done.stderr == f"next: longrm push {place / 'full/model'} {NAME}\n"
    assert push(place / "full", NAME).exit_code == 0
    assert hub.branches[NAME]["main"]["README.md"].decode() == card


def test_the_settings_on_the_card_repeat_the_evaluation(place: Path, tmp_path: Path):
    card = push(place / "full", NAME, "--dry-run").stdout
    settings = card.partition("repeats it</summary>\n\n```toml\n")[2].partition("```")[0]
    (tmp_path / "evaluation.toml").write_text(settings)
    names = {
        "--config": tmp_path / "evaluation.toml",
        "--model": place / "full/model",
        "--out": tmp_path / "again",
    }
    flags = [str(word) for pair in names.items() for word in pair]
    assert CliRunner().invoke(evaluate_command, flags).exit_code in (0, 1)
    repeated, own = read_summary(tmp_path / "again"), read_summary(place / "full/evaluations/2")
    assert repeated["metrics"]["by_length"].keys() == own["metrics"]["by_length"].keys()
    ours, theirs = (one["metrics"]["overall"]["pair_accuracy"] for one in (own, repeated))
    assert ours["n"] == theirs["n"]
    assert math.isclose(ours["value"], theirs["value"])


def test_a_model_is_replaced_in_one_commit_and_an_equal_one_in_none(place: Path, hub: FakeHub):
    hub.branches[NAME] = {"main": {"model-00001-of-00002.safetensors": b"old", "plots/loss.png": b"theirs"}}
    hub.private[NAME] = False
    done = push(place / "merged", NAME)
    assert done.exit_code == 0, done.exception
    assert "removed model-00001-of-00002.safetensors" in done.output
    held = hub.branches[NAME]["main"]
    assert "model-00001-of-00002.safetensors" not in held
    assert held["plots/loss.png"] == b"theirs"
    assert held["model.safetensors"] == (place / "merged/model.safetensors").read_bytes()
    assert "card.json" not in held
    results = ModelCard(held["README.md"].decode()).data.eval_results
    assert len(results) == 3, "overall and two lengths, of the evaluation in training"
    assert "already up to date" in push(place / "merged", NAME).output
    assert len(hub.commits) == 1


def test_an_adapter_is_uploaded_with_the_id_of_its_base(place: Path, tmp_path: Path, hub: FakeHub):
    assert "longrm merge" in refusal(place / "adapter", NAME)  # its base is a local folder
    shutil.copytree(place / "adapter", tmp_path / "run")
    config = (tmp_path / "run/config.toml").read_text().replace(str(place / "my-base"), "acme/base@main")
    (tmp_path / "run/config.toml").write_text(config)
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    manifest["model"]["commit"] = "1" * 40
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
    adapter = tmp_path / "run/model/adapter_config.json"
    changed = json.loads(adapter.read_text()) | {"base_model_name_or_path": "acme/base", "revision": "1" * 40}
    adapter.write_text(json.dumps(changed))
    (tmp_path / "run/model/files.json").unlink()  # as a user who edits a file is told
    assert push(tmp_path / "run", NAME).exit_code == 0
    held = hub.branches[NAME]["main"]
    assert {"adapter_config.json", "adapter_model.safetensors"} <= held.keys()
    data = ModelCard(held["README.md"].decode()).data.to_dict()
    assert (data["base_model"], data["base_model_relation"]) == ("acme/base", "adapter")
    assert not any(b"secret-home" in content for content in held.values())


def test_errors_name_what_cannot_be_pushed(place: Path, tmp_path: Path, hub: FakeHub, monkeypatch: Any):
    evaluate(place / "merged", f"file:{place / 'private-rows.jsonl'}", tmp_path / "other")
    evaluate(place / "full/model", "probe", tmp_path / "shard", shard="1/2", **{"probe.cells": CELLS})
    for arguments, named in (
        ((place / "full", "judge"), "OWNER/NAME"),
        ((place / "later", NAME), "'evaluation'"),
        ((place / "my-base", NAME), "my-base"),
        ((place / "full", NAME, "--results", tmp_path / "other"), str(place / "merged")),
        ((place / "full", NAME, "--results", tmp_path / "shard"), "shard"),
        ((place / "full", "others/judge"), "others/judge"),
    ):
        assert named in refusal(*arguments)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert "HF_TOKEN" in refusal(place / "full", NAME)
    assert not hub.commits
