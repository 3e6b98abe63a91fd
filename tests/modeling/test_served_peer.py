"""The same folder in this process and behind `transformers serve` writes the same text at temperature 0.

Known to differ, from trials and from its source, and kept out of the way here: the server applies the penalties
of `generation_config.json`, and samples only where that file says so, whatever the temperature; it leaves end
tokens in the text that are not special; for some model types (Qwen's) it parses the text, moves thinking to
`reasoning_content`, strips spaces, leaves special tokens in, and repeats the prompt where the chat template is
not ChatML; it says "length" where the last token allowed is an end token; and it takes a prompt of any length.
"""

import dataclasses
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from longrm.clients import Completion, Request
from longrm.data.tokenizing import Tokenizer
from longrm.modeling.local_writer import LocalWriter
from longrm.types import Outcome

from .conftest import SIZES

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DOCUMENT = " ".join(f"The access code of the {n}th door is {n * n % 89}." for n in range(90))
PROMPTS = [
    *(
        f"{DOCUMENT}\n\nWhich code opens door {n}, and {what}?"
        for n, what in ((3, "why"), (40, "is it 7"), (77, ""))
    ),
    "Is it [[A]] or [[B]]? Überprüfe das: naïve café.",
    "copper",
]
NEW = 20


def make_tokenizer() -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "<|endoftext|>", "<|im_end|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(PROMPTS, trainer)
    return Tokenizer.from_backend(backend, chat_template=TEMPLATE, eos="<|im_end|>", pad="<pad>")


def make_folder(folder: Path, family: str) -> Path:
    tokenizer = make_tokenizer()
    sizes = SIZES | {"vocab_size": tokenizer.vocab_size}
    torch.manual_seed(0)
    config = {"llama": LlamaConfig(**sizes), "qwen3": Qwen3Config(**sizes, head_dim=16)}[family]
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.lm_head.weight[[1, 2]] *= 1.5  # so that some texts end by themselves
        model.lm_head.weight[[0, 3]] = 0  # no other special token is written
    model.generation_config.eos_token_id = [1, 2]
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return folder


@contextmanager
def served(folder: Path, home: Path) -> Iterator[Callable[[str], Completion]]:
    """Asks the folder's model behind an HTTP server on the loopback interface."""
    (home / "hub").mkdir(parents=True)  # without it the server answers 500
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [Path(sys.executable).with_name("transformers"), "serve", folder, "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home)}
    server = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port)], env=environment)
    # Retries wait ever longer for the server to listen, a minute in all.
    client = httpx.Client(
        base_url=f"http://127.0.0.1:{port}/v1", transport=httpx.HTTPTransport(retries=8), timeout=120
    )

    def ask(prompt: str) -> Completion:
        body = {
            "model": str(folder),
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": NEW,
            "temperature": 0,
            "stream": False,
        }
        reply = client.post("/chat/completions", json=body).raise_for_status().json()
        (choice,), usage = reply["choices"], reply["usage"]
        outcome = Outcome.TRUNCATED if choice["finish_reason"] == "length" else Outcome.ANSWERED
        return Completion(
            outcome,
            choice["message"]["content"],
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
        )

    try:
        with client:
            yield ask
    finally:
        server.terminate()
        server.wait()


def stripped(completion: Completion) -> Completion:
    return dataclasses.replace(completion, text=completion.text.strip(), detail="")


@pytest.mark.full
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_greedy_text_is_that_of_the_server(family: str, tmp_path: Path):
    folder = make_folder(tmp_path / "model", family)
    requests = [Request(({"role": "user", "content": prompt},), NEW) for prompt in PROMPTS]
    mine = LocalWriter.load(str(folder)).write(requests)
    assert {one.outcome for one in mine} == {Outcome.ANSWERED, Outcome.TRUNCATED}
    assert len({one.text for one in mine}) == len(PROMPTS)
    with served(folder, tmp_path / "home") as ask:
        theirs = [ask(prompt) for prompt in PROMPTS]
    assert [stripped(one) for one in mine] == [stripped(one) for one in theirs]
