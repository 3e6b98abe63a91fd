"""Known bugs of preference trainers, none of which may happen here silently."""

import json

import pytest
import torch
from safetensors.torch import load_file

import longrm
from longrm.data.joining import encode
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.modeling.loading import load_scorer, new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from longrm.worlds import words_tokenizer

NEW = {"layers": 1, "hidden": 16}
SHAPE = ModelShape(layers=1, hidden=16, heads=2, kv_heads=2, head_dim=8, init_std=0.3)
TEXT = "The access code of Corimo is"


def row(chosen="bucket .", rejected="turtle .", **more):
    return {"prompt": TEXT, "chosen": chosen, "rejected": rejected, **more}


def recipe(path, kind="bradley_terry", **changes):
    tree = {
        "model": {"new": NEW},
        "data": {"path": str(path), "per_step": 2, **changes.pop("data", {})},
        "optimizer": {"max_steps": 2, "learning_rate": 1e-2},
        **changes,
    }
    return TrainingSettings.model_validate({"objective": kind} | tree)


KINDS = pytest.mark.parametrize("kind", ["bradley_terry", "preference"])


@KINDS
def test_rows_that_are_too_long_stop_or_are_counted(tmp_path, put, kind):
    """RewardTrainer drops them without a word, DPO and CPO cut them."""
    long = row(prompt=" ".join([TEXT] * 40))
    path = put("pairs.jsonl", row(id="short"), long | {"id": "long"}, row(id="other"))
    with pytest.raises(DataError, match=r"'long' has \d+ tokens.*too_long"):
        train(recipe(path, kind, data={"max_length": 64}), tmp_path / "stopped")
    summary = train(recipe(path, kind, data={"max_length": 64, "too_long": "skip"}), tmp_path / "run")
    assert (summary["data"]["read"], summary["data"]["used"], summary["data"]["too_long"]) == (3, 2, 1)


@KINDS
@pytest.mark.parametrize(
    "bad",
    [row(chosen=""), row(rejected="   "), row(rejected="bucket .")],
    ids=["empty", "blank", "identical"],
)
def test_empty_and_identical_responses_never_train(tmp_path, put, kind, bad):
    """An empty completion once turned every weight into NaN under a logged loss of 0."""
    path = put("pairs.jsonl", row(id="good"), bad | {"id": "bad"})
    with pytest.raises(DataError, match=r"pairs\.jsonl"):
        train(recipe(path, kind), tmp_path / "stopped")
    summary = train(recipe(path, kind, data={"on_bad_row": "skip"}), tmp_path / "run")
    assert summary["data"]["bad"] == 1
    assert summary["data"]["used"] == 1
    weights = load_file(tmp_path / "run/model/model.safetensors")
    assert all(torch.isfinite(weight).all() for weight in weights.values())


def test_padding_that_equals_the_end_moves_no_score(tmp_path, put):
    """With pad = eos a batch was scored one token early."""
    own = words_tokenizer()
    merged = Tokenizer.from_backend(
        own.backend, eos=own.special_tokens["eos_token"], pad=own.special_tokens["eos_token"]
    )
    assert merged.pad_id == merged.eos_id
    save(new_scorer(SHAPE, merged, seed=0), tmp_path / "start")
    path = put("pairs.jsonl", row(), row(chosen="anchor .", rejected="window ."))
    settings = recipe(path, model={"path": str(tmp_path / "start")})
    train(settings, tmp_path / "run")
    folder = tmp_path / "run/model"
    ours = longrm.load(str(folder)).score(TEXT, ["bucket .", "turtle ."])

    from transformers import AutoModelForSequenceClassification

    plain = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert plain.config.pad_token_id != plain.config.eos_token_id
    tokenizer = Tokenizer.load(folder)
    answers = [[{"role": "assistant", "content": text}] for text in ("bucket .", "turtle .")]
    encoded = encode(tokenizer, [{"role": "user", "content": TEXT}], answers)
    assert [response[-1] for response in encoded.responses] == [tokenizer.eos_id] * 2
    for response, score in zip(encoded.responses, ours, strict=True):
        with torch.no_grad():
            states = plain.base_model(torch.tensor([[*encoded.prompt, *response]])).last_hidden_state[0]
            whole = plain(torch.tensor([[*encoded.prompt, *response]])).logits.item()
        assert whole == pytest.approx(score, rel=1e-5)
        early = plain.score(states[-2].detach()).item()
        assert abs(early - score) > 1e-3, "a token early would be another score"


def test_adapters_train_and_keep_the_head(tmp_path, put):
    """Without the right task type the head neither trained nor was saved, and came back random."""
    start = tmp_path / "start"
    save(new_scorer(SHAPE, words_tokenizer(), seed=0), start)
    path = put("pairs.jsonl", row(), row(chosen="anchor .", rejected="window ."))
    train(recipe(path, model={"path": str(start), "lora": {"r": 2}}), tmp_path / "run")
    head = load_scorer(start).model.score.weight
    trained = load_scorer(tmp_path / "run/model").model.score.weight
    assert (trained - head).abs().max() > 1e-3
    stored = load_file(tmp_path / "run/model/adapter_model.safetensors")
    (name,) = (name for name in stored if "score" in name)
    torch.testing.assert_close(stored[name], trained.detach(), rtol=0, atol=0)


def test_a_list_of_rejected_responses_is_read_as_many(tmp_path, put):
    """A trainer of pairs fails on a list."""
    path = put("pairs.jsonl", row(rejected=["turtle .", "window .", "anchor ."]))
    train(recipe(path), tmp_path / "run")
    steps = [json.loads(line) for line in (tmp_path / "run/steps.jsonl").read_text().splitlines()]
    tokenizer = words_tokenizer()
    message = [{"role": "user", "content": TEXT}]
    texts = ("bucket .", "turtle .", "window .", "anchor .")
    responses = [[{"role": "assistant", "content": text}] for text in texts]
    assert steps[0]["tokens"] == encode(tokenizer, message, responses).size
