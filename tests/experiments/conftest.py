"""A tiny model that can take the place of the real one."""

import sys

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig

from longrm.data.tokenizing import Tokenizer
from tests.reward_models.tiny_models import CHATML, SIZES
from tests.worlds.prose.prose_tokenizer import prose_tokenizer


@pytest.fixture
def model(tmp_path):
    backend = prose_tokenizer().backend
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer = Tokenizer.from_backend(backend, chat_template=CHATML, eos="<|im_end|>")
    sizes = SIZES | {"eos_token_id": tokenizer.eos_id, "pad_token_id": None}
    AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=tokenizer.vocab_size, **sizes)).save_pretrained(
        tmp_path / "model"
    )
    tokenizer.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def call(monkeypatch):
    """Calls the `main` of a script with arguments."""

    def run(main, *arguments):
        monkeypatch.setattr(sys, "argv", ["script", *map(str, arguments)])
        return main()

    return run
