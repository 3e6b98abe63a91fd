"""Models and data sets of the Hub, out of its own cache on this disk: no network, and commits that move."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import constants

import longrm
from longrm import hub
from longrm.benchmarks import BenchmarkSource, Probe
from longrm.benchmarks import load as load_bench
from longrm.data import write
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ModelError, RunError
from longrm.evaluation.evaluate import Evaluation
from longrm.evaluation.evaluate import run_evaluation as evaluate
from longrm.modeling.loading import load_scorer, new_language_model, new_scorer
from longrm.modeling.saving import merge, save
from longrm.modeling.shapes import ModelShape
from longrm.reward_models import pinned
from longrm.runs.folder import read_manifest
from longrm.scoring.scored_file import ScoreSettings, score_file
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.worlds import WorldPlan, generate, words_tokenizer

OLD, NEW = "1" * 40, "2" * 40
SHAPE = ModelShape(layers=1, hidden=16, heads=2, kv_heads=2, head_dim=8, init_std=0.3)
PAIR = {
    "prompt_template": [{"role": "user", "content": "The code is amber. What is the code?"}],
    "question": "What is the code?",
    "chosen": "Amber.",
    "rejected": "Copper.",
}
Publish = Callable[..., None]


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Puts a folder into the cache as a commit, and points a branch at it."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))

    def put(
        name: str, commit: str, folder: Path | None = None, *, ref: str = "main", kind: str = "models"
    ) -> None:
        place = cache / f"{kind}--{name.replace('/', '--')}"
        if folder is not None:
            shutil.copytree(folder, place / "snapshots" / commit)
        (place / "refs").mkdir(parents=True, exist_ok=True)
        (place / "refs" / ref).write_text(commit)

    return put


@pytest.fixture
def judges(publish: Publish, tmp_path: Path) -> None:
    """A reward model whose main has moved on; a tag stays with the old one."""
    for seed, commit in ((1, OLD), (2, NEW)):
        save(new_scorer(SHAPE, words_tokenizer(), seed=seed), tmp_path / f"judge-{seed}")
        publish("acme/judge", commit, tmp_path / f"judge-{seed}")
    publish("acme/judge", OLD, ref="v1")


@pytest.fixture
def bases(publish: Publish, tmp_path: Path) -> None:
    for seed, commit in ((1, OLD), (2, NEW)):
        save(new_language_model(SHAPE, words_tokenizer(), seed=seed), tmp_path / f"base-{seed}")
        publish("acme/base", commit, tmp_path / f"base-{seed}")
    publish("acme/base", OLD)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    write(tmp_path / "pairs.jsonl", generate(WorldPlan("records", 64, seed=3), 6, words_tokenizer()))
    return tmp_path / "pairs.jsonl"


def head(source: str) -> torch.Tensor:
    return load_scorer(source).model.score.weight


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("acme/judge", ("acme/judge", None)),
        ("judge@v1", ("judge", "v1")),
        ("acme/judge@refs/pr/3", ("acme/judge", "refs/pr/3")),
        ("acme/judge@", None),
        ("a/b/c", None),
        ("./judge", None),
        ("openai:http://x#y", None),
        ("modelscope:acme/judge@v1", ("modelscope:acme/judge", "v1")),
        ("modelscope:judge", None),
    ],
)
def test_ids_and_revisions(source: str, found: tuple[str, str | None] | None):
    assert hub.split_revision(source) == found


@pytest.mark.usefixtures("judges")
def test_a_revision_names_what_is_loaded():
    for revision in ("v1", OLD):
        loaded = load_scorer(f"acme/judge@{revision}")
        assert loaded.origin == {"commit": OLD}
    new = load_scorer("acme/judge")
    assert new.origin == {"commit": NEW}
    assert not torch.equal(new.model.score.weight, loaded.model.score.weight)
    assert longrm.load("acme/judge@v1").provenance["commit"] == OLD
    assert Tokenizer.load("acme/judge@v1").chat_template == words_tokenizer().chat_template
    assert pinned("acme/judge@v1") == f"acme/judge@{OLD}"
    assert pinned("compress:acme/judge") == f"compress:acme/judge@{NEW}"
    assert pinned("baseline:longest") == "baseline:longest"
    with pytest.raises(ModelError, match="acme/judge@v9"):
        load_scorer("acme/judge@v9")


class Stop(Exception):
    pass


def stopping(label: str, log: Path | None = None) -> Callable[[str, int, int], None]:
    def progress(step: str, done: int, total: int, note: str = "") -> None:
        if step.startswith(label) and done and (log is None or log.stat().st_size):
            raise Stop

    return progress


@pytest.mark.usefixtures("judges")
def test_an_evaluation_continues_on_its_commit_only(publish: Publish, pairs: Path, tmp_path: Path):
    settings = Evaluation(model="acme/judge", bench=f"file:{pairs}")
    publish("acme/judge", OLD)
    with pytest.raises(Stop):
        evaluate(settings, tmp_path / "run", progress=stopping("judging", tmp_path / "run/judgments.jsonl"))
    assert read_manifest(tmp_path / "run")["model"]["commit"] == OLD
    publish("acme/judge", NEW)
    with pytest.raises(RunError, match=f"model.commit: '{OLD}' -> '{NEW}'"):
        evaluate(settings, tmp_path / "run")
    publish("acme/judge", OLD)
    assert evaluate(settings, tmp_path / "run").to_dict()["counts"]["comparisons"] == 6


@pytest.mark.usefixtures("judges")
def test_scores_of_one_file_are_of_one_commit(publish: Publish, pairs: Path, tmp_path: Path):
    settings = ScoreSettings(model="acme/judge", data=str(pairs))
    log = tmp_path / "scored.jsonl.partial/scores.jsonl"
    with pytest.raises(Stop):
        score_file(settings, tmp_path / "scored.jsonl", progress=stopping("scoring", log))
    publish("acme/judge", OLD)
    with pytest.raises(RunError, match=f"model.commit: '{NEW}' -> '{OLD}'"):
        score_file(settings, tmp_path / "scored.jsonl")


def recipe(pairs: Path, tmp_path: Path, objective: str = "bradley_terry", **model: Any) -> Any:
    settings = {
        "model": {"path": "acme/base", **model},
        "data": {"path": str(pairs)},
        "optimizer": {"max_steps": 2, "learning_rate": 1e-2},
        "checkpoint": {"save_steps": 1},
    }
    if objective == "preference":
        settings["loss"] = {"loss_type": "dpo"}
    return TrainingSettings.model_validate({"objective": objective} | settings)


@pytest.mark.usefixtures("bases")
@pytest.mark.parametrize(("objective", "lora"), [("bradley_terry", True), ("preference", False)])
def test_a_training_continues_on_its_commit_only(
    objective: str, lora: bool, publish: Publish, pairs: Path, tmp_path: Path
):
    """Otherwise adapters would be on another base, and a DPO reference would be another model."""
    settings = recipe(pairs, tmp_path, objective, **({"lora": {"r": 2}} if lora else {}))
    with pytest.raises(Stop):
        train(settings, tmp_path / "run", progress=stopping("training"))
    assert read_manifest(tmp_path / "run")["model"]["commit"] == OLD
    publish("acme/base", NEW)
    with pytest.raises(RunError, match=f"model.commit: '{OLD}' -> '{NEW}'.*OWNER/NAME@COMMIT"):
        train(settings, tmp_path / "run")
    publish("acme/base", OLD)
    train(settings, tmp_path / "run")
    card = (tmp_path / "run/model/README.md").read_text()
    assert f"`acme/base` at commit `{OLD}`" in card
    assert "base_model: acme/base" in card


@pytest.mark.usefixtures("bases")
def test_an_adapter_keeps_the_commit_of_its_base(publish: Publish, pairs: Path, tmp_path: Path):
    train(recipe(pairs, tmp_path, path="acme/base@main", lora={"r": 2}), tmp_path / "run")
    adapter = tmp_path / "run/model"
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("acme/base", OLD)
    assert (
        f'from_pretrained("acme/base", revision="{OLD}", num_labels=1)' in (adapter / "README.md").read_text()
    )
    before = longrm.load(str(adapter)).score("Where?", ["bucket", "turtle"])
    publish("acme/base", NEW)
    assert longrm.load(str(adapter)).score("Where?", ["bucket", "turtle"]) == before
    assert load_scorer(adapter).origin == {"base_commit": OLD}
    merge(adapter, tmp_path / "merged")
    # Without a revision the adapter gets the current base, whose commit is recorded.
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"revision": None}))
    assert load_scorer(adapter).origin == {"base_commit": NEW}
    assert longrm.load(str(adapter)).score("Where?", ["bucket", "turtle"]) != before


def test_a_benchmark_of_the_hub_has_a_revision_and_a_commit(publish: Publish, put: Any, tmp_path: Path):
    folder = put("bench/Math.jsonl", PAIR).parent
    publish("acme/bench", OLD, folder, kind="datasets")
    bench = load_bench("long-rewardbench:acme/bench@main", source=BenchmarkSource(), probe=Probe())
    assert [comparison.id for comparison in bench.comparisons] == ["Math/1"]
    assert bench.provenance == {"commit": OLD}
    evaluate(Evaluation(model="baseline:longest", bench=bench.name), tmp_path / "run")
    assert read_manifest(tmp_path / "run")["bench"] == {"commit": OLD}
    assert "model" not in read_manifest(tmp_path / "run"), "a baseline has none"


@pytest.mark.usefixtures("judges")
def test_a_data_set_of_the_hub_is_read(publish: Publish, pairs: Path, tmp_path: Path):
    for commit, count in ((OLD, 6), (NEW, 4)):
        folder = tmp_path / commit / "data"
        folder.mkdir(parents=True)
        (folder / "train-00000-of-00001.jsonl").write_text("".join(lines_of(pairs)[:count]))
        publish("acme/pairs", commit, tmp_path / commit, kind="datasets")
    publish("acme/pairs", OLD, ref="v1", kind="datasets")
    for name, commit, count in (("acme/pairs@v1", OLD, 6), ("acme/pairs", NEW, 4)):
        out = tmp_path / f"run-{count}"
        judged = evaluate(Evaluation(model="baseline:overlap", bench=f"file:{name}"), out).to_dict()
        assert judged["counts"]["comparisons"] == count
        assert read_manifest(out)["bench"]["commit"] == commit
    assert len([*longrm.data.read("acme/pairs@v1")]) == 6


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


@pytest.fixture
def modelscope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A stand-in for ModelScope's client, whose cache names folders by the requested revision."""
    requests: list[dict[str, Any]] = []
    save(new_scorer(SHAPE, words_tokenizer(), seed=1), tmp_path / "judge")
    save(new_language_model(SHAPE, words_tokenizer(), seed=1), tmp_path / "base")

    def snapshot_download(
        model_id: str, revision: str | None = None, *, repo_type: str, allow_patterns: list[str]
    ) -> str:
        requests.append({"id": model_id, "revision": revision, "type": repo_type, "patterns": allow_patterns})
        name = model_id.partition("/")[2]
        if not (tmp_path / name).is_dir():
            raise RuntimeError(f"no {model_id}\nat all")
        folder = tmp_path / "models" / name / "snapshots" / (revision or "master")
        shutil.copytree(tmp_path / name, folder, dirs_exist_ok=True)
        return str(folder)

    monkeypatch.setitem(sys.modules, "modelscope", SimpleNamespace(snapshot_download=snapshot_download))
    return requests


def test_models_and_data_of_modelscope(modelscope: list[dict[str, Any]], pairs: Path, tmp_path: Path):
    loaded = load_scorer(f"modelscope:acme/judge@{OLD}")
    assert loaded.origin == {"commit": OLD}
    assert torch.equal(loaded.model.score.weight, head(str(tmp_path / "judge")))
    assert load_scorer("modelscope:acme/judge").origin == {}
    assert (modelscope[0]["id"], modelscope[0]["revision"]) == ("acme/judge", OLD)
    assert {one["type"] for one in modelscope} == {"model"}
    assert "*.safetensors" in modelscope[0]["patterns"]
    assert longrm.load("likelihood:modelscope:acme/base").name
    assert longrm.load(f"modelscope:acme/judge@{OLD}").provenance["commit"] == OLD
    assert pinned("likelihood:modelscope:acme/base") == "likelihood:modelscope:acme/base"
    assert Tokenizer.load("modelscope:acme/judge").chat_template == words_tokenizer().chat_template
    (tmp_path / "pairs").mkdir()
    shutil.move(pairs, tmp_path / "pairs")
    assert len([*longrm.data.read("modelscope:acme/pairs")]) == 6
    assert modelscope[-1]["type"] == "dataset"
