"""Imitation equals the loss that transformers' causal language models compute of labels, and all its gradients."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from longrm.data.joining import Encoded
from longrm.data.training_rows import Example
from longrm.training.objectives import SFT
from longrm.training.settings import LossSettings

from .conftest import assert_equal_but_for_faults, engine, gradients, twins


@pytest.fixture(scope="module")
def demonstrations(examples) -> list[Example]:
    """The chosen responses: two documents, of which one is asked about twice."""
    return [
        replace(own, tokens=Encoded(own.tokens.prompt, own.tokens.responses[:1]), ranks=(1,))
        for own in examples
    ]


def of_labels(model: Any, demonstrations: list[Example]) -> dict[str, Tensor]:
    """Padded on the right, with labels on completions alone."""
    ids, labels = [], []
    for own in demonstrations:
        (completion,) = own.tokens.responses
        ids.append(torch.tensor([*own.tokens.prompt, *completion]))
        labels.append(torch.tensor([*(-100 for _ in own.tokens.prompt), *completion]))
    mask = [torch.ones_like(one) for one in ids]
    padded = [pad_sequence(rows, True, fill) for rows, fill in ((ids, 0), (mask, 0), (labels, -100))]
    loss = model(input_ids=padded[0], attention_mask=padded[1], labels=padded[2]).loss
    return gradients(model, loss)


def leaking(demonstrations: list[Example]) -> list[Example]:
    """Documents laid one after the other, each seeing those before it."""
    seen: list[int] = []
    rows = []
    for own in demonstrations:
        (completion,) = own.tokens.responses
        rows.append(replace(own, tokens=Encoded([*seen, *own.tokens.prompt], [completion])))
        seen += [*own.tokens.prompt, *completion]
    return rows


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_sft_equals_the_loss_of_labels(demonstrations, kv_heads):
    stock, ours = twins("logprobs", kv_heads=kv_heads)
    truth, objective = of_labels(stock, demonstrations), SFT(LossSettings(loss_type="sft"))
    parts = [engine(objective, ours, [own]) for own in demonstrations]
    without_prompt = [
        replace(
            own, tokens=Encoded(own.tokens.prompt[:1], [[*own.tokens.prompt[1:], *own.tokens.responses[0]]])
        )
        for own in demonstrations
    ]
    faults = {
        "documents see each other": engine(objective, ours, leaking(demonstrations)),
        "a mean over documents": {name: sum(part[name] for part in parts) / len(parts) for name in truth},
        "prompts learned too": of_labels(stock, without_prompt),
    }
    assert_equal_but_for_faults(engine(objective, ours, demonstrations), truth, faults)
