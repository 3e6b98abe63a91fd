"""Models and data sets of the Hub, out of its own cache on this disk: no network, and commits that move."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants

import longrm
from longrm import hub
from longrm.benchmarks import BenchmarkSource, Leval, Probe
from longrm.benchmarks import load as load_bench
from longrm.data import write
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ModelError, RunError
from longrm.evaluation.evaluation_run import Evaluation
from longrm.evaluation.evaluation_run import run_evaluation as evaluate
from longrm.modeling.loading import (
    load_language_model,
    load_scorer,
    new_language_model,
    new_scorer,
)
from longrm.modeling.saving import merge, save
from longrm.modeling.shapes import ModelShape
from longrm.planning.model_sizes import sizes_of
from longrm.reward_models import pinned
from longrm.runs.folder import read_manifest
from longrm.scoring.scored_file import ScoreSettings, score_file
from longrm.training.objectives import OBJECTIVES
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
    with pytest.raises(
        ModelError, match="acme/judge@v9: there is no such file or folder, nor can it be had"
    ) as caught:
        load_scorer("acme/judge@v9")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("judges")
def test_a_folder_comes_before_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tmp_path / "judge-2", tmp_path / "acme" / "judge@v1")
    assert load_scorer("acme/judge@v1").origin == {}
    assert torch.equal(head("acme/judge@v1"), head("judge-2"))


class Stop(Exception):
    pass


def stopping(label: str) -> Callable[[str, int, int], None]:
    def progress(told: str, done: int, total: int, note: str = "") -> None:
        if told.startswith(label) and done:
            raise Stop

    return progress


@pytest.mark.usefixtures("judges")
def test_an_evaluation_goes_on_with_the_commit_that_it_began_with(
    publish: Publish, pairs: Path, tmp_path: Path
):
    settings = Evaluation(model="acme/judge", bench=f"file:{pairs}")
    publish("acme/judge", OLD)
    with pytest.raises(Stop):
        evaluate(settings, tmp_path / "run", progress=stopping("judging"))
    told = {"commit": OLD, "scored_at": "the last token that is not padding ('<pad>', id 0)"}
    assert read_manifest(tmp_path / "run")["model"] == told
    publish("acme/judge", NEW)
    with pytest.raises(RunError, match=f"model.commit: '{OLD}' -> '{NEW}'") as caught:
        evaluate(settings, tmp_path / "run")
    assert "\n" not in str(caught.value)
    publish("acme/judge", OLD)
    assert evaluate(settings, tmp_path / "run")["counts"]["comparisons"] == 6


@pytest.mark.usefixtures("judges")
def test_scores_of_one_file_are_of_one_commit(publish: Publish, pairs: Path, tmp_path: Path):
    settings = ScoreSettings(model="acme/judge", data=str(pairs))
    with pytest.raises(Stop):
        score_file(settings, tmp_path / "scored.jsonl", progress=stopping("scoring"))
    publish("acme/judge", OLD)
    with pytest.raises(RunError, match=f"model.commit: '{NEW}' -> '{OLD}'"):
        score_file(settings, tmp_path / "scored.jsonl")


def recipe(pairs: Path, tmp_path: Path, objective: str = "bradley_terry", **model: Any) -> Any:
    settings = {
        "model": {"path": "acme/base", **model},
        "data": {"path": str(pairs), "cache": str(tmp_path / "cache")},
        "optimizer": {"steps": 2, "learning_rate": 1e-2},
        "checkpoint": {"every": 1},
    }
    if objective == "preference":
        settings["loss"] = {"kind": "dpo"}
    return OBJECTIVES[objective].settings.model_validate(settings)


@pytest.mark.usefixtures("bases")
@pytest.mark.parametrize(("objective", "lora"), [("bradley_terry", True), ("preference", False)])
def test_a_training_goes_on_from_the_commit_that_it_began_with(
    objective: str, lora: bool, publish: Publish, pairs: Path, tmp_path: Path
):
    """Adapters would lie on another base, and a DPO reference would be another model's."""
    settings = recipe(pairs, tmp_path, objective, **({"lora": {"rank": 2}} if lora else {}))
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
    assert 'base_model: "acme/base"' in card


@pytest.mark.usefixtures("bases")
def test_an_adapter_keeps_the_commit_of_its_base(publish: Publish, pairs: Path, tmp_path: Path):
    train(recipe(pairs, tmp_path, path="acme/base@main", lora={"rank": 2}), tmp_path / "run")
    adapter = tmp_path / "run/model"
    told = json.loads((adapter / "adapter_config.json").read_text())
    assert (told["base_model_name_or_path"], told["revision"]) == ("acme/base", OLD)
    assert (
        f'from_pretrained("acme/base", revision="{OLD}", num_labels=1)' in (adapter / "README.md").read_text()
    )
    before = longrm.load(str(adapter)).score("Where?", ["bucket", "turtle"])
    publish("acme/base", NEW)
    assert longrm.load(str(adapter)).score("Where?", ["bucket", "turtle"]) == before
    assert load_scorer(adapter).origin == {"base_commit": OLD}
    merge(adapter, tmp_path / "merged")
    # Whoever does not say which one gets what main is now, and is told so.
    (adapter / "adapter_config.json").write_text(json.dumps(told | {"revision": None}))
    assert load_scorer(adapter).origin == {"base_commit": NEW}
    assert longrm.load(str(adapter)).score("Where?", ["bucket", "turtle"]) != before


@pytest.mark.usefixtures("bases")
def test_a_plan_and_a_writer_read_the_revision(pairs: Path, tmp_path: Path):
    assert load_language_model(f"acme/base@{NEW}").origin == {"commit": NEW}
    planned = sizes_of(recipe(pairs, tmp_path, path=f"acme/base@{NEW}"), "scorer")
    assert (planned.layers, planned.hidden) == (1, 16)


def test_a_benchmark_of_the_hub_has_a_revision_and_a_commit(publish: Publish, put: Any, tmp_path: Path):
    folder = put("bench/Math.jsonl", PAIR).parent
    publish("acme/bench", OLD, folder, kind="datasets")
    bench = load_bench(
        "long-rewardbench:acme/bench@main", source=BenchmarkSource(), probe=Probe(), leval=Leval()
    )
    assert [comparison.id for comparison in bench.comparisons] == ["Math/1"]
    assert bench.provenance == {"commit": OLD}
    evaluate(Evaluation(model="baseline:longest", bench=bench.name), tmp_path / "run")
    assert read_manifest(tmp_path / "run")["bench"] == {"commit": OLD}
    assert "model" not in read_manifest(tmp_path / "run"), "a baseline has none"
