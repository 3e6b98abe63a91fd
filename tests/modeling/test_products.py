"""The trial that chooses oneDNN for fp32 products: gains count only where precision stays."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForSequenceClassification

from longrm.modeling import products
from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.group_sampling import Continuation, write_tokens
from longrm.modeling.products import choose_products, speedup
from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import pack, scores

OPERANDS = [(torch.randn(64, 512), torch.randn(512, 64))]
TREE = TokenTree(list(range(5, 45)), [[3, 4, 5], [6, 7]])

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="a GPU has the same switch")


@pytest.fixture(autouse=True)
def switch() -> Iterator[Callable[[], str]]:
    """Torch's switch, as it is set; it is off before and after a test."""
    yield lambda: str(torch.backends.mkldnn.matmul.fp32_precision)
    products.use_onednn(False)
    products._switched_on = False
    products._gain.cache_clear()


def model(hidden: int = 512) -> LlamaForSequenceClassification:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_labels=1,
    )
    made = LlamaForSequenceClassification(config).eval()
    made.set_attn_implementation(SHARED_PREFIX)
    return made


def coarse(states: Tensor, bits: int) -> Tensor:
    """fp32 with fewer bits of mantissa, as tensor cores and AMX read it."""
    return (states.view(torch.int32) >> (23 - bits) << (23 - bits)).view(torch.float32)


@pytest.mark.parametrize(
    ("rounded", "accepted"),
    [
        (lambda states: states, True),
        (lambda states: coarse(states, 7), False),  # bf16
        (lambda states: coarse(states, 10), False),  # tf32
        (lambda states: states * torch.nan, False),
    ],
)
def test_a_switch_that_rounds_is_refused_however_fast(
    rounded: Callable[[Tensor], Tensor], accepted: bool
) -> None:
    state = {"on": False}

    def product(one: Tensor, other: Tensor) -> Tensor:
        if state["on"] and one.dtype == torch.float32:
            return rounded(one) @ rounded(other)
        return [one @ other for _ in range(50)][-1]

    gain = speedup(OPERANDS, lambda on: state.update(on=on), product)
    assert gain > 2 if accepted else gain == 0.0
    assert not state["on"]


def test_scores_with_the_switch_are_those_without_it(
    monkeypatch: pytest.MonkeyPatch, switch: Callable[[], str]
) -> None:
    trainee, packed = model(), pack([TREE])
    with torch.inference_mode():
        before = scores(trainee, packed)
    if not speedup(products._products([(1024, 512)]), products.use_onednn):
        pytest.skip("oneDNN rounds on this processor")
    monkeypatch.setattr(products, "speedup", lambda *_: 2.0)
    choose_products(trainee)
    assert switch() == "bf16"
    torch.get_float32_matmul_precision()  # torch.compile reads it
    with torch.inference_mode():
        assert torch.allclose(scores(trainee, packed), before, rtol=0, atol=1e-5)


def test_sampling_with_its_few_rows_does_without(
    monkeypatch: pytest.MonkeyPatch, switch: Callable[[], str]
) -> None:
    monkeypatch.setattr(products, "speedup", lambda *_: 2.0)
    choose_products(model())
    seen = []

    def read(live: object, tokens: object) -> Tensor:
        seen.append(switch())
        return torch.zeros(1, 8)

    write_tokens([Continuation([0], 3)], torch.zeros(1, 8), [7], read, lambda done: None)
    assert seen == ["none", "none"]
    assert switch() == "bf16"


def test_a_later_trial_that_finds_no_gain_switches_back(
    monkeypatch: pytest.MonkeyPatch, switch: Callable[[], str]
) -> None:
    for gain, expected in ((2.0, "bf16"), (1.1, "none")):
        products._gain.cache_clear()
        monkeypatch.setattr(products, "speedup", lambda *_, gain=gain: gain)
        choose_products(model())
        assert switch() == expected


def test_the_users_switch_small_models_and_bf16_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, switch: Callable[[], str]
) -> None:
    monkeypatch.setattr(products, "speedup", lambda *_: 2.0)
    choose_products(model(hidden=64))
    choose_products(model().bfloat16())
    assert switch() == "none"
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    choose_products(model())
    assert switch() == "ieee"


@pytest.mark.parametrize("own", ["highest", "high"])
def test_a_switch_that_the_user_sets_later_stays(
    own: str, monkeypatch: pytest.MonkeyPatch, switch: Callable[[], str]
) -> None:
    monkeypatch.setattr(products, "speedup", lambda *_: 2.0)
    choose_products(model())
    torch.set_float32_matmul_precision(own)
    chosen = switch()
    assert chosen not in ("bf16", "none")
    choose_products(model())
    with products.default_products():
        assert switch() == chosen
    assert switch() == chosen


def test_the_trial_gives_threads_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        speedup(OPERANDS, lambda on: None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
