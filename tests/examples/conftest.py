"""A tiny reward model, rows of two groups, and their scores by transformers alone."""

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.reward_models.tiny_models import make_scorer

TRAINERS = Path(__file__).parents[2] / "examples/trainers"
PROMPTS = [
    f"In the old ledger {name} holds {word}.\n\nQuestion: What is the access code of {name}?"
    for name, word in (("Corimo", "bucket"), ("Tanelo", "turtle"))
]
ROWS = [
    (prompt, f"The access code of {name} is {word}.")
    for prompt in PROMPTS
    for name in ("Corimo", "Tanelo")
    for word in ("bucket", "turtle")
]
"""Eight rows of a prompt and a completion: two groups of four."""

TOO_LONG = "turtle " * 600
"""A completion that the model cannot read."""


@pytest.fixture(scope="session")
def scorer(tmp_path_factory):
    """The folder of the reward model."""
    return make_scorer(tmp_path_factory.mktemp("scorer") / "tiny", positions=400)


def plain_scores(scorer, conversations):
    """The scores that transformers alone gives for conversations, one sequence each."""
    tokenizer = AutoTokenizer.from_pretrained(scorer)
    classifier = AutoModelForSequenceClassification.from_pretrained(scorer).eval()
    scores = []
    for messages in conversations:
        ids = tokenizer.apply_chat_template(messages, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            scores.append(classifier(ids).logits.item())
    return scores


@pytest.fixture(scope="session")
def expected(scorer):
    """The score of every row."""
    conversations = [
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
        for prompt, completion in ROWS
    ]
    scores = plain_scores(scorer, conversations)
    assert max(scores) - min(scores) > 1e-2, "the rows must differ for tests to mean anything"
    return [pytest.approx(score, abs=1e-5) for score in scores]


@pytest.fixture
def example(scorer, monkeypatch):
    """Imports an example by its path, as trainers do, with the tiny model."""
    monkeypatch.setenv("LONGRM_MODEL", str(scorer))

    def load(name):
        spec = importlib.util.spec_from_file_location(name, TRAINERS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
