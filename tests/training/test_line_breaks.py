"""Responses that begin with line breaks, which the tokenizer merges with the one that ends the prompt."""

from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

import longrm
from longrm.data.tokenizing import Tokenizer
from longrm.modeling.loading import new_language_model, new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import ModelShape
from longrm.runs.logs import Log
from longrm.runs.records import ReferenceRecord, StepRecord
from longrm.training.settings import TrainingSettings
from longrm.training.sources import open_source
from longrm.training.train import train

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SHAPE = ModelShape(layers=1, hidden=16, heads=2, kv_heads=2, head_dim=8, init_std=0.3)
ASK = {"role": "user", "content": "What is it?"}
TEXTS = ["\n\nIt is copper.", "It is amber.", "\nIt is copper."]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Bytes, and two and three line breaks as one token."""
    special = ["<pad>", "<|im_start|>", "<|im_end|>"]
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ĊĊ", "ĊĊĊ"]
    merges = [("Ċ", "Ċ"), ("ĊĊ", "Ċ")]
    backend = tokenizers.Tokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.add_special_tokens(special)
    return Tokenizer.from_backend(backend, chat_template=CHATML, eos="<|im_end|>", pad="<pad>")


def say(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def whole(folder: Path, text: str) -> tuple[torch.Tensor, int]:
    """The ids that transformers makes of a conversation, and how many of them no response changes."""
    theirs = AutoTokenizer.from_pretrained(folder)
    ids = theirs.apply_chat_template([ASK, say(text)])["input_ids"]
    prompt = theirs.apply_chat_template([ASK], add_generation_prompt=True)["input_ids"]
    same = next(at for at, (one, other) in enumerate(zip(ids, [*prompt, -1], strict=False)) if one != other)
    assert (same < len(prompt)) == text.startswith("\n"), "a token over the seam"
    return torch.tensor([ids]), same


def logprob(folder: Path, text: str) -> tuple[float, int]:
    """The log-probability of all tokens that hold text of the response, and their number."""
    ids, same = whole(folder, text)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, same - 1 : -1].log_softmax(-1)
    return float(logits.gather(1, ids[0, same:, None]).sum()), ids.shape[1] - same


def recipe(objective: str, start: Path, data: Path, **changes: object) -> object:
    settings = {
        "model": {"path": str(start)},
        "data": {"path": str(data)},
        "optimizer": {"max_steps": 1},
        **changes,
    }
    return TrainingSettings.model_validate({"objective": objective} | settings)


@pytest.fixture
def pairs(put) -> Path:
    return put("pairs.jsonl", {"prompt": [ASK], "chosen": [say(TEXTS[0])], "rejected": [say(TEXTS[1])]})


def first_loss(folder: Path) -> float:
    return next(iter(Log(folder / "steps.jsonl", StepRecord))).loss


def test_scores_are_those_of_transformers(tokenizer: Tokenizer, pairs: Path, tmp_path: Path):
    start = tmp_path / "start"
    save(new_scorer(SHAPE, tokenizer, seed=0), start)
    plain = AutoModelForSequenceClassification.from_pretrained(start)
    with torch.inference_mode():
        truth = [plain(input_ids=whole(start, text)[0]).logits.item() for text in TEXTS]
    together = longrm.load(str(start)).score([ASK], [[say(text)] for text in TEXTS])
    assert together == pytest.approx(truth, abs=TOLERANCE)
    train(recipe("bradley_terry", start, pairs), tmp_path / "run")
    margin = torch.tensor(truth[0] - truth[1])
    assert first_loss(tmp_path / "run") == pytest.approx(
        torch.nn.functional.softplus(-margin).item(), abs=TOLERANCE
    )
    # What was scored before: the response's tokens behind the prompt's.
    apart = tokenizer.prompt_ids([ASK]) + tokenizer.encode(TEXTS[0] + "<|im_end|>\n")
    with torch.inference_mode():
        assert abs(plain(input_ids=torch.tensor([apart])).logits.item() - truth[0]) > 100 * TOLERANCE


def test_judgments_are_learned_from_their_first_token_on(
    tokenizer: Tokenizer, pairs: Path, put, tmp_path: Path
):
    start = tmp_path / "start"
    save(new_language_model(SHAPE, tokenizer, seed=0), start)
    told = put("told.jsonl", {"prompt": [ASK], "completion": [say(TEXTS[0])]})
    train(recipe("sft", start, told), tmp_path / "sft")
    total, count = logprob(start, TEXTS[0])
    assert first_loss(tmp_path / "sft") == pytest.approx(-total / count, rel=TOLERANCE)

    # The first response changes the prompt's last token; the second one holds it, and does not learn it.
    settings = recipe("preference", start, pairs, loss={"loss_type": "dpo"})
    train(settings, tmp_path / "dpo")
    (record,) = Log(tmp_path / "dpo/reference.jsonl", ReferenceRecord)
    assert record.logprobs == pytest.approx([logprob(start, text)[0] for text in TEXTS[:2]], rel=TOLERANCE)
    (example,) = open_source(settings.data, tokenizer, 0, kind="comparison", limit=10_000).examples()
    assert list(example.tokens.prompt_overlap) == [0, 1]
