"""Imitation end to end: the trained model, the run folder, and refused settings."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from longrm.data import read_demonstrations
from longrm.data.joining import encode
from longrm.errors import ModelError
from longrm.modeling.loading import new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.training.train import train
from longrm.worlds import words_tokenizer


def test_a_completion_is_learned_and_written_by_plain_transformers(
    tmp_path, recipe, demonstrations, steps_of
):
    settings = recipe("sft", optimizer={"steps": 90, "learning_rate": 1e-2})
    summary = train(settings, tmp_path / "run")
    first = steps_of(tmp_path / "run")[0].loss
    assert summary["objective"] == "sft"
    assert summary["accuracy"] is None
    assert summary["data"]["used"] == 12
    assert first > 5.0 > 2.0 > summary["loss"]
    assert nll(tmp_path / "run/model", demonstrations) < 2.0


def test_completions_with_a_label_that_says_bad_are_not_learned(tmp_path, recipe, base, demonstrations):
    """Rows of KTO: the weights are those of a training on the true ones alone."""
    rows = [json.loads(line) for line in demonstrations.read_text().splitlines()]
    labeled = [row | {"label": number % 3 > 0} for number, row in enumerate(rows)]
    weights = []
    for name, kept in (("kto", labeled), ("true", [row for row in labeled if row["label"]]), ("all", rows)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))
        changes = {"optimizer": {"steps": 2}, "data": {"path": str(path), "per_step": 4}}
        summary = train(recipe("sft", model={"path": str(base)}, **changes), tmp_path / name)
        weights.append(load_file(tmp_path / name / "model/model.safetensors"))
        assert (summary["data"]["used"], summary["data"]["labeled_bad"]) == {
            "kto": (8, 4), "true": (8, 0), "all": (12, 0)
        }[name]  # fmt: skip
    kto, true, every = weights
    assert all(torch.equal(kto[name], true[name]) for name in kto)
    assert not all(torch.equal(kto[name], every[name]) for name in kto), "the control"


def nll(folder, demonstrations):
    """Mean over all completion tokens of the data, by transformers alone."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), words_tokenizer()
    losses = []
    for row in read_demonstrations(demonstrations):
        told = row.demonstration
        prompt = tokenizer.prompt_ids(told.prompt)
        (completion,) = encode(tokenizer, told.prompt, [told.completion]).responses
        labels = torch.tensor([[-100] * len(prompt) + list(completion)])
        with torch.no_grad():
            loss = model(torch.tensor([[*prompt, *completion]]), labels=labels).loss
        losses += [loss.item()] * len(completion)
    return sum(losses) / len(losses)


def test_the_first_loss_is_the_token_weighted_mean_of_plain_transformers(
    tmp_path, recipe, base, demonstrations, steps_of
):
    """Whatever the cut: all rows in one step, in one part or in many."""
    expected = nll(base, demonstrations)
    for name, budget in [("whole", 100_000), ("parts", 150), ("rows", 1)]:
        changes = {
            "optimizer": {"steps": 1},
            "data__per_step": 12,
            "memory__max_tokens_per_microbatch": budget,
        }
        train(recipe("sft", model={"path": str(base)}, **changes), tmp_path / name)
        (step,) = steps_of(tmp_path / name)
        assert step.loss == pytest.approx(expected, rel=1e-5)
        assert step.accuracy is None


@pytest.mark.parametrize("objective", ["sft", "preference"])
def test_a_model_that_scores_is_refused_in_one_line(tmp_path, recipe, objective):
    shape = ModelShape(layers=2, hidden=16, heads=2, kv_heads=2, head_dim=8)
    save(new_scorer(shape, words_tokenizer(), seed=0), tmp_path / "scorer")
    with pytest.raises(ModelError) as caught:
        train(recipe(objective, model={"path": str(tmp_path / "scorer")}), tmp_path / "run")
    assert "scorer" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
