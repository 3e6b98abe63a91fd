"""Continuations that are sampled together over one prompt are those of plain forward passes, one sequence at a time."""

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats

from longrm.modeling import group_sampling
from longrm.modeling.group_sampling import Continuation, GroupSampler, Sample
from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import pack, response_logprobs

from .conftest import FAMILIES, ROUNDING, VOCABULARY, make_pair

BLOCK = 16
NEW = 12
END = 2
ENDS = {END, *range(4, 20)}  # so many that continuations end at different times
SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "max_tokens": NEW}
GREEDY = SAMPLED | {"temperature": 1e-4}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_sampling, "_BLOCK", BLOCK)


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[Any, Any]]:
    """One model of every family under stock attention, and its twin under ours."""
    return {family: make_pair(family, "logprobs") for family in FAMILIES}


def ids(seed: int, count: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(4, VOCABULARY) for _ in range(count)]


DOCUMENT = ids(1, 3 * BLOCK + 5)
PROMPTS = [
    ids(2, 1),
    ids(3, BLOCK - 3),
    ids(4, BLOCK),
    ids(5, BLOCK + 1),
    DOCUMENT,
    [*DOCUMENT, *ids(6, 9)],
    [*DOCUMENT, *ids(7, BLOCK)],
    DOCUMENT[: 2 * BLOCK],  # all of it is kept, and the last token must be read again for its logits
    [*DOCUMENT[:BLOCK], *ids(8, 2 * BLOCK)],
]


def logits_of(model: Any, sequence: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([sequence])).logits[0, -1].double()


def alone(
    model: Any, prompt: Sequence[int], seed: int, temperature: float, ends: set[int], most: int = NEW
) -> Sample:
    """A continuation by transformers' forward passes of the whole sequence, with entropies in fp64."""
    generator, written, entropies = torch.Generator().manual_seed(seed), [], []
    while not written or (written[-1] not in ends and len(written) < most):
        logprobs = (logits_of(model, [*prompt, *written]) / temperature).log_softmax(-1)
        entropies.append(float(torch.distributions.Categorical(logits=logprobs).entropy()))
        written.append(int(torch.multinomial(logprobs.exp().float(), 1, generator=generator)))
    return Sample(tuple(written), written[-1] in ends, sum(entropies) / len(entropies))


@contextmanager
def counted(model: Any) -> Iterator[list[int]]:
    """The number of tokens of every forward within a `with` block."""
    sizes: list[int] = []
    hook = model.base_model.register_forward_pre_hook(
        lambda _, __, given: sizes.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    yield sizes
    hook.remove()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(family: str, pairs: dict[str, tuple[Any, Any]]):
    stock, ours = pairs[family]
    sampler, found, expected = GroupSampler(ours, {END}), [], []
    for prompt in PROMPTS:
        given = torch.tensor([prompt])
        whole = stock.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=NEW
        )
        expected.append(tuple(whole[0, len(prompt) :].tolist()))
        samples = sampler.sample(prompt, range(3), **GREEDY)
        assert len({sample.tokens for sample in samples}) == 1
        found.append(samples[0].tokens)
    assert found == expected
    assert len(set(expected)) >= 7, "the prompts must be continued differently for this to mean anything"


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_that_end_at_different_times_are_those_of_whole_forward_passes(
    family: str, pairs: dict[str, tuple[Any, Any]]
):
    stock, ours = pairs[family]
    sampler, lengths, seeds = GroupSampler(ours, ENDS), set(), range(6)
    for prompt in PROMPTS[3:6]:
        found = sampler.sample(prompt, seeds, **SAMPLED | {"temperature": 0.7})
        for sample, seed in zip(found, seeds, strict=True):
            truth = alone(stock, prompt, seed, 0.7, ENDS)
            assert (sample.tokens, sample.ended) == (truth.tokens, truth.ended)
            assert sample.entropy == pytest.approx(truth.entropy, rel=1e-5)
            lengths.add(len(sample.tokens))
    assert len(lengths) >= 4
    assert NEW in lengths


def test_entropies_are_before_top_p_and_at_the_temperature(pairs: dict[str, tuple[Any, Any]]):
    stock, ours = pairs["llama"]
    (sample,) = GroupSampler(ours, {END}).sample(DOCUMENT, [0], temperature=2.0, top_p=0.3, max_tokens=1)
    entropies = [
        float(torch.distributions.Categorical(logits=logits_of(stock, DOCUMENT) / temperature).entropy())
        for temperature in (2.0, 1.0)
    ]
    assert sample.entropy == pytest.approx(entropies[0], rel=1e-5)
    assert abs(entropies[1] - entropies[0]) > 0.1


def test_each_of_several_samples_is_the_one_of_its_seed_alone(pairs: dict[str, tuple[Any, Any]]):
    _, ours = pairs["qwen3"]
    sampler = GroupSampler(ours, ENDS)
    together = sampler.sample(DOCUMENT, range(8), **SAMPLED)
    for seed, sample in enumerate(together):
        (own,) = sampler.sample(DOCUMENT, [seed], **SAMPLED)
        assert (own.tokens, own.ended) == (sample.tokens, sample.ended)
        assert own.entropy == pytest.approx(sample.entropy, rel=ROUNDING)
    reordered = sampler.sample(DOCUMENT, [5, 2], **SAMPLED)
    assert [own.tokens for own in reordered] == [together[5].tokens, together[2].tokens]
    assert len({sample.tokens for sample in together}) == 8


@pytest.mark.parametrize("family", ["llama", "mistral, windows", "gemma2", "gpt-oss"])
def test_continuations_of_several_prompts_are_those_of_whole_forward_passes(
    family: str, pairs: dict[str, tuple[Any, Any]]
):
    stock, ours = pairs[family]
    wanted = [
        Continuation(prompt, 3 + 5 * number % NEW, seed=number, temperature=(0.7, 1.0, 1.5)[number % 3])
        for number, prompt in enumerate([*PROMPTS, DOCUMENT, PROMPTS[0]])  # some prompts twice
    ]
    expected = [alone(stock, one.prompt, one.seed, one.temperature, ENDS, one.max_tokens) for one in wanted]
    sampler = GroupSampler(ours, ENDS)
    ended: list[int] = []
    for found, truth in zip(sampler.write(wanted, ended.append), expected, strict=True):
        assert (found.tokens, found.ended) == (truth.tokens, truth.ended)
        assert found.entropy == pytest.approx(truth.entropy, rel=1e-5)
    assert len({len(truth.tokens) for truth in expected}) >= 4
    assert ended == sorted(set(ended))
    assert ended[-1] == len(wanted)
    # Whatever else is in the batch, in whatever order, and whatever was read before.
    for order in (range(10, -1, -1), (3, 8), (4, 9), (6,)):
        some = sampler.write([wanted[at] for at in order])
        assert [own.tokens for own in some] == [expected[at].tokens for at in order]
    # The control: another seed.
    others = sampler.write([replace(one, seed=one.seed + 1) for one in wanted])
    assert [own.tokens for own in others] != [own.tokens for own in expected]


def test_logits_of_one_prompt_that_are_not_finite_leave_the_others_alone():
    _, ours = make_pair("llama", "logprobs")
    wanted = [Continuation(prompt, NEW) for prompt in PROMPTS]
    right = GroupSampler(ours, {END}).write(wanted)
    written = {token for own in right for token in own.tokens}
    bad = next(token for token in PROMPTS[6][len(DOCUMENT) :] if token not in written)
    ours.get_input_embeddings().weight.data[bad] = math.nan
    found = GroupSampler(ours, {END}).write(wanted)
    assert not found[6].finite
    assert found[6].tokens == ()
    for one, own, truth in zip(wanted, found, right, strict=True):
        assert own.finite == (bad not in one.prompt)
        if own.finite:
            assert own == truth


def test_the_global_random_state_neither_matters_nor_changes(pairs: dict[str, tuple[Any, Any]]):
    _, ours = pairs["llama"]
    first = GroupSampler(ours, ENDS).sample(DOCUMENT, range(4), **SAMPLED)
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    assert GroupSampler(ours, ENDS).sample(DOCUMENT, range(4), **SAMPLED) == first
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_was_read_before_changes_only_rounding_and_is_not_read_again(pairs: dict[str, tuple[Any, Any]]):
    _, ours = pairs["qwen2"]
    sampler, questions = GroupSampler(ours, {END}), [[*DOCUMENT, *ids(n, n)] for n in (9, 20, 31)]
    known: list[int] = []
    for prompt in (*questions, questions[0][: 2 * BLOCK], DOCUMENT, DOCUMENT, PROMPTS[1]):
        same = (at for at, (one, other) in enumerate(zip(known, prompt, strict=False)) if one != other)
        kept = min(next(same, len(known)), len(prompt) - 1)
        with counted(ours) as sizes:
            found = sampler.sample(prompt, range(3), **SAMPLED)
        for sample, fresh in zip(
            found, GroupSampler(ours, {END}).sample(prompt, range(3), **SAMPLED), strict=True
        ):
            assert (sample.tokens, sample.ended) == (fresh.tokens, fresh.ended)
            assert sample.entropy == pytest.approx(fresh.entropy, rel=ROUNDING)
        reads = sizes[: len(sizes) - (max(len(sample.tokens) for sample in found) - 1)]
        assert sum(reads) == len(prompt) - kept
        assert max(reads) <= BLOCK
        known = prompt


def test_a_wrong_length_of_the_common_prefix_would_be_seen(
    pairs: dict[str, tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
):
    _, ours = pairs["llama"]
    first, second = PROMPTS[6], PROMPTS[8]  # they share one block
    right = GroupSampler(ours, {END}).sample(second, range(4), **SAMPLED)
    monkeypatch.setattr(group_sampling, "common_prefix", lambda left, _: 2 * BLOCK if left else 0)
    sampler = GroupSampler(ours, {END})
    sampler.sample(first, range(4), **SAMPLED)
    assert sampler.sample(second, range(4), **SAMPLED) != right


def p_value(drawn: Sequence[int], expected: torch.Tensor) -> float:
    """Of a chi-square test of drawn tokens; tokens that are expected less than five times are one class."""
    counts = torch.bincount(torch.tensor(drawn), minlength=VOCABULARY).double()
    often = expected >= 5
    groups = [[*values[often].tolist(), values[~often].sum().item()] for values in (counts, expected)]
    if groups[1][-1] == 0:
        assert groups[0][-1] == 0, "a token was drawn that has no probability"
        groups = [group[:-1] for group in groups]
    return float(stats.chisquare(*groups).pvalue)


def nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """The most likely tokens until they have this probability together, in plain Python."""
    kept, total = torch.zeros_like(probabilities), 0.0
    for token in sorted(range(VOCABULARY), key=lambda token: -float(probabilities[token])):
        if total >= top_p:
            break
        kept[token] = probabilities[token]
        total += float(probabilities[token])
    return kept / total


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.0, 0.8), (1.5, 0.5)])
def test_tokens_are_drawn_from_the_softmax_and_its_nucleus(
    temperature: float, top_p: float, pairs: dict[str, tuple[Any, Any]]
):
    stock, ours = pairs["llama"]
    prompt, count = PROMPTS[3], 3000
    samples = GroupSampler(ours, {END}).sample(
        prompt, range(count), temperature=temperature, top_p=top_p, max_tokens=1
    )
    drawn = [sample.tokens[0] for sample in samples]

    def expected(temperature: float, top_p: float) -> torch.Tensor:
        return count * nucleus((logits_of(stock, prompt) / temperature).softmax(-1), top_p)

    assert p_value(drawn, expected(temperature, top_p)) > 0.001
    others = nucleus((logits_of(stock, prompt) / (1.25 * temperature)).softmax(-1), 1.0)
    assert p_value(drawn, count * others) < 1e-6, "another temperature is detected"
    if top_p < 1.0:
        assert p_value(drawn, expected(temperature, 1.0)) < 1e-6, "and so is a missing top-p"


def test_the_most_likely_token_is_drawn_even_with_a_tiny_top_p(pairs: dict[str, tuple[Any, Any]]):
    sampler = GroupSampler(pairs["llama"][1], {END})
    greedy = sampler.sample(DOCUMENT, [0], **GREEDY)[0].tokens
    for sample in sampler.sample(DOCUMENT, range(4), **SAMPLED | {"top_p": 1e-9}):
        assert sample.tokens == greedy


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_of_samples_are_those_of_a_plain_forward(
    family: str, temperature: float, pairs: dict[str, tuple[Any, Any]]
):
    stock, ours = pairs[family]
    samples = GroupSampler(ours, ENDS).sample(DOCUMENT, range(5), **SAMPLED | {"temperature": temperature})
    branches = [sample.tokens for sample in samples]
    with torch.no_grad():
        found = response_logprobs(ours, pack([TokenTree(DOCUMENT, branches)]), temperature=temperature)
        other = response_logprobs(ours, pack([TokenTree(DOCUMENT, branches)]), temperature=0.9)
    for branch, own, wrong in zip(branches, found, other, strict=True):
        truth = torch.tensor(
            [
                (logits_of(stock, [*DOCUMENT, *branch[:at]]) / temperature).log_softmax(-1)[token]
                for at, token in enumerate(branch)
            ]
        )
        torch.testing.assert_close(own, truth.float(), rtol=0, atol=5e-5)
        assert float((wrong - truth).abs().max()) > 100 * 5e-5


def test_logits_that_are_not_finite_raise_and_leave_nothing_behind():
    _, ours = make_pair("llama", "logprobs")
    sampler, prompt = GroupSampler(ours, {END}), PROMPTS[1]
    right = sampler.sample(prompt, range(2), **GREEDY)[0].tokens
    first = right[0]
    assert first not in prompt
    embedding = ours.get_input_embeddings().weight.data
    kept = embedding[first].clone()
    for value in (math.nan, math.inf):
        embedding[first] = value
        with pytest.raises(FloatingPointError, match="token 2"):
            sampler.sample(prompt, range(2), **GREEDY)
        with pytest.raises(FloatingPointError, match="token 1"):
            sampler.sample([first, *prompt], range(2), **GREEDY)
        embedding[first] = kept
        assert sampler.sample(prompt, range(2), **GREEDY)[0].tokens == right
