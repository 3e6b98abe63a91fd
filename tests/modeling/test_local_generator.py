import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
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
from longrm.modeling import group_sampling, local_generator
from longrm.modeling.group_sampling import Sample
from longrm.modeling.local_generator import LocalTextGenerator
from longrm.types import Outcome

from . import test_recurrent
from .conftest import FAMILIES as KEYS_ONLY
from .conftest import SIZES, VOCABULARY, write_model

BLOCK = 16
NEW = 24
FAMILIES = KEYS_ONLY | {name: test_recurrent.FAMILIES[name] for name in ("qwen3.5", "falcon-h1", "zamba2")}
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
    monkeypatch.setattr(group_sampling, "_BLOCK", BLOCK)


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
def counted(writer: LocalTextGenerator) -> Iterator[list[int]]:
    """The number of tokens of every forward within a `with` block."""
    sizes: list[int] = []
    hook = writer._model.register_forward_pre_hook(
        lambda _, __, given: sizes.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    yield sizes
    hook.remove()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_that_of_transformers_together_and_alone(family: str, folders: Callable[[str], Path]):
    folder, prompts = folders(family), family_of_prompts()
    expected = truth(folder, prompts)
    assert len(set(expected)) >= 8, "the prompts must be answered differently for this to mean anything"
    writer = LocalTextGenerator.load(str(folder))
    requests = [asking(prompt) for prompt in prompts]
    with counted(writer) as sizes:
        assert written(writer.generate(requests)) == expected
    most = max(count for _, count in expected)
    steps = [sum(count > step for _, count in expected) for step in range(1, most)]
    assert sizes[-len(steps) :] == steps, "a step reads a token of all that have not ended"
    assert written(writer.generate(requests[::-1])) == expected[::-1]  # over what the first call left behind
    alone = [LocalTextGenerator.load(str(folder)).generate([request])[0] for request in requests]
    assert written(alone) == expected
    # Answers that end at different times.
    limits = [1 + 7 * at % NEW for at in range(len(prompts))]
    mixed = [asking(prompt, limit) for prompt, limit in zip(prompts, limits, strict=True)]
    writer.on_progress = (shares := []).append
    for (text, count), completion, limit in zip(expected, writer.generate(mixed), limits, strict=True):
        assert text.startswith(completion.text)
        assert completion.completion_tokens == min(limit, count)
    assert shares == sorted(shares)
    assert (len(shares) > 5, shares[-1]) == (True, 1.0)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt-oss", "qwen3.5"])
def test_batches_have_room_for_their_keys(
    family: str, folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    folder, prompts = folders(family), family_of_prompts()
    requests = [asking(prompt) for prompt in prompts]
    writer = LocalTextGenerator.load(str(folder))
    expected = written(writer.generate(requests))
    assert writer._sampler is not None
    monkeypatch.setattr(local_generator, "cache_bytes", lambda model: 200 * writer._sampler.memory()[0])
    writer._room, most, steps = 0, 0, []
    sampler_write = writer._sampler.write

    def write(wanted: Any, *rest: Any) -> list[Sample]:
        nonlocal most
        samples = sampler_write(wanted, *rest)
        most = max(most, len(writer._sampler._layers[0][0]))
        steps.append(len(wanted))
        return samples

    monkeypatch.setattr(writer._sampler, "write", write)
    assert written(writer.generate(requests)) == expected
    assert 100 < most <= 200
    assert 2 < len(steps) < len(prompts)


@pytest.mark.parametrize("what", ["common prefix", "keys of another"])
def test_wrong_keys_would_be_seen(what: str, llama: Path, monkeypatch: pytest.MonkeyPatch):
    prompts = family_of_prompts()
    if what == "common prefix":
        right = group_sampling.common_prefix

        def longer(left: list[int], own: list[int]) -> int:
            return min(right(left, own) + BLOCK // 2, len(left), len(own))

        monkeypatch.setattr(group_sampling, "common_prefix", longer)
    else:  # every continuation sees what its neighbor sees
        plan = group_sampling.plan_ranges
        monkeypatch.setattr(group_sampling, "plan_ranges", lambda seen, on: plan([*seen[1:], seen[0]], on))
    found = written(LocalTextGenerator.load(str(llama)).generate([asking(prompt) for prompt in prompts]))
    assert found != truth(llama, prompts)


def test_a_document_is_read_once_in_whatever_order_it_is_asked_about(llama: Path):
    documents = [words(seed, 5 * BLOCK) for seed in (1, 2)]
    prompts = [f"{documents[n % 2]} {words(20 + n, 9)}" for n in range(8)]  # documents take turns
    writer = LocalTextGenerator.load(str(llama))
    writer.generate([asking("w1", max_tokens=1)])  # measures the keys of a token
    with counted(writer) as sizes:
        writer.generate([asking(prompt, max_tokens=1) for prompt in prompts])
    assert sum(sizes) == 2 * 5 * BLOCK + 8 * 9
    assert max(sizes) <= BLOCK
    with counted(writer) as sizes:  # what was read before is extended, as reminders do
        writer.generate([asking(f"{prompt} {words(3, 4)}", max_tokens=1) for prompt in prompts])
    assert sum(sizes) == 8 * 4
    with counted(writer) as sizes:
        writer.generate([asking(words(9, 9), max_tokens=1)])
        writer.generate([asking(prompts[0], max_tokens=1)])  # nothing of it is kept any more
    assert sum(sizes) == 9 + 5 * BLOCK + 9


@pytest.mark.parametrize("family", WHOLE)
def test_other_architectures_read_every_prompt_whole(family: str, folders: Callable[[str], Path]):
    folder, prompts = folders(family), family_of_prompts()
    writer = LocalTextGenerator.load(str(folder))
    with counted(writer) as sizes:
        completions = writer.generate([asking(prompt) for prompt in prompts])
    assert written(completions) == truth(folder, prompts)
    assert sum(size for size in sizes if size > 1) == sum(len(prompt.split()) for prompt in prompts)


def test_writing_ends_at_every_end_token(llama: Path, tokenizer: Tokenizer, tmp_path: Path):
    prompt = words(1, 61)
    (free,) = LocalTextGenerator.load(str(llama)).generate([asking(prompt)])
    assert free.outcome is Outcome.TRUNCATED
    assert str(NEW) in free.detail
    listed = free.text.split()
    third = listed[2]
    before = listed[: listed.index(third)]
    model = AutoModelForCausalLM.from_pretrained(llama)
    model.generation_config.eos_token_id = [2, tokenizer.encode(third)[0]]
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    (ended,) = LocalTextGenerator.load(str(tmp_path)).generate([asking(prompt)])
    assert ended == Completion(
        Outcome.ANSWERED, " ".join(before), prompt_tokens=61, completion_tokens=len(before) + 1
    )


def test_what_does_not_fit_is_too_long_and_what_cannot_be_rendered_an_error(llama: Path, tmp_path: Path):
    writer = LocalTextGenerator.load(str(llama))
    assert writer.limit == SIZES["max_position_embeddings"]
    fits, long = asking(words(1, 4088), max_tokens=8), asking(words(1, 4089), max_tokens=8)
    done = writer.generate([long, fits, asking("")])
    assert [completion.outcome for completion in done] == [Outcome.TOO_LONG, Outcome.TRUNCATED, Outcome.ERROR]
    assert done[0].prompt_tokens == writer.tokens(long.messages) == 4089
    assert "4,089 of the prompt" in done[0].detail
    assert "no token" in done[2].detail


def test_a_seed_alone_decides_what_is_drawn(llama: Path):
    prompts = family_of_prompts()
    requests = [asking(prompt, temperature=1.0, seed=seed) for seed in (3, 4) for prompt in prompts]
    together = LocalTextGenerator.load(str(llama)).generate(requests)
    writer = LocalTextGenerator.load(str(llama))
    assert writer.generate(requests[::-1])[::-1] == together
    assert [writer.generate([request])[0] for request in requests] == together
    assert together[: len(prompts)] != together[len(prompts) :]
    before = torch.random.get_rng_state()
    writer.generate(requests[:1])
    assert torch.equal(torch.random.get_rng_state(), before), "the caller's random state is left alone"


def test_texts_are_drawn_at_the_temperature_of_the_request(llama: Path):
    stock, prompts = AutoModelForCausalLM.from_pretrained(llama), family_of_prompts()[:4]
    requests = [
        asking(prompt, 6, temperature=temperature, seed=5)
        for prompt, temperature in zip(prompts, (0.5, 0.0, 1.0, 2.0), strict=True)
    ]
    writer = LocalTextGenerator.load(str(llama))
    for request, completion in zip(requests, writer.generate(requests), strict=True):
        ids, drawn = writer.tokenizer.generation_ids(request.messages), []
        generator = torch.Generator().manual_seed(5)
        for _ in range(completion.completion_tokens or 0):
            with torch.inference_mode():
                logits = stock(input_ids=torch.tensor([[*ids, *drawn]])).logits[0, -1]
            shares = torch.softmax(logits / max(request.temperature, 1e-6), dim=-1)
            drawn.append(int(torch.multinomial(shares, 1, generator=generator)))
        assert completion.text == writer.tokenizer.decode(drawn, special=False)


def test_an_interrupted_reading_leaves_nothing_behind(llama: Path):
    prompts = family_of_prompts()
    requests = [asking(prompt) for prompt in prompts]
    writer = LocalTextGenerator.load(str(llama))
    writer.generate(requests[:1])

    def interrupt(module: Any, given: Any, output: Any) -> None:
        raise KeyboardInterrupt

    hook = writer._model.model.layers[1].register_forward_hook(interrupt)  # one layer has cached its keys
    with pytest.raises(KeyboardInterrupt):
        writer.generate(requests[1:2])
    hook.remove()
    assert written(writer.generate(requests)) == truth(llama, prompts)


@pytest.fixture
def speaker(llama: Path, tmp_path: Path) -> Callable[..., LocalTextGenerator]:
    """Makes writers with tags in their vocabulary, a chat template that may open a thought, and a text to write."""

    def make(said: str, *, special: bool, opening: str = "") -> LocalTextGenerator:
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
        writer = LocalTextGenerator.load(str(folder))
        tokens = tuple(known[word] for word in said.split())
        sample = Sample(tokens, tokens[-1] == known["<eos>"], 0.0)
        writer._write = lambda wanted, on_step: [sample]  # type: ignore[method-assign]
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
    speaker: Callable[..., LocalTextGenerator], special: bool, said: str, opening: str, answer: str
):
    (completion,) = speaker(said, special=special, opening=opening).generate([asking("a")])
    assert completion.text == opening + said.removesuffix("<eos>").replace(" ", "")
    assert answer_of(completion.text) == answer


@pytest.fixture
def failing(llama: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], LocalTextGenerator]:
    """Makes a writer that fails at every text with a certain word."""

    def make(fail: Any) -> LocalTextGenerator:
        writer = LocalTextGenerator.load(str(llama))
        assert writer._sampler is not None
        real, marked = writer._sampler._forward, writer.tokenizer.encode("w90")[0]

        def forward(ids: list[int], *rest: Any) -> torch.Tensor:
            logits = real(ids, *rest)
            return fail(logits) if marked in ids else logits

        monkeypatch.setattr(writer._sampler, "_forward", forward)
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
    truth = LocalTextGenerator.load(str(llama)).generate(requests)
    for error in (torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: out of memory")):
        found = failing(fails_with(error)).generate(requests)
        assert [one.outcome is Outcome.ERROR for one in found] == [False, True, False, False, True]
        assert f"out of memory with {truth[1].prompt_tokens} tokens" in found[1].detail
        kept = (0, 2, 3)
        assert [found[at] for at in kept] == [truth[at] for at in kept]


def test_an_answer_from_nan_logits_is_unparsed(failing: Any):
    found = failing(lambda logits: torch.full_like(logits, math.nan)).generate(prompts_of_which_some_fail())
    assert [one.outcome is Outcome.UNPARSED for one in found] == [False, True, False, False, False]
