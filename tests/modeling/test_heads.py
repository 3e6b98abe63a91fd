"""A scalar head of two layers: written out by hand, over a shared prefix, and after save, load and merge."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from starlette.testclient import TestClient
from transformers import AutoModelForSequenceClassification

import longrm
from longrm.data import write
from longrm.data.tokenizing import Tokenizer
from longrm.errors import ConfigError, ModelError
from longrm.modeling.folders import HEAD, HEAD_OUT
from longrm.modeling.heads import MLPHead
from longrm.modeling.loading import load_scorer, new_language_model, new_scorer
from longrm.modeling.saving import merge, save
from longrm.modeling.shapes import ModelShape, TokenTree
from longrm.modeling.shared_prefix import hidden_states, pack, scores
from longrm.serving.app import build_app
from longrm.serving.settings import ServeSettings
from longrm.training.model_card import CardContext, write_card
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.worlds import WorldPlan, generate, words_tokenizer

SHAPE = ModelShape(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=48, init_std=0.3)
TREE = TokenTree(list(range(5, 42)), [[5, 9, 8, 4], [7, 4], [7, 9, 11]])
TOLERANCE = 2e-5


def alone(model: Any, tree: TokenTree = TREE) -> torch.Tensor:
    """The scores of separate sequences, by the forward pass of transformers."""
    model.set_attn_implementation("sdpa")
    ids = [torch.tensor([[*tree.tokens, *branch]]) for branch in tree.branches]
    return torch.cat([model(input_ids=one).logits[0] for one in ids])


def packed_scores(model: Any) -> torch.Tensor:
    return scores(model, pack([TREE]))


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(((one - other).abs().max() / other.abs().max()).detach())


@pytest.fixture
def make(tokenizer: Tokenizer) -> Callable[..., Any]:
    return lambda seed=1, head="mlp": new_scorer(SHAPE, tokenizer, seed=seed, head=head)


def test_scores_are_those_written_out_and_of_separate_sequences(make: Callable[..., Any]):
    model = make().model
    with torch.no_grad():
        found, states = packed_scores(model), hidden_states(model, pack([TREE]))
        states = states[pack([TREE]).layout.branch_ends()]
        first, second = model.score.weight, model.score.out.weight
        inner = states @ first.T
        by_hand = (inner / (1 + torch.exp(-inner))) @ second[0]
        torch.testing.assert_close(found, by_hand, rtol=1e-5, atol=1e-6)
        truth = alone(make().model)
    assert distance(found, truth) < TOLERANCE
    # Controls: without the activation, and without the fork, scores differ clearly.
    assert distance(inner @ second[0], truth) > 100 * TOLERANCE
    joined = TokenTree(TREE.tokens + TREE.branches[0], TREE.branches[1:])
    with torch.no_grad():
        assert distance(scores(model, pack([joined])), truth[1:]) > 100 * TOLERANCE


def test_gradients_are_those_of_separate_sequences_and_of_finite_differences(make: Callable[..., Any]):
    ours, stock = make().model, make().model
    weights = torch.tensor([1.0, -2.0, 3.0])
    (packed_scores(ours) @ weights).backward()
    (alone(stock) @ weights).backward()
    found = {name: weight.grad for name, weight in ours.named_parameters()}
    for name, weight in stock.named_parameters():
        assert distance(found[name], weight.grad) < TOLERANCE, name
    wrong = distance(found[HEAD].T, stock.score.weight.grad)
    assert wrong > 100 * TOLERANCE
    head = MLPHead(5).double()
    states = torch.randn(3, 5, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(head, (states,))
    assert torch.autograd.gradcheck(
        lambda first, out: torch.func.functional_call(head, {"weight": first, "out.weight": out}, states),
        (head.weight, head.out.weight),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_head_is_loaded_exactly_and_refused_by_the_plain_class(
    make: Callable[..., Any], tmp_path: Path, dtype: torch.dtype
):
    scorer = make()
    save(scorer, tmp_path / "model")
    loaded = load_scorer(tmp_path / "model", dtype=dtype)
    for name in (HEAD, HEAD_OUT):
        assert torch.equal(loaded.model.get_parameter(name), scorer.model.get_parameter(name))
    with torch.no_grad():
        truth, found = packed_scores(scorer.model), packed_scores(loaded.model)
        assert torch.equal(found, truth) is (dtype == torch.float32)
        assert distance(found, truth) < (0 if dtype == torch.float32 else 0.05) + 1e-9
        assert distance(packed_scores(make(2).model), truth) > 0.1
    with pytest.raises(RuntimeError, match="size"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    with pytest.raises(ModelError, match=r"model\.head"):
        load_scorer(tmp_path / "model", head="linear")
    save(make(head="linear"), tmp_path / "linear")
    with pytest.raises(ModelError, match=r"model\.head"):
        load_scorer(tmp_path / "linear", head="mlp", head_seed=0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders of models with such a head: of all weights, in bf16, and of adapters."""
    place = tmp_path_factory.mktemp("trained")
    write(place / "rows.jsonl", generate(WorldPlan("records", 64, seed=3), 8, words_tokenizer()))
    save(new_language_model(SHAPE, words_tokenizer(), seed=0), place / "base")
    runs = {}
    for name, model in {"full": {}, "bf16": {"bf16": True}, "lora": {"lora": {"r": 2}}}.items():
        settings = TrainingSettings.model_validate(
            {
                "objective": "bradley_terry",
                "model": {"path": str(place / "base"), "head": "mlp", **model},
                "data": {"path": str(place / "rows.jsonl")},
                "optimizer": {"max_steps": 4, "learning_rate": 1e-2},
            }
        )
        train(settings, place / name)
        runs[name] = place / name / "model"
    merge(runs["lora"], place / "merged")
    write_card(
        place / "merged",
        CardContext(settings, {"steps": 4, "tokens": 1, "window": 1, "loss": 0, "data": {}}, [], {}),
    )
    return runs | {"merged": place / "merged", "base": place / "base"}


def test_both_layers_are_trained(trained: dict[str, Path]):
    start = load_scorer(trained["base"], head="mlp", head_seed=0).model
    for run in ("full", "lora"):
        model = load_scorer(trained[run]).model
        for name in (HEAD, HEAD_OUT):
            assert (model.get_parameter(name) - start.get_parameter(name)).abs().max() > 1e-3, (run, name)
    stored = load_file(trained["bf16"] / "model.safetensors")
    kinds = {name: tensor.dtype for name, tensor in stored.items()}
    assert {kinds.pop(HEAD), kinds.pop(HEAD_OUT)} == {torch.float32}
    assert set(kinds.values()) == {torch.bfloat16}


def card_class(folder: Path) -> Any:
    """The model that the code of a card loads."""
    card = (folder / "README.md").read_text()
    code = card.split("```python\n")[2].split("```")[0]
    code = code.split("tokenizer =")[0].replace('"."', repr(str(folder)))
    space: dict[str, Any] = {}
    exec(code, space)
    return space["model"].eval()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT uses it
@pytest.mark.parametrize("run", ["full", "merged", "lora"])
def test_the_class_of_the_card_scores_the_same(trained: dict[str, Path], run: str, monkeypatch: Any):
    monkeypatch.chdir(trained["base"].parent)  # the card of an adapter names its base without the path
    with torch.no_grad():
        truth = packed_scores(load_scorer(trained[run]).model)
        model = card_class(trained[run])
        if isinstance(model, PeftModel):
            model = model.base_model.model
        assert distance(alone(model), truth) < TOLERANCE
        assert (
            distance(packed_scores(load_scorer(trained["base"], head="mlp", head_seed=0).model), truth) > 1e-3
        )


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_peft_refuses_the_adapter_on_the_plain_class(trained: dict[str, Path]):
    plain = AutoModelForSequenceClassification.from_pretrained(trained["base"], num_labels=1)
    with pytest.raises(RuntimeError, match="size"):
        PeftModel.from_pretrained(plain, trained["lora"])


def test_a_merged_model_scores_the_same(trained: dict[str, Path]):
    with torch.no_grad():
        truth = packed_scores(load_scorer(trained["lora"]).model)
        assert distance(packed_scores(load_scorer(trained["merged"]).model), truth) < TOLERANCE
        assert distance(packed_scores(load_scorer(trained["full"]).model), truth) > 1e-3
    prompt, responses = "The code is amber. What is the code?", ["It is amber.", "It is copper, or jade."]
    expected = longrm.load(str(trained["lora"])).score(prompt, responses)
    assert longrm.load(str(trained["merged"])).score(prompt, responses) == pytest.approx(expected, abs=1e-5)


def test_a_server_returns_the_same_scores_also_over_a_cached_prefix(trained: dict[str, Path]):
    prompt, responses = (
        20 * "The code is amber. " + "What is the code?",
        ["It is amber.", "It is copper, or jade."],
    )
    expected = longrm.load(str(trained["full"])).score(prompt, responses)
    app = build_app(ServeSettings(model="full"), lambda: longrm.load(str(trained["full"])))
    with TestClient(app, "http://127.0.0.1") as server:
        for cached in (False, True):
            found = server.post("/v1/scores", json={"prompt": prompt, "responses": responses}).json()
            assert found["scores"] == pytest.approx(expected, abs=1e-5)
            assert bool(found["usage"]["cached_tokens"]) is cached
    assert longrm.load(str(trained["merged"])).score(prompt, responses) != pytest.approx(expected, abs=1e-3)


def test_the_head_is_of_scorers():
    with pytest.raises(ConfigError, match=r"model\.head"):
        TrainingSettings.resolve(
            None, {"objective": "sft", "model": {"path": "a", "head": "mlp"}, "data": {"path": "b"}}
        )
