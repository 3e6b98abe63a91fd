import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from scipy import stats
from tokenizers import decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    JambaConfig,
    PreTrainedTokenizerFast,
)

from longrm.clients import Completion, Request
from longrm.data.tokenizing import Tokenizer
from longrm.judging.answers import answer_of
from longrm.modeling import local_writer
from longrm.modeling.local_writer import LocalWriter
from longrm.types import Outcome

from .conftest import FAMILIES, SIZES, VOCABULARY, write_model

BLOCK = 16
NEW = 24
PLAIN = {k: v for k, v in SIZES.items() if k != "max_position_embeddings"}
WHOLE = {  # what cannot be read in blocks
    "state space and attention": lambda: JambaConfig(
        **PLAIN, attn_layer_period=2, attn_layer_offset=1, num_experts=2
    ),
    "learned positions": lambda: GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, initializer_range=0.5, eos_token_id=2
    ),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_writer, "_BLOCK", BLOCK)


@pytest.fixture(scope="module")
def folders(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            config = (FAMILIES | WHOLE)[family]()
            made[family] = write_model(config, tokenizer, tmp_path_factory.mktemp("model"))
        return made[family]

    return folder


@pytest.fixture
def llama(folders: Callable[[str], Path]) -> Path:
    return folders("llama")


def words(seed: int, count: int) -> str:
    draw = random.Random(seed)
    return " ".join(f"w{draw.randrange(VOCABULARY - 4)}" for _ in range(count))


def asking(text: str, max_tokens: int = NEW, **how: Any) -> Request:
    return Request(({"role": "user", "content": text},), max_tokens, **how)


def family_of_prompts() -> list[str]:
    """Documents of unaligned and of aligned length, questions about them, and an unrelated one."""
    long, short = words(1, 61), words(2, 2 * BLOCK)
    asked = [f"{document} {words(10 + n, n)}" for document in (long, short) for n in (5, 16, 19)]
    return [long, *asked[:3], words(3, 7), short, *asked[3:], long]


def truth(folder: Path, prompts: list[str]) -> list[tuple[str, int]]:
    """What transformers' own generation writes after each whole prompt, and how many tokens."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    found = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
        whole = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, use_cache=True
        )
        new = whole[0, ids.shape[1] :]
        found.append((tokenizer.decode(new, skip_special_tokens=True), len(new)))
    return found


def written(completions: list[Completion]) -> list[tuple[str, int | None]]:
    return [(completion.text, completion.completion_tokens) for completion in completions]


@contextmanager
def counted(writer: LocalWriter) -> Iterator[list[int]]:
    """The number of tokens of every forward within a `with` block."""
    sizes: list[int] = []
    hook = writer._model.register_forward_pre_hook(
        lambda _, __, given: sizes.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    yield sizes
    hook.remove()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_that_of_transformers_with_and_without_reuse(
    family: str, folders: Callable[[str], Path]
):
    folder, prompts = folders(family), family_of_prompts()
    expected = truth(folder, prompts)
    assert len(set(expected)) >= 8, "the prompts must be answered differently for this to mean anything"
    writer = LocalWriter.load(str(folder))
    requests = [asking(prompt) for prompt in prompts]
    assert written(writer.write(requests)) == expected
    assert written(writer.write(requests[::-1])) == expected[::-1]  # over what the first call left behind
    alone = [LocalWriter.load(str(folder)).write([request])[0] for request in requests]
    assert written(alone) == expected


def test_a_wrong_length_of_the_common_prefix_would_be_seen(llama: Path, monkeypatch: pytest.MonkeyPatch):
    prompts = family_of_prompts()
    right = local_writer.common_prefix
    monkeypatch.setattr(local_writer, "common_prefix", lambda left, right_: right(left, right_) + BLOCK // 2)
    found = written(LocalWriter.load(str(llama)).write([asking(prompt) for prompt in prompts]))
    assert found != truth(llama, prompts)


def test_what_was_read_before_changes_no_bit(llama: Path):
    document = words(1, 61)
    prompts = [[1] + [4 + int(word[1:]) for word in f"{document} {words(n, n)}".split()] for n in (3, 21, 40)]
    writer = LocalWriter.load(str(llama))
    with torch.inference_mode():
        fresh = [LocalWriter.load(str(llama))._read(prompt) for prompt in prompts]
        assert all(torch.equal(writer._read(prompt), one) for prompt, one in zip(prompts, fresh, strict=True))
        whole = [writer._model(input_ids=torch.tensor([prompt])).logits[0, -1] for prompt in prompts]
    torch.testing.assert_close(torch.stack(fresh), torch.stack(whole), rtol=0, atol=2e-5)


def test_a_document_is_read_once_in_whatever_order_it_is_asked_about(llama: Path):
    documents = [words(seed, 5 * BLOCK) for seed in (1, 2)]
    prompts = [f"{documents[n % 2]} {words(20 + n, 9)}" for n in range(8)]  # documents take turns
    writer = LocalWriter.load(str(llama))
    with counted(writer) as sizes:
        writer.write([asking(prompt, max_tokens=1) for prompt in prompts])
    assert sum(sizes) == 2 * 5 * BLOCK + 8 * 9
    with counted(writer) as sizes:
        # About the document in the cache, or about the other one.
        writer.write([asking(prompts[-1], max_tokens=1)])
    assert sum(sizes) in (9, 5 * BLOCK + 9)
    assert max(sizes) <= BLOCK


@pytest.mark.parametrize("family", WHOLE)
def test_other_architectures_read_every_prompt_whole(family: str, folders: Callable[[str], Path]):
    folder, prompts = folders(family), family_of_prompts()
    writer = LocalWriter.load(str(folder))
    with counted(writer) as sizes:
        completions = writer.write([asking(prompt) for prompt in prompts])
    assert written(completions) == truth(folder, prompts)
    assert sum(size for size in sizes if size > 1) == sum(len(prompt.split()) for prompt in prompts)


def test_writing_ends_at_every_end_token(llama: Path, tokenizer: Tokenizer, tmp_path: Path):
    prompt = words(1, 61)
    (free,) = LocalWriter.load(str(llama)).write([asking(prompt)])
    assert free.outcome is Outcome.TRUNCATED
    assert str(NEW) in free.detail
    listed = free.text.split()
    third = listed[2]
    before = listed[: listed.index(third)]
    model = AutoModelForCausalLM.from_pretrained(llama)
    model.generation_config.eos_token_id = [2, tokenizer.encode(third)[0]]
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    (ended,) = LocalWriter.load(str(tmp_path)).write([asking(prompt)])
    assert ended == Completion(
        Outcome.ANSWERED, " ".join(before), prompt_tokens=61, completion_tokens=len(before) + 1
    )


def test_what_does_not_fit_is_too_long_and_what_cannot_be_rendered_an_error(llama: Path, tmp_path: Path):
    writer = LocalWriter.load(str(llama))
    assert writer.limit == SIZES["max_position_embeddings"]
    fits, long = asking(words(1, 4088), max_tokens=8), asking(words(1, 4089), max_tokens=8)
    done = writer.write([long, fits, asking("")])
    assert [completion.outcome for completion in done] == [Outcome.TOO_LONG, Outcome.TRUNCATED, Outcome.ERROR]
    assert done[0].prompt_tokens == writer.tokens(long.messages) == 4089
    assert "4,089 of the prompt" in done[0].detail
    assert "no token" in done[2].detail


def test_a_seed_alone_decides_what_is_drawn(llama: Path):
    prompts = family_of_prompts()
    requests = [asking(prompt, temperature=1.0, seed=seed) for seed in (3, 4) for prompt in prompts]
    together = LocalWriter.load(str(llama)).write(requests)
    writer = LocalWriter.load(str(llama))
    assert writer.write(requests[::-1])[::-1] == together
    assert [writer.write([request])[0] for request in requests] == together
    assert together[: len(prompts)] != together[len(prompts) :]
    before = torch.random.get_rng_state()
    writer.write(requests[:1])
    assert torch.equal(torch.random.get_rng_state(), before), "the caller's random state is left alone"


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_the_first_token_is_drawn_from_the_softmax(llama: Path, temperature: float):
    ids = [4 + int(word[1:]) for word in words(5, 23).split()]
    with torch.inference_mode():
        stock = AutoModelForCausalLM.from_pretrained(llama)(input_ids=torch.tensor([ids])).logits[0, -1]
        logits = LocalWriter.load(str(llama))._read(ids)
    drawn = [
        local_writer._draw(logits, temperature, torch.Generator().manual_seed(seed)) for seed in range(4000)
    ]
    counts = torch.bincount(torch.tensor(drawn), minlength=VOCABULARY).double()

    def p_value(softened: float) -> float:
        expected = 4000 * torch.softmax(stock.double() / softened, dim=-1)
        often = expected >= 5
        groups = [[*values[often].tolist(), values[~often].sum().item()] for values in (counts, expected)]
        return float(stats.chisquare(*groups).pvalue)

    assert p_value(temperature) > 0.001
    assert p_value(1.2 * temperature) < 1e-6  # the test detects another temperature


def test_an_interrupted_reading_leaves_nothing_behind(llama: Path):
    prompts = family_of_prompts()
    requests = [asking(prompt) for prompt in prompts]
    writer = LocalWriter.load(str(llama))
    writer.write(requests[:1])

    def interrupt(module: Any, given: Any, output: Any) -> None:
        raise KeyboardInterrupt

    hook = writer._model.model.layers[1].register_forward_hook(interrupt)  # one layer has cached its keys
    with pytest.raises(KeyboardInterrupt):
        writer.write(requests[1:2])
    hook.remove()
    assert written(writer.write(requests)) == truth(llama, prompts)


@pytest.fixture
def speaker(llama: Path, tmp_path: Path) -> Callable[..., LocalWriter]:
    """Makes writers with tags in their vocabulary, a chat template that may open a thought, and a text to write."""

    def make(said: str, *, special: bool, opening: str = "") -> LocalWriter:
        tags = ["<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<eos>"]
        known = {word: index for index, word in enumerate(["<unk>", *tags, "analysis", "final", *"abc"])}
        backend = tokenizers.Tokenizer(models.WordLevel(known, unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.decoder = decoders.Fuse()
        backend.add_special_tokens([*tags] if special else ["<eos>"])
        template = "{{ messages[0].content }}{% if add_generation_prompt %}" + opening + "{% endif %}"
        folder = tmp_path / f"{special}{len(said)}{len(opening)}"
        AutoModelForCausalLM.from_pretrained(llama).save_pretrained(folder)
        Tokenizer.from_backend(backend, chat_template=template, eos="<eos>").save(folder)
        writer = LocalWriter.load(str(folder))
        writer._continue = lambda prompt, request: [known[word] for word in said.split()]  # type: ignore[method-assign]
        return writer

    return make


HARMONY = "<|channel|> analysis <|message|> a <|end|> <|start|> <|channel|> final <|message|> b <eos>"


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(
    ("said", "opening", "answer"),
    [
        ("a b", "<think>", ""),
        ("a </think> b <eos>", "<think>", "b"),
        ("<think> a </think> b <eos>", "", "b"),
        (HARMONY, "", "b"),
    ],
)
def test_thinking_is_marked_in_the_text(
    speaker: Callable[..., LocalWriter], special: bool, said: str, opening: str, answer: str
):
    (completion,) = speaker(said, special=special, opening=opening).write([asking("a")])
    assert completion.text == opening + said.removesuffix("<eos>").replace(" ", "")
    assert answer_of(completion.text) == answer


@pytest.fixture
def failing(llama: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], LocalWriter]:
    """Makes a writer that fails at every text with a certain word."""

    def make(fail: Any) -> LocalWriter:
        writer = LocalWriter.load(str(llama))
        real, marked = writer._forward, writer.tokenizer.encode("w90")[0]

        def forward(ids: list[int]) -> torch.Tensor:
            logits = real(ids)
            return fail(logits) if marked in ids else logits

        monkeypatch.setattr(writer, "_forward", forward)
        return writer

    return make


def prompts_of_which_some_fail() -> list[Request]:
    """The second and the last: with the others in the cache, and behind blocks that they share."""
    document = words(1, 40).replace("w90", "w1")
    texts = [document, f"{document} w90 w3", f"{document} w3 w4", "w5 w6", f"w90 {document}"]
    return [asking(text) for text in texts]


def fails_with(error: Exception) -> Callable[[torch.Tensor], torch.Tensor]:
    def fail(logits: torch.Tensor) -> torch.Tensor:
        raise error

    return fail


def test_memory_that_runs_out_over_one_prompt_is_its_own_error(llama: Path, failing: Any):
    requests = prompts_of_which_some_fail()
    truth = LocalWriter.load(str(llama)).write(requests)
    for error in (torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: out of memory")):
        found = failing(fails_with(error)).write(requests)
        assert [one.outcome is Outcome.ERROR for one in found] == [False, True, False, False, True]
        assert f"out of memory with {truth[1].prompt_tokens} tokens" in found[1].detail
        kept = (0, 2, 3)
        assert [found[at] for at in kept] == [truth[at] for at in kept]


def test_an_answer_from_nan_logits_is_unparsed(failing: Any):
    found = failing(lambda logits: torch.full_like(logits, math.nan)).write(prompts_of_which_some_fail())
    assert [one.outcome is Outcome.UNPARSED for one in found] == [False, True, False, False, False]
