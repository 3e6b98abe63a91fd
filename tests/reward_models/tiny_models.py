"""Tiny random language models with a chat template, and what a user of transformers alone would compute with them."""

import random
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen3_5TextConfig, Qwen3Config

from longrm.data.tokenizing import Tokenizer
from longrm.modeling.loading import new_language_model, new_scorer
from longrm.modeling.saving import save
from longrm.modeling.shapes import HeadForm, ModelShape
from longrm.types import Query, Span
from longrm.worlds.words_tokenizer import words_tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
WORDS = [f"w{number}" for number in range(60)]
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.25,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
FAMILIES = {
    "llama": lambda size: LlamaConfig(vocab_size=size, **SIZES),
    "qwen3": lambda size: Qwen3Config(vocab_size=size, head_dim=16, **SIZES),
    "qwen3.5": lambda size: Qwen3_5TextConfig(
        vocab_size=size,
        head_dim=16,
        layer_types=["linear_attention", "full_attention"],
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        **SIZES,
    ),
}


def bytes_tokenizer(template: str | None = CHATML, merges: tuple[str, ...] = ("Yes", "No")) -> Tokenizer:
    """One token a byte, but for special tokens and some words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = {token: number for number, token in enumerate([*SPECIAL, *alphabet])}
    joined = []
    for word in merges:
        for end in range(2, len(word) + 1):
            if word[:end] not in known:
                known[word[:end]] = len(known)
                joined.append((word[: end - 1], word[end - 1]))
    backend = tokenizers.Tokenizer(models.BPE(known, joined))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    return Tokenizer.from_backend(backend, chat_template=template, eos="<|im_end|>", pad="<|endoftext|>")


def make_scorer(
    folder: Path,
    *,
    seed: int = 0,
    positions: int = 600,
    tokenizer: Tokenizer | None = None,
    head: HeadForm | None = None,
) -> Path:
    """Writes a random scalar reward model that reads words and whose scores differ clearly."""
    shape = ModelShape(hidden=32, init_std=0.3, max_positions=positions)
    save(new_scorer(shape, tokenizer or words_tokenizer(), seed=seed, head=head), folder)
    return folder


def make_verdict_writer(folder: Path) -> Path:
    """Writes a small language model for generated worlds that writes verdicts, often in the right form, at random."""
    tokenizer = words_tokenizer(verdicts=True)
    shape = ModelShape(hidden=16, heads=2, kv_heads=2, head_dim=8, init_std=0.1)
    writer = new_language_model(shape, tokenizer, seed=5)
    # A direction that all embeddings share, and so all hidden states; the head is tied to the embeddings.
    embeddings = writer.model.get_input_embeddings().weight
    verdicts = [*tokenizer.encode("[[ A ]] [[ B ]]"), tokenizer.eos_id]
    with torch.no_grad():
        embeddings += 0.25
        embeddings[verdicts] += 0.75
    save(writer, folder)
    return folder


def make_model(
    folder: Path, family: str = "llama", *, seed: int = 0, tokenizer: Tokenizer | None = None
) -> Path:
    """Writes a model and its tokenizer as a user has them."""
    tokenizer = tokenizer or bytes_tokenizer()
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(FAMILIES[family](tokenizer.vocab_size)).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(WORDS, k=count))


def queries(*shapes: tuple[int, int], per_document: int = 1, seed: int = 0) -> list[Query]:
    """For every shape (words of the document, number of responses) some questions over one document."""
    draw, found = random.Random(seed), []
    for length, count in shapes:
        document = words(draw, length)
        for number in range(per_document):
            prompt = ({"role": "user", "content": f"{document}\n\nQuestion {number}: {words(draw, 4)}?"},)
            responses = tuple(
                ({"role": "assistant", "content": words(draw, draw.randint(1, 9))},) for _ in range(count)
            )
            name = f"{length} words, {count} responses, question {number}"
            found.append(Query(name, prompt, responses, (Span(0, 0, len(document)),)))
    return found


class Plain:
    """A model as transformers loads it: one sequence a response, the whole prompt every time."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def logprobs(self, prompt, response) -> list[float]:
        """The log-probabilities of a response's tokens, one by one, with what closes it."""
        opened = self.tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True)["input_ids"]
        whole = self.tokenizer.apply_chat_template([*prompt, *response])["input_ids"]
        assert whole[: len(opened)] == opened
        table = self.model(torch.tensor([whole])).logits[0].double().log_softmax(-1)
        return [table[place - 1, whole[place]].item() for place in range(len(opened), len(whole))]

    @torch.inference_mode()
    def first(self, prompt, tokens) -> list[float]:
        """The log-probability of each token as the first of the answer to a prompt."""
        ids = self.tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True)["input_ids"]
        row = self.model(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1)
        return [row[self.tokenizer.convert_tokens_to_ids(token)].item() for token in tokens]
