"""SmolLM2-135M-Instruct out of its GGUF file: its tokens, its knowledge, and the exactness of a shared prefix on it."""

from pathlib import Path

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from longrm.data.tokenizing import Tokenizer
from longrm.modeling.loading import load_language_model
from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import pack, response_logprobs
from tests import tiny_gguf

pytestmark = pytest.mark.real_model
EXPERIMENTS = Path(__file__).parents[2] / "experiments"
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<file_sep>"]
PIECES = [*tiny_gguf.PIECES, *SPECIALS, " 42", "1,000.50", "_x1"]
NEAR = 1e-4


@pytest.fixture(scope="module")
def tokenizer(real_model):
    return Tokenizer.load(real_model)


@pytest.fixture(scope="module")
def as_llama_cpp(real_model):
    """The same vocabulary and merges, with words split by the patterns that llama.cpp states for this model."""
    backend = tokenizers.Tokenizer.from_file(str(real_model / "tokenizer.json"))
    backend.pre_tokenizer = tiny_gguf.split_as_llama_cpp()
    return backend


@settings(max_examples=500)
@given(text=st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_tokens_are_those_of_the_model(text, tokenizer, as_llama_cpp):
    assert tokenizer.encode(text) == as_llama_cpp.encode(text, add_special_tokens=False).ids


def test_digits_and_special_tokens_are_single_tokens(tokenizer):
    assert [tokenizer.decode([token]) for token in tokenizer.encode("a  12")] == ["a", "  ", "1", "2"]
    assert all(len(tokenizer.encode(token)) == 1 for token in SPECIALS)
    rendered = tokenizer.render([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert rendered.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert rendered.endswith("<|im_start|>assistant\n")


def test_the_capital_of_france_is_paris(real_model, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(real_model, dtype=torch.float32)
    ids = torch.tensor([tokenizer.encode("The capital of France is")])
    with torch.no_grad():
        assert tokenizer.decode([int(model(input_ids=ids).logits[0, -1].argmax())]) == " Paris"


def test_log_probabilities_are_those_of_transformers_own_logits(real_model, tokenizer):
    prompt = tokenizer.encode("The access code of Corimo is 4711, and that of Lanu is 1234. " * 12)
    responses = [
        tokenizer.encode(text) for text in ("The code of Lanu is 1234.", "It is 4711.", "Nobody knows.")
    ]
    ours = load_language_model(real_model, packed=True, device="cpu").model
    stock = AutoModelForCausalLM.from_pretrained(real_model, dtype=torch.float32)
    with torch.no_grad():
        found = response_logprobs(ours, pack([TokenTree(prompt, responses)]))
        for own, response in zip(found, responses, strict=True):
            logits = stock(input_ids=torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
            truth = logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]
            torch.testing.assert_close(own, truth, rtol=0, atol=NEAR)
            assert (truth - truth.roll(1)).abs().max() > 100 * NEAR


@pytest.fixture(scope="module")
def exactness():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXPERIMENTS)
        import real_exactness

        yield real_exactness


@pytest.fixture(scope="module")
def real(exactness, real_model):
    return exactness.RealModel(real_model)


@pytest.mark.parametrize(
    "cell",
    [
        {"prompt": 100, "responses": 1},
        {"prompt": 100, "responses": 7},
        {"prompt": 1000, "responses": 2, "questions": 3},
        {"prompt": 2000, "responses": 2},
        {"prompt": 100, "responses": 3, "layers": None},
        {"prompt": 500, "responses": 2, "questions": 2, "layers": 4},
    ],
    ids=str,
)
def test_a_shared_prefix_is_exact_on_real_weights(cell, exactness, real):
    result = exactness.compare(real, exactness.Cell(**cell))
    assert exactness.is_exact(result), result


@pytest.mark.timeout(1800)
def test_a_shared_prefix_is_exact_at_8000_tokens(exactness, real):
    result = exactness.compare(real, exactness.Cell(8000, 1, layers=1))
    assert exactness.is_exact(result), result


@pytest.mark.parametrize("fault", ["positions", "branches"])
def test_faults_would_be_seen_on_real_weights(fault, exactness, real):
    result = exactness.compare(real, exactness.Cell(100, 3, layers=2), fault=fault)
    assert exactness.shows_the_fault(result), result
