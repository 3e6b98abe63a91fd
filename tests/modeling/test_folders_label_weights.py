"""Heads with several labels against transformers, which computes a logit for each."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForSequenceClassification, LlamaConfig

import longrm
from longrm.cli.commands import cli
from longrm.errors import ModelError
from longrm.modeling.folders import kind_of
from longrm.modeling.loading import load_scorer
from longrm.worlds import words_tokenizer

LABELS = {0: "helpfulness", 1: "correctness", 2: "verbosity"}
WEIGHTS = {"helpfulness": 0.65, "verbosity": -0.4}
PROMPT, RESPONSES = "The code is amber. What is the code?", ["It is amber.", "It is copper, or jade."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of another library's making, with three labels."""
    place = tmp_path_factory.mktemp("labels")
    tokenizer = words_tokenizer()
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=tokenizer.pad_id,
        id2label=LABELS,
        label2id={name: number for number, name in LABELS.items()},
        initializer_range=0.3,
    )
    AutoModelForSequenceClassification.from_config(config).save_pretrained(place)
    tokenizer.save(place)
    return place


def logits(folder: Path) -> torch.Tensor:
    """Every label's logit of every response, by transformers alone."""
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = words_tokenizer()
    rows = []
    for response in RESPONSES:
        messages = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": response}]
        ids = tokenizer.encode(tokenizer.render(messages))
        with torch.inference_mode():
            rows.append(model(input_ids=torch.tensor([ids])).logits[0])
    return torch.stack(rows)


def test_the_score_is_the_weighted_sum_of_the_logits(folder: Path):
    expected = logits(folder) @ torch.tensor([0.65, 0.0, -0.4])
    scores = longrm.load(str(folder), model_args={"label_weights": WEIGHTS}).score(PROMPT, RESPONSES)
    torch.testing.assert_close(torch.tensor(scores), expected, atol=2e-6, rtol=1e-5)
    one = longrm.load(str(folder), model_args={"label_weights": {"correctness": 1.0}}).score(
        PROMPT, RESPONSES
    )
    torch.testing.assert_close(torch.tensor(one), logits(folder)[:, 1], atol=2e-6, rtol=1e-5)
    assert not torch.allclose(torch.tensor(one), expected, atol=1e-2)


def test_what_labels_count_has_to_be_said(folder: Path, tmp_path: Path):
    with pytest.raises(ModelError, match="helpfulness, correctness, verbosity"):
        load_scorer(folder)
    with pytest.raises(ModelError, match="'verbositi'.*verbosity"):
        load_scorer(folder, weights={"verbositi": 1})
    with pytest.raises(ModelError):
        load_scorer(folder, weights={"verbosity": 0.0})
    model = load_scorer(folder, weights=WEIGHTS)
    model.model.save_pretrained(tmp_path)
    words_tokenizer().save(tmp_path)
    with pytest.raises(ModelError):
        load_scorer(tmp_path, weights=WEIGHTS)


def test_a_gate_that_reads_the_prompt_is_refused(folder: Path, tmp_path: Path):
    from safetensors.torch import load_file, save_file

    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    weights["regression_layer.weight"] = weights.pop("score.weight")
    weights["gating.layers.0.weight"] = torch.zeros(2, 2)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"gating\.layers\.0\.weight"):
        kind_of(tmp_path)


def test_the_command_line_takes_weights(folder: Path, tmp_path: Path):
    data, out = tmp_path / "rows.jsonl", tmp_path / "scored.jsonl"
    data.write_text(
        '{"prompt": "What is the code?", "chosen": "It is amber.", "rejected": "It is copper."}\n'
    )
    command = ["score", "--model", str(folder), "--data", str(data), "--out", str(out), "--weights"]
    assert CliRunner().invoke(cli, [*command, "helpfulness=0.65,verbosity=-0.4"]).exit_code == 0
    before = out.read_text()
    assert CliRunner().invoke(cli, [*command, "helpfulness=1"]).exit_code != 0
    assert out.read_text() == before, "scores of other weights are not mixed in"
