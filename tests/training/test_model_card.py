import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import constants

import longrm
from longrm.data.joining import encode
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError
from longrm.modeling.loading import new_language_model, new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.reading import read_toml
from longrm.training.initial_model import initial_model
from longrm.training.model_card import CardContext, CardEvaluation, without_paths, write_card
from longrm.training.settings import TrainingSettings
from longrm.types import as_messages
from longrm.worlds import words_tokenizer

SHAPE = ModelShape(layers=1, hidden=16, heads=2, kv_heads=2, head_dim=8, init_std=0.2)
HUB = {"commit": "1" * 40}
SUMMARY = {
    "steps": 1200,
    "tokens": 3_400_000,
    "window": 20,
    "loss": 0.31,
    "accuracy": 0.87,
    "data": {"read": 12, "used": 10, "too_long": 2},
}


def metric(value: float | None, n: int) -> dict[str, Any]:
    bounds = (None, None) if value is None else (value - 0.1, value + 0.1)
    return {"value": value, "low": bounds[0], "high": bounds[1], "n": n, "groups": n // 2}


EVALUATION = {
    "bench": "long-rewardbench",
    "counts": {"comparisons": 30, "outcomes": {"answered": 27, "unparsed": 3, "error": 0}},
    "metrics": {
        "overall": {"pair_accuracy": metric(0.7, 30)},
        "by_length": {
            length: {"pair_accuracy": metric(value, n)}
            for length, value, n in [("131072", None, 0), ("4096", 0.8, 20), ("8192", 0.6, 10)]
        },
    },
    "boundary": {"tau": 0.75, "status": "unresolved", "at_least": 4096, "below": None},
}


def recipe(objective: str = "bradley_terry", **changes: Any) -> Any:
    tree = {
        "objective": objective,
        "model": {"path": "owner/base"},
        "data": {"path": "rows.jsonl"},
        **changes,
    }
    return TrainingSettings.model_validate(tree)


def card(
    folder: Path,
    settings: Any,
    summary: Any,
    evaluation: Any = None,
    origin: Any = None,
) -> str:
    held = [] if evaluation is None else [CardEvaluation({"bench": "x"}, evaluation, in_training=True)]
    write_card(folder, CardContext(settings, summary, held, {} if origin is None else origin))
    return (folder / "README.md").read_text()


def front(text: str) -> dict[str, Any]:
    opening, matter, _ = text.split("---\n", 2)
    assert opening == ""
    return yaml.safe_load(matter)


def sections(text: str) -> dict[str, str]:
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def code(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture
def scorer(tmp_path: Path) -> Path:
    save(new_scorer(SHAPE, words_tokenizer(), seed=0), tmp_path / "model")
    return tmp_path / "model"


def test_the_front_matter_is_what_the_hub_takes(scorer: Path):
    assert front(card(scorer, recipe(), SUMMARY, origin=HUB)) == {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["reward-model", "long-context", "longrm"],
        "base_model": "owner/base",
        "base_model_relation": "finetune",
    }
    (scorer / "adapter_config.json").write_text("{}")
    adapter = front(
        card(scorer, recipe("sft", model={"path": "owner/base", "lora": {}}), SUMMARY, origin=HUB)
    )
    assert (adapter["library_name"], adapter["pipeline_tag"]) == ("peft", "text-generation")
    assert (adapter["base_model_relation"], adapter["tags"][-1]) == ("adapter", "lora")
    local = front(card(scorer, recipe(model={"path": str(scorer)}), SUMMARY))
    assert "base_model" not in local  # the Hub knows no folder of ours


def test_the_settings_repeat_the_run_and_the_data_is_accounted_for(scorer: Path):
    mixed = recipe(data={"sources": [{"path": "long.jsonl"}, {"path": "short.jsonl", "weight": 0.3}]})
    text = card(scorer, mixed, SUMMARY, origin=HUB)
    (scorer / "config.toml").write_text(code(text, "toml")[0])
    assert TrainingSettings.model_validate(read_toml(scorer / "config.toml", ConfigError)) == mixed
    data = sections(text)["Data"]
    assert "`long.jsonl`\n" in data
    assert "`short.jsonl`, 0.3 passes per epoch" in data
    assert "| 12 | rows read |" in data
    assert "| 2 | omitted: too long |" in data


@pytest.mark.parametrize(
    ("value", "key", "shown"),
    [
        ("/home/me/rows.jsonl", "path", "rows.jsonl"),
        ("rows/private/long.jsonl", "", "long.jsonl"),
        ("~/models/judge", "", "judge"),
        ("file:/home/me/rows.jsonl", "bench", "file:rows.jsonl"),
        ("file:mine/rows.jsonl", "bench", "file:rows.jsonl"),
        ("leval:/data/leval", "bench", "leval:leval"),
        (
            "long-rewardbench:LCM-Lab/LongRewardBench@main",
            "bench",
            "long-rewardbench:LCM-Lab/LongRewardBench@main",
        ),
        ("probe", "bench", "probe"),
        ("acme/tokenizer", "tokenizer", "acme/tokenizer"),
        (r"\[\[(A/B)\]\]", "verdict", r"\[\[(A/B)\]\]"),
        ({"data": [{"path": "a/b", "weight": 0.5}]}, "", {"data": [{"path": "b", "weight": 0.5}]}),
    ],
)
def test_places_of_this_machine_become_names_and_all_else_stays(value: Any, key: str, shown: Any):
    assert without_paths(value, key) == shown


def test_the_license_is_that_of_a_base_of_the_hub_where_its_card_is_here(
    scorer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub/models--owner--base/snapshots" / HUB["commit"]
    snapshot.mkdir(parents=True)
    assert "license" not in front(card(scorer, recipe(), SUMMARY, origin=HUB))
    told = {"license": "other", "license_name": "its-own", "license_link": "LICENSE"}
    (snapshot / "README.md").write_text(f"---\n{yaml.safe_dump(told)}pipeline_tag: x\n---\n")
    assert told.items() <= front(card(scorer, recipe(), SUMMARY, origin=HUB)).items()
    (snapshot / "README.md").write_text("---\nlicense: [\n---\n")
    assert "license" not in front(card(scorer, recipe(), SUMMARY, origin=HUB))


def test_results_stand_by_length_with_what_was_not_answered(scorer: Path):
    text = card(scorer, recipe(), SUMMARY, evaluation=EVALUATION)
    results = sections(text)["Results by length"]
    rows = [line for line in results.splitlines() if line.startswith("|")][2:]
    assert rows == [
        "| 4,096 | 0.800 | 0.700 to 0.900 | 20 | 10 |",
        "| 8,192 | 0.600 | 0.500 to 0.700 | 10 | 5 |",
        "| 131,072 | | | 0 | 0 |",
        "| all | 0.700 | 0.600 to 0.800 | 30 | 15 |",
    ]
    assert "at least 0.75 up to 4,096 tokens." in results
    assert "3 unparsed." in results
    assert "on other data than `long-rewardbench`" in sections(text)["Limits"]


def test_the_card_of_reinforcement_names_the_rewards(scorer: Path):
    sampled = {
        "num_generations": 6,
        "max_completion_length": 2048,
        "reward_weights": {"correct": 1.0, "brief": 0.25},
    }
    judged = recipe("grpo", rollouts=sampled | {"soft_tokens": 9}, loss={"loss_type": "dapo", "beta": 0.04})
    text = card(scorer, judged, SUMMARY)
    for part in ("DAPO", "1 × correct + 0.25 × brief", "6 judgments", "2,048 tokens", "weight 0.04"):
        assert part in text
    assert "verdict_reward" not in card(scorer, recipe("sft"), SUMMARY)


@pytest.mark.parametrize("template", [True, False])
def test_the_code_on_the_card_runs_and_agrees_with_itself(
    template: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    known = words_tokenizer()
    tokenizer = known if template else Tokenizer.from_backend(known.backend, eos="<end>", pad="<pad>")
    save(new_scorer(SHAPE, tokenizer, seed=0), tmp_path)
    ours, theirs = code(sections(card(tmp_path, recipe(), SUMMARY))["How to use it"], "python")
    monkeypatch.chdir(tmp_path)
    prompt = re.search(r'"(The long .*?)"', ours)[1]
    assert f'"{prompt}", "One answer."' in theirs
    # Texts in the vocabulary of this tiny model.
    spoken = {
        prompt: "In the old ledger Corimo holds bucket.",
        "One answer": "bucket",
        "Another answer": "turtle",
    }
    for english, known_text in spoken.items():
        ours, theirs = ours.replace(english, known_text), theirs.replace(english, known_text)
    scores = longrm.load(".").score(spoken[prompt], ["bucket.", "turtle."])
    assert printed(ours) == f"{scores}\n"
    assert abs(float(printed(theirs)) - scores[0]) < 1e-5


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT 0.21
@pytest.mark.parametrize("objective", ["sft", "bradley_terry"])
def test_the_code_on_the_card_of_an_adapter_runs(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    save(new_language_model(SHAPE, words_tokenizer(), seed=0), tmp_path / "base")
    own = recipe(objective, model={"path": str(tmp_path / "base"), "lora": {"r": 2}})
    save(
        initial_model(own, "scorer" if objective == "bradley_terry" else "language_model"), tmp_path / "model"
    )
    text = card(tmp_path / "model", own, SUMMARY)
    monkeypatch.chdir(tmp_path / "model")
    assert str(tmp_path) not in text
    Path("base").symlink_to(tmp_path / "base")  # the card has its name, but no path
    found: dict[str, Any] = {}
    exec(code(text, "python")[1], found)
    assert type(found["model"]).__name__.startswith("PeftModel")
    assert code(text, "bash") == ["longrm merge . --out merged\n"]


@pytest.mark.parametrize("template", [True, False])
def test_a_scorer_is_told_how_to_be_served_and_by_which_route(template: bool, tmp_path: Path):
    known = words_tokenizer()
    tokenizer = known if template else Tokenizer.from_backend(known.backend, eos="<end>", pad="<pad>")
    save(new_scorer(SHAPE, tokenizer, seed=0), tmp_path)
    text = sections(card(tmp_path, recipe(), SUMMARY))["How to use it"]
    vllm, sglang = code(text, "bash")[0].splitlines()
    assert vllm == "vllm serve . --runner pooling"
    assert sglang.startswith("python -m sglang.launch_server --model-path . --is-embedding")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`/classify`" in line]
    assert [row.split()[1] for row in rows] == ["vLLM", "SGLang"]
    assert "`/v1/classify` always returns 1.0" in text
    assert "`/score` and `/rerank` return a sigmoid" in text
    found: dict[str, Any] = {}
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(io.StringIO()):
        exec(code(text, "python")[1], found)
    posted = [json.loads(f"[{eval(own, found)}]") for own in re.findall(r"ids\[0\]\.tolist\(\)", text)]
    assert len(posted) == 2
    encoded = encode(
        Tokenizer.load(tmp_path),
        as_messages(found["prompt"], "user"),
        [as_messages(found["response"], "assistant")],
    )
    assert posted[0] == posted[1] == [[*encoded.prompt, *encoded.responses[0]]], "what longrm reads is posted"


def printed(program: str) -> str:
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        exec(program, {})
    return stream.getvalue()
