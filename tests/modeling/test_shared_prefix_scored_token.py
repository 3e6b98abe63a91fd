"""Scores are read where transformers reads them, whatever the padding token is."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import PeftModel
from tokenizers import decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
)

import longrm
from longrm.modeling.saving import merge
from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import pack
from longrm.runs.folder import read_manifest
from longrm.runs.logs import Log
from longrm.runs.records import StepRecord
from longrm.training.settings import TrainingSettings
from longrm.training.train import train
from tests.modeling.test_shared_prefix import trees

# PEFT 0.21 asks a model for a name that transformers 5.23 has replaced; goes with the next PEFT.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

TOLERANCE = 1e-5
SPECIAL = ["<|bos|>", "<|head|>", "<|/head|>", "<|eot|>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"]
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.25,
    "max_position_embeddings": 4096,
}
LLAMA_3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|head|>' + message['role'] + '<|/head|>\n\n' + message['content'] | trim + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}"
    "{{ ' ' + message['content'] | trim + eos_token }}{% endif %}{% endfor %}"
)
FAMILIES: dict[str, tuple[Any, str, str, str]] = {
    "llama-3": (LlamaConfig, LLAMA_3, "<|bos|>", "<|eot|>"),
    "mistral": (MistralConfig, MISTRAL, "<s>", "</s>"),
}
PROMPT = [{"role": "user", "content": "In the ledger Marlow keeps copper. What does Marlow keep?"}]
RESPONSES = [
    "Marlow keeps copper.",
    "Marlow keeps amber, and more than that <|eot|></s>",  # ends as a template would
    "   ",  # nothing after stripping: transformers reads back into the prompt
    "No.",
]


def family_tokenizer(name: str) -> PreTrainedTokenizerFast:
    _, template, bos, end = FAMILIES[name]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: at for at, token in enumerate([*SPECIAL, *alphabet])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=bos, eos_token=end, pad_token=end, chat_template=template
    )


def trained_elsewhere(name: str, folder: Path, auto: Any = AutoModelForSequenceClassification) -> Path:
    """A folder that transformers wrote, whose padding is what the chat template closes a message with."""
    tokenizer = family_tokenizer(name)
    config = FAMILIES[name][0](
        **SIZES,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        num_labels=1,
        **({"sliding_window": None} if name == "mistral" else {}),
    )
    torch.manual_seed(0)
    auto.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture
def folder(family: str, tmp_path: Path) -> Path:
    return trained_elsewhere(family, tmp_path / "elsewhere")


def rendered(tokenizer: Any, responses: list[str]) -> list[str]:
    said = [[*PROMPT, {"role": "assistant", "content": text}] for text in responses]
    return [tokenizer.apply_chat_template(messages, tokenize=False) for messages in said]


def plain_scores(folder: Path, responses: list[str] = RESPONSES, *, model: Any = None) -> list[float]:
    """What transformers makes of every response alone, with nothing added to it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = model or AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        return [
            model(**tokenizer(text, add_special_tokens=False, return_tensors="pt")).logits.item()
            for text in rendered(tokenizer, responses)
        ]


def padded_scores(folder: Path, responses: list[str] = RESPONSES) -> list[float]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    texts = rendered(tokenizer, responses)
    batch = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
    with torch.inference_mode():
        return model(**batch).logits[:, 0].tolist()


def very_last_scores(folder: Path) -> list[float]:
    """The negative control: the score of the token that closes the response."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, pad_token_id=None).eval()
    assert model.config.pad_token_id is None
    return plain_scores(folder, model=model)


def distance(one: list[float], other: list[float]) -> float:
    assert len(one) == len(other)
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def test_scores_equal_those_of_transformers_alone_and_padded(folder: Path):
    ours = longrm.load(str(folder)).score(PROMPT, RESPONSES)
    assert distance(ours, plain_scores(folder)) < TOLERANCE
    assert distance(ours, padded_scores(folder)) < TOLERANCE
    last = very_last_scores(folder)
    assert all(abs(one - other) > 100 * TOLERANCE for one, other in zip(ours, last, strict=True))


@pytest.fixture
def pairs(put) -> Path:
    rows = [
        {"prompt": PROMPT, "chosen": [said(RESPONSES[0])], "rejected": [said(other)]}
        for other in (RESPONSES[1], RESPONSES[3])
    ]
    return put("pairs.jsonl", *rows)


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def recipe(start: Path, pairs: Path, tmp_path: Path, **model: Any) -> Any:
    settings = {
        "model": {"path": str(start), **model},
        "data": {"path": str(pairs)},
        "optimizer": {"max_steps": 2, "learning_rate": 1e-3},
    }
    return TrainingSettings.model_validate({"objective": "bradley_terry"} | settings)


def test_a_training_goes_on_with_the_token_that_was_read_before(folder: Path, pairs: Path, tmp_path: Path):
    train(recipe(folder, pairs, tmp_path), tmp_path / "run")
    truth = plain_scores(folder)
    margins = torch.tensor([truth[0] - truth[1], truth[0] - truth[3]])
    first = next(iter(Log(tmp_path / "run/steps.jsonl", StepRecord)))
    assert abs(first.loss - torch.nn.functional.softplus(-margins).mean().item()) < TOLERANCE
    model = tmp_path / "run/model"
    ours = longrm.load(str(model)).score(PROMPT, RESPONSES)
    assert distance(ours, plain_scores(model)) < TOLERANCE
    assert distance(ours, padded_scores(model)) < TOLERANCE
    assert distance(ours, very_last_scores(model)) > 100 * TOLERANCE
    assert read_manifest(tmp_path / "run")["model"]["scored_at"] in (model / "README.md").read_text()


def test_an_adapter_is_read_where_peft_reads_it_on_its_base(family: str, pairs: Path, tmp_path: Path):
    base = trained_elsewhere(family, tmp_path / "base", AutoModelForCausalLM)
    train(recipe(base, pairs, tmp_path, lora={"r": 2}), tmp_path / "run")
    adapter = tmp_path / "run/model"
    classifier = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    theirs = PeftModel.from_pretrained(classifier, adapter).eval()
    ours = longrm.load(str(adapter)).score(PROMPT, RESPONSES)
    assert distance(ours, plain_scores(base, model=theirs)) < TOLERANCE
    merge(adapter, tmp_path / "merged")
    assert distance(ours, plain_scores(tmp_path / "merged")) < TOLERANCE
    assert distance(ours, longrm.load(str(tmp_path / "merged")).score(PROMPT, RESPONSES)) < TOLERANCE

    theirs.base_model.config.pad_token_id = theirs.base_model.model.config.pad_token_id = None
    last = plain_scores(base, model=theirs)
    assert distance(ours, last) > 100 * TOLERANCE


@given(trees, st.sampled_from([None, 0]))
def test_the_scored_token_is_the_rightmost_that_is_no_padding(
    given_trees: list[TokenTree], padding: int | None
):
    packed = pack(given_trees)
    found = packed.scored_tokens(padding).tolist()
    wanted, ids = [], packed.input_ids[0].tolist()
    for path in packed.layout.paths():
        places = [*chain.from_iterable(path)]
        kept = [place for place in places if ids[place] != padding]
        wanted.append(kept[-1] if kept else places[0])
    assert found == wanted
