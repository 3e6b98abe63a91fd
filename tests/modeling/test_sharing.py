"""`share_prefixes`: any batch gives the states, losses and gradients of the plain model, and computes fewer tokens."""

import contextlib
import copy
import itertools
import os
import random
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    DynamicCache,
    GPT2Config,
    HunYuanDenseV1Config,
    JambaConfig,
    LlamaConfig,
    MambaConfig,
    MiniMaxConfig,
    Ministral3Config,
)
from transformers.integrations.neftune import neftune_post_forward_hook

from longrm.data.joining import common_prefix
from longrm.errors import ModelError
from longrm.modeling import recurrent, sharing
from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import pack, response_logprobs
from longrm.modeling.sharing import Fork, choose_trees, share_prefixes, shared_tokens, unshare

from .conftest import FAMILIES, SCORERS, SIZES, VOCABULARY
from .test_recurrent import FAMILIES as HYBRIDS
from .test_recurrent import in_double  # noqa: F401 (a fixture)
from .test_recurrent import make as make_hybrid

TOLERANCE = 2e-5  # fp32, relative to the largest value

DRAW = random.Random(3)
SYSTEM, DOCUMENT, OTHER = ([DRAW.randrange(3, VOCABULARY) for _ in range(count)] for count in (11, 40, 37))


def ids(count: int) -> list[int]:
    return [DRAW.randrange(3, VOCABULARY) for _ in range(count)]


TAIL = ids(7)
BATCHES = {
    "pairs, one behind the other": [
        [*DOCUMENT, *ids(5)],
        [*DOCUMENT, *ids(9)],
        [*OTHER, *ids(3)],
        [*OTHER, *ids(8)],
    ],
    "all chosen, then all rejected": [
        [*DOCUMENT, *ids(5)],
        [*OTHER, *ids(3)],
        [*DOCUMENT, *ids(9)],
        [*OTHER, *ids(8)],
    ],
    "a group of four and a row alone": [[*DOCUMENT, *ids(n)] for n in (1, 12, 4, 4)] + [ids(30)],
    "equal rows, and one that another begins with": [
        DOCUMENT,
        DOCUMENT,
        [*DOCUMENT, *TAIL],
        [*DOCUMENT, *TAIL, *ids(2)],
    ],
    "one system prompt, three questions": [
        [*SYSTEM, *question, *ids(n)] for question, n in itertools.product((ids(20), ids(25), ids(3)), (2, 6))
    ],
}


def batch(rows: list[list[int]], side: str = "right") -> dict[str, Tensor]:
    """Rows as a collator pads them, with 0."""
    longest = max(map(len, rows))
    pad = lambda row, fill: (  # noqa: E731
        [*row, *fill] if side == "right" else [*fill, *row]
    )
    padded = [pad(row, [0] * (longest - len(row))) for row in rows]
    masks = [pad([1] * len(row), [0] * (longest - len(row))) for row in rows]
    return {"input_ids": torch.tensor(padded), "attention_mask": torch.tensor(masks)}


def make(family: str = "llama", auto: Any = AutoModelForCausalLM) -> Any:
    if family in HYBRIDS:
        return make_hybrid(family, auto)
    config = FAMILIES[family]()
    config.num_labels = 1
    torch.manual_seed(0)
    return auto.from_config(config)


def twins(family: str = "llama", auto: Any = AutoModelForCausalLM) -> tuple[Any, Any]:
    plain = make(family, auto)
    return plain, share_prefixes(copy.deepcopy(plain), min_tokens=1)


def found(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Token log-probabilities or scores, and all gradients of a sum that weighs every value differently."""
    return weighted(model, values_of(model, inputs))


def found_apart(model: Any, rows: list[list[int]]) -> dict[str, Tensor]:
    """The same from one row after the other, without padding."""
    return weighted(model, torch.cat([values_of(model, {"input_ids": torch.tensor([row])}) for row in rows]))


def values_of(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    logits = model(**inputs).logits.float()
    if logits.ndim == 2:
        return logits[:, 0]
    mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    real = (mask[:, 1:] * mask[:, :-1]).bool()
    logprobs = logits[:, :-1].log_softmax(-1).gather(-1, inputs["input_ids"][:, 1:, None])[..., 0]
    return logprobs[real]


def weighted(model: Any, values: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    (values * torch.linspace(0.5, 1.5, len(values))).mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"values": values.detach(), **gradients}


def deviation(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(
        float((one[name] - other[name]).abs().max() / one[name].abs().max().clamp(min=1e-3)) for name in one
    )


BOTH = ("llama", "qwen3.5")  # attention alone, and with recurrent layers


def rounding(family: str) -> float:
    return 5 * TOLERANCE if family in HYBRIDS else TOLERANCE  # recurrences add up more


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("rows", BATCHES.values(), ids=BATCHES)
def test_values_and_gradients_of_every_batch(rows: list[list[int]], side: str):
    plain, shared = twins()
    inputs = batch(rows, side)
    assert deviation(found(plain, inputs), found(shared, inputs)) < TOLERANCE
    given, computed, _ = shared_tokens(shared)
    assert given == sum(map(len, rows))
    assert computed < 0.75 * given
    assert shared_tokens(shared)[:2] == (0, 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_gradients_of_every_family(family: str):
    plain, shared = twins(family)
    inputs = batch(BATCHES["all chosen, then all rejected"])
    assert deviation(found(plain, inputs), found(shared, inputs)) < TOLERANCE
    assert shared_tokens(shared).computed == 37 + 40 + 5 + 3 + 9 + 8


@pytest.mark.parametrize("family", HYBRIDS)
@pytest.mark.usefixtures("in_double")
def test_recurrent_layers_to_1e_9(family: str, monkeypatch: pytest.MonkeyPatch):
    """Compared with separate rows, so that no padding is in a state; with a node from another parent as the control."""
    plain, shared = (model.double() for model in twins(family))
    if family == "qwen3-next":
        for model in (plain, shared):
            model.set_experts_implementation("eager")  # the product of groups knows no double
        share_prefixes(shared, min_tokens=1)
    for rows in (BATCHES["one system prompt, three questions"], BATCHES["a group of four and a row alone"]):
        expected = found_apart(plain, rows)
        for side in ("right", "left"):
            assert deviation(expected, found(shared, batch(rows, side))) < 1e-9
    given, computed, calls = shared_tokens(shared)
    assert computed < 0.6 * given
    assert not calls
    plan = recurrent.plan

    def shifted(*given: Any, **options: Any) -> Any:
        batches, place = plan(*given, **options)
        return [replace(own, parents=[*own.parents[-1:], *own.parents[:-1]]) for own in batches], place

    monkeypatch.setattr(recurrent, "plan", shifted)
    rows = BATCHES["one system prompt, three questions"]
    assert deviation(found_apart(plain, rows), found(shared, batch(rows))) > 1e-7


@pytest.mark.parametrize("family", HYBRIDS)
def test_recurrent_layers_before_and_after(family: str):
    plain, shared = twins(family)
    inputs = batch(BATCHES["one system prompt, three questions"], "left")
    texts = [model.generate(**inputs, max_new_tokens=5, do_sample=False) for model in (plain, shared)]
    assert torch.equal(*texts)
    recurrent.plan.cache_clear()
    with torch.inference_mode():
        shared(**inputs)
    assert deviation(found(plain, inputs), found(shared, inputs)) < rounding(family)
    unshare(shared)
    for one, other in zip(plain.modules(), shared.modules(), strict=True):
        assert type(one) is type(other)
        assert vars(one).keys() == vars(other).keys()
    assert shared.config._attn_implementation == plain.config._attn_implementation
    with torch.no_grad():
        assert torch.equal(plain(**inputs).logits, shared(**inputs).logits)


@pytest.mark.parametrize("family", [*SCORERS, "qwen3.5", "qwen3-next", "zamba2"])
def test_scores_and_gradients(family: str):
    plain, shared = twins(family, AutoModelForSequenceClassification)
    inputs = batch(BATCHES["pairs, one behind the other"])
    assert deviation(found(plain, inputs), found(shared, inputs)) < rounding(family)


def deeper(tree: Fork | int) -> Fork | int:
    """Rows that share a token that they do not have in common."""
    return (
        Fork(tree.depth + 1, [deeper(branch) for branch in tree.branches]) if isinstance(tree, Fork) else tree
    )


def test_a_prefix_that_is_too_long_would_be_seen(monkeypatch: pytest.MonkeyPatch):
    """The negative control: rows share a token that they do not have in common."""
    plain, shared = twins()
    inputs = batch(BATCHES["pairs, one behind the other"])
    right = choose_trees
    monkeypatch.setattr(sharing, "choose_trees", lambda *given: [deeper(tree) for tree in right(*given)])
    assert deviation(found(plain, inputs), found(shared, inputs)) > 100 * TOLERANCE


def test_positions_that_start_elsewhere(monkeypatch: pytest.MonkeyPatch):
    plain, shared = twins()
    inputs = batch(BATCHES["a group of four and a row alone"], "left")
    mask = inputs["attention_mask"]
    inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    assert deviation(found(plain, inputs), found(shared, inputs)) < TOLERANCE
    assert shared_tokens(shared).given > 0
    del inputs["position_ids"], inputs["attention_mask"]  # all rows are as long as the longest
    assert deviation(found(plain, inputs), found(shared, inputs)) < TOLERANCE


ROWS = batch(BATCHES["pairs, one behind the other"])
IDS, MASK = ROWS["input_ids"], ROWS["attention_mask"]
PASSED_THROUGH: dict[str, Callable[[Any], dict[str, Any]]] = {
    "a cache": lambda model: {"input_ids": IDS, "past_key_values": DynamicCache(config=model.config)},
    "use_cache": lambda model: {**ROWS, "use_cache": True},
    "embeddings": lambda model: {"inputs_embeds": model.get_input_embeddings()(IDS), "attention_mask": MASK},
    "all hidden states": lambda model: {**ROWS, "output_hidden_states": True},
    "a row alone": lambda model: {"input_ids": IDS[:1]},
    "a mask over pairs": lambda model: {
        "input_ids": IDS,
        "attention_mask": torch.ones(4, 1, IDS.shape[1], IDS.shape[1]).tril().bool(),
    },
    "a mask with gaps": lambda model: {
        "input_ids": IDS,
        "attention_mask": MASK * (torch.arange(IDS.shape[1]) != 3),
    },
    "positions that restart": lambda model: {
        "input_ids": IDS,
        "position_ids": torch.arange(IDS.shape[1])[None] % 9,
    },
    "a row of padding": lambda model: {
        "input_ids": IDS,
        "attention_mask": MASK * (torch.arange(4) != 2)[:, None],
    },
    "positions of a part of a sequence": lambda model: {
        "input_ids": IDS,
        "position_ids": torch.arange(IDS.shape[1])[None] + 9,
    },
    "causality by the caller": lambda model: {**ROWS, "is_causal": False},
    "packed sequences": lambda model: {
        "input_ids": IDS,
        "cu_seq_lens_k": torch.tensor([0, IDS.shape[1]], dtype=torch.int32),
    },
    "nothing in common": lambda model: {"input_ids": torch.tensor([[5, *ids(9)], [6, *ids(9)]])},
}


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("arguments", PASSED_THROUGH.values(), ids=PASSED_THROUGH)
def test_passed_through_untouched(arguments: Callable[[Any], dict[str, Any]], family: str):
    plain, shared = twins(family)
    state = DRAW.getstate()
    with torch.no_grad():
        kept = plain(**arguments(plain))
        DRAW.setstate(state)
        seen = shared(**arguments(shared))
    assert torch.equal(kept.logits, seen.logits)
    assert kept.keys() == seen.keys()
    given, _, plain_calls = shared_tokens(shared)
    assert (given, [*plain_calls.values()]) == (0, [1])


def test_a_batch_that_saves_too_little_is_not_shared():
    plain, shared = twins()
    saved = len(DOCUMENT) + len(OTHER)
    for least, given in ((saved + 1, 0), (saved, int(MASK.sum()))):
        share_prefixes(shared, min_tokens=least)
        with torch.no_grad():
            logits = [model(**ROWS).logits for model in (plain, shared)]
        assert torch.equal(*logits) is (given == 0)
        assert shared_tokens(shared).given == given


def test_generation_is_that_of_the_plain_model():
    plain, shared = twins()
    inputs = batch(BATCHES["a group of four and a row alone"], "left")
    texts = [model.generate(**inputs, max_new_tokens=8, do_sample=False) for model in (plain, shared)]
    assert torch.equal(*texts)


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("activations", ["reentrant", "not reentrant", "offloaded"])
def test_with_checkpointing(activations: str, family: str):
    plain, shared = twins(family)
    inputs = batch(BATCHES["one system prompt, three questions"])
    expected = found(plain, inputs)
    shared.train()
    if activations != "offloaded":
        shared.activation_checkpointing_enable({"use_reentrant": activations == "reentrant"})
    if activations == "reentrant":
        shared.enable_input_require_grads()
    offloading = (
        torch.autograd.graph.save_on_cpu() if activations == "offloaded" else contextlib.nullcontext()
    )
    with offloading:
        assert deviation(expected, found(shared, inputs)) < rounding(family)
    assert shared_tokens(shared).computed > 0


@pytest.mark.parametrize("family", BOTH)
def test_under_autocast(family: str):
    plain, shared = twins(family)
    inputs = batch(BATCHES["pairs, one behind the other"])
    exact = found(plain, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        errors = [deviation(exact, found(model, inputs)) for model in (plain, shared)]
    assert errors[0] / 3 < errors[1] < 3 * errors[0]


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # PEFT asks transformers by an old name
@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("first", ["peft", "share"])
def test_with_adapters_and_their_reference(first: str, family: str):
    inputs = batch(BATCHES["pairs, one behind the other"])
    settings = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    plain, shared = make(family), make(family)
    if first == "share":
        share_prefixes(shared, min_tokens=1)
    torch.manual_seed(1)
    plain = peft.get_peft_model(plain, settings)
    torch.manual_seed(1)
    shared = peft.get_peft_model(shared, settings)
    if first == "peft":
        share_prefixes(shared, min_tokens=1)
    with_adapter = found(plain, inputs)
    assert deviation(with_adapter, found(shared, inputs)) < rounding(family)
    with plain.disable_adapter(), shared.disable_adapter(), torch.no_grad():
        reference = plain(**inputs).logits[MASK.bool()]
        assert float((reference - shared(**inputs).logits[MASK.bool()]).abs().max()) < TOLERANCE * 100
    assert shared_tokens(shared).computed > 0


@pytest.mark.parametrize("family", BOTH)
def test_copies_share_for_themselves_and_files_know_nothing(tmp_path: Any, family: str):
    plain, shared = twins(family)
    twin = copy.deepcopy(shared)
    inputs = batch(BATCHES["pairs, one behind the other"])
    with torch.no_grad():
        twin.model.layers[1].self_attn.q_proj.weight.zero_()  # a reference of its own weights
        assert not torch.equal(shared(**inputs).logits, twin(**inputs).logits)
    assert shared_tokens(shared) == shared_tokens(twin)
    torch.save(shared, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert deviation(found(whole, inputs), found(plain, inputs)) < rounding(family)
    assert shared_tokens(whole).computed > 0
    shared.save_pretrained(tmp_path)
    assert "longrm" not in (tmp_path / "config.json").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert [type(module) for module in loaded.modules()] == [type(module) for module in plain.modules()]
    assert deviation(found(loaded, inputs), found(plain, inputs)) < rounding(family)


def test_taken_back():
    plain, shared = twins()
    inputs = batch(BATCHES["pairs, one behind the other"])
    unshare(shared)
    assert type(shared.model) is type(plain.model)
    with torch.no_grad():
        assert torch.equal(plain(**inputs).logits, shared(**inputs).logits)
    with pytest.raises(ModelError):
        shared_tokens(shared)
    assert shared_tokens(share_prefixes(share_prefixes(shared))) == (0, 0, {})  # twice is once


def test_a_body_and_a_model_that_another_module_holds():
    plain, shared = make().model, share_prefixes(make().model, min_tokens=1)
    inputs = batch(BATCHES["pairs, one behind the other"])
    with torch.no_grad():
        states = [body(**inputs).last_hidden_state[MASK.bool()] for body in (plain, shared)]
    assert float((states[0] - states[1]).abs().max()) < 1e-4
    held = torch.nn.Module()
    held.module = make()  # as DistributedDataParallel
    assert share_prefixes(held) is held
    assert shared_tokens(held.module)[:2] == (0, 0)


def test_what_cannot_be_shared_is_refused():
    sizes = {**SIZES, "head_dim": 8}
    for config in (
        MambaConfig(num_hidden_layers=1),
        JambaConfig(**sizes, attn_layer_period=2, attn_layer_offset=1),
        MiniMaxConfig(**sizes, num_local_experts=2, layer_types=["linear_attention", "full_attention"]),
        GPT2Config(n_layer=1),
        LlamaConfig(**SIZES, attention_dropout=0.1),
    ):
        with pytest.raises(ModelError):
            share_prefixes(AutoModelForCausalLM.from_config(config))
    with pytest.raises(ModelError):
        share_prefixes(torch.nn.Linear(2, 2))


def rows_of(tree: Fork | int) -> list[int]:
    return [row for branch in tree.branches for row in rows_of(branch)] if isinstance(tree, Fork) else [tree]


@pytest.mark.parametrize("least", [0, 1, 7])
def test_trees_share_all_that_rows_have_in_common(least: int):
    """Compared with the beginnings of rows, each counted once; a row keeps its last token."""
    draw = random.Random(5)
    for _ in range(100):
        rows = [[draw.choice((1, 1, 1, 2)) for _ in range(draw.randrange(2, 20))] for _ in range(8)]
        sizes = [len(row) for row in rows]
        common = [[common_prefix(x, y) for y in rows] for x in rows]
        trees = choose_trees(common, sizes, least)
        assert sorted(row for tree in trees for row in rows_of(tree)) == [*range(8)]
        tokens = sum(sharing._computed(tree, sizes) for tree in trees)
        beginnings = {tuple(row[:end]) for row in rows for end in range(1, len(row))}
        needed = len(beginnings) + len(rows)
        assert tokens == needed if least < 2 else needed < tokens <= sum(sizes)


def test_rows_that_part_one_after_another():
    sizes = [size + 3 for size in range(1500)]
    common = [[min(x, y) + 1 if x != y else sizes[x] for y in range(1500)] for x in range(1500)]
    (tree,) = choose_trees(common, sizes, 1)
    assert sorted(rows_of(tree)) == [*range(1500)]
    assert 0 < sharing._computed(tree, sizes) < sum(sizes)


def test_a_classifier_s_row_of_padding_alone_is_read_as_before():
    plain, shared = twins("llama", AutoModelForSequenceClassification)
    plain.config.pad_token_id = shared.config.pad_token_id = 0
    inputs = batch([[*DOCUMENT, 5], [*DOCUMENT, 6, 7], [0, 0]], "left")
    with torch.no_grad():
        torch.testing.assert_close(shared(**inputs).logits, plain(**inputs).logits)
    assert not shared_tokens(shared).given


def test_heads_see_labels():
    plain, shared = twins()
    inputs = batch(BATCHES["pairs, one behind the other"])
    labels = torch.where(MASK.bool(), IDS, -100)
    losses = [model(**inputs, labels=labels).loss.detach() for model in (plain, shared)]
    assert float(losses[0]) == pytest.approx(float(losses[1]), rel=TOLERANCE)
    logits = plain(**inputs).logits[:, :-1].flatten(0, 1).detach()
    assert float(losses[0]) == pytest.approx(
        float(functional.cross_entropy(logits, labels[:, 1:].flatten())), rel=1e-4
    )


def test_a_scoring_loop_of_two_models():
    """Without gradients, in turn with another model and a plain one; each counts its own calls."""
    pairs = [twins(family, AutoModelForSequenceClassification) for family in ("llama", "qwen2, windows")]
    with torch.no_grad():
        for rows in BATCHES.values():
            inputs = batch(rows)
            for plain, shared in pairs:
                scores = [model.eval()(**inputs).logits for model in (plain, shared)]
                assert float((scores[0] - scores[1]).abs().max()) < 1e-4
            pairs[0][1](input_ids=inputs["input_ids"][:1])
    given = sum(len(row) for rows in BATCHES.values() for row in rows)
    assert [shared_tokens(shared).given for _, shared in pairs] == [given, given]
    assert [sum(shared_tokens(shared).plain.values()) for _, shared in pairs] == [0, 0]


def test_why_calls_did_not_share_is_counted():
    _, shared = twins()
    with torch.no_grad():
        for row in IDS:
            shared(input_ids=row[None])
        shared(**ROWS)
        shared(input_ids=IDS[[0, 2]])
    given, computed, plain_calls = shared_tokens(shared)
    assert given > computed > 0
    assert plain_calls == {
        "a micro-batch of one row": 4,
        "rows of a micro-batch have too little in common": 1,
    }


# What could be wrong in silence


def test_a_classifier_that_reads_scores_at_padding_is_passed_through():
    """transformers finds the last token by the padding id of the config, not by the mask."""
    plain, shared = twins(auto=AutoModelForSequenceClassification)
    other = {**ROWS, "input_ids": IDS.masked_fill(MASK == 0, 1)}
    with torch.no_grad():
        assert torch.equal(plain(**other).logits, shared(**other).logits)
        assert shared_tokens(shared).given == 0
        shared(**ROWS)
    assert shared_tokens(shared).given > 0


def test_states_of_padding_are_those_of_the_last_token():
    body = share_prefixes(make().model, min_tokens=1)
    states = body(**ROWS).last_hidden_state
    for row, size in zip(states, MASK.sum(1).tolist(), strict=True):
        assert torch.equal(row[size:], row[size - 1].expand_as(row[size:]))


def test_a_cache_that_is_not_there_is_no_empty_one():
    plain, shared = twins()
    with torch.no_grad():
        cache = shared(**ROWS).past_key_values
        with pytest.raises(ModelError):
            shared(input_ids=IDS[:, -1:], past_key_values=cache)
        with pytest.raises(AttributeError):
            cache.get_seq_length()
        caches = [model(**ROWS, use_cache=True).past_key_values for model in (plain, shared)]
    assert [cache.get_seq_length() for cache in caches] == [IDS.shape[1]] * 2


def test_another_attention_that_is_set_later_is_used():
    plain, shared = twins()
    for model in (plain, shared):
        model.set_attn_implementation("eager")
    with torch.no_grad():
        assert torch.equal(plain(**ROWS).logits, shared(**ROWS).logits)
        share_prefixes(shared, min_tokens=1)
        assert shared_tokens(shared).given == 0
        assert float((plain(**ROWS).logits - shared(**ROWS).logits)[MASK.bool()].abs().max()) < 1e-4
    assert shared_tokens(shared).given > 0
    assert unshare(shared).config._attn_implementation == "eager"


def test_noise_whose_size_depends_on_the_length_is_that_of_the_plain_model():
    models = twins()
    logits = []
    for model in models:
        embeddings = model.train().get_input_embeddings()
        embeddings.neftune_noise_alpha = 5.0
        embeddings.register_forward_hook(neftune_post_forward_hook)
        torch.manual_seed(0)
        logits.append(model(**ROWS, use_cache=False).logits)
    assert torch.equal(*logits)


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_dropout_is_drawn_once_for_a_shared_token():
    model = share_prefixes(make(), min_tokens=1)
    settings = peft.LoraConfig(r=4, lora_dropout=0.5, target_modules=["q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(model, settings).train()
    same = model(input_ids=IDS[:1].expand(2, -1), use_cache=False).logits
    assert torch.equal(same[0, :-1], same[1, :-1])
    share_prefixes(model, min_tokens=10_000)
    own = model(input_ids=IDS[:1].expand(2, -1), use_cache=False).logits
    assert not torch.equal(own[0, :-1], own[1, :-1])


def test_attention_that_depends_on_absolute_positions():
    """Padded on the left and without positions, rows of unequal lengths begin at different ones."""
    positions = {"original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.5, "rope_type": "yarn"}
    rope = {**positions, "rope_theta": 10_000.0, "factor": 2.0, "max_position_embeddings": 16}
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(Ministral3Config(**SIZES, head_dim=16, rope_parameters=rope))
    shared = share_prefixes(copy.deepcopy(plain), min_tokens=1)
    inputs = batch([*BATCHES["pairs, one behind the other"], [*DOCUMENT, *ids(9)]], "left")
    assert deviation(found(plain, inputs), found(shared, inputs)) < TOLERANCE
    assert shared_tokens(shared).computed == inputs["attention_mask"].sum() - len(DOCUMENT)


def test_keys_that_are_normalized_after_their_rotation():
    """The distance of positions does not tell how HunYuan's heads score; a try of the model finds that."""
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(HunYuanDenseV1Config(**SIZES, head_dim=16))
    shared = share_prefixes(copy.deepcopy(plain), min_tokens=1)
    trusting = share_prefixes(copy.deepcopy(plain), min_tokens=1)
    vars(trusting.model)["_longrm_sharing"].absolute = False
    for model in (plain, shared, trusting):  # as training would change them, after sharing began
        draw = torch.Generator().manual_seed(1)
        for name, weight in model.named_parameters():
            if "layernorm" in name:
                weight.data.uniform_(0.5, 1.5, generator=draw)
    inputs, state = batch(BATCHES["pairs, one behind the other"], "left"), torch.get_rng_state()
    truth = found(plain, inputs)
    assert deviation(truth, found(shared, inputs)) < TOLERANCE
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in shared.modules())
    assert "positions" in "".join(shared_tokens(shared).plain)
    assert deviation(truth, found(trusting, inputs)) > 100 * TOLERANCE
    counted = {**inputs, "position_ids": (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)}
    assert deviation(found(plain, counted), found(shared, counted)) < TOLERANCE
    assert shared_tokens(shared).computed > 0


class _NoAttention(torch.nn.Module):
    def forward(self, hidden_states: Tensor, **kwargs: Any) -> tuple[Tensor, None]:
        return hidden_states.cumsum(1), None  # mixes tokens, and knows no layout


def test_layers_that_mix_tokens_in_other_ways_are_refused():
    model = make()
    model.model.layers[0].conv = torch.nn.Conv1d(2, 2, 3)
    with pytest.raises(ModelError):
        share_prefixes(model)
    model = make()
    model.model.forward = model.model.forward
    with pytest.raises(ModelError):
        share_prefixes(model)
    changes: list[tuple[str, Any]] = [
        ("llama", lambda layers: setattr(layers[1], "self_attn", _NoAttention())),
        ("llama", lambda layers: setattr(layers[1].self_attn, "is_causal", False)),
        ("qwen3.5", lambda layers: setattr(layers[0], "linear_attn", _NoLayout())),
        ("qwen3.5", lambda layers: setattr(layers[0], "forward", partial(without_layout, layers[0].forward))),
    ]
    for family, change in changes:
        model = share_prefixes(make(family), min_tokens=1)
        change(model.model.layers)
        with pytest.raises(ModelError):
            model(**ROWS)


class _NoLayout(torch.nn.Module):
    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        return hidden_states.cumsum(1)


def without_layout(forward: Any, *args: Any, layout: Any = None, **kwargs: Any) -> Any:
    return forward(*args, **kwargs)


def test_longrm_s_own_pass_over_a_model_that_shares_leaves_it_so():
    plain, shared = twins("qwen3.5")
    with torch.no_grad():
        response_logprobs(shared, pack([TokenTree(ids(5), [ids(3), ids(4)])]))
    inputs = batch(BATCHES["pairs, one behind the other"])
    assert deviation(found(plain, inputs), found(shared, inputs)) < rounding("qwen3.5")
    assert shared_tokens(shared).computed


# Several processes


def parallel_gradients(rank: int, port: int, family: str) -> None:
    """Checks, in one of two processes, the gradients of what may wrap a model before or after it shares."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    # The second process shares nothing, so it must not wait for what the first one does.
    batches = [ROWS, batch([[5, *range(3, 40)], [6, *range(3, 30)]])]
    truth = make(family)
    parts = [found(truth, inputs) for inputs in batches]
    expected = {name: (parts[0][name] + parts[1][name]) / 2 for name in parts[0] if name != "values"}

    def ddp(model: Any) -> Any:
        return DistributedDataParallel(model)

    def fsdp(model: Any) -> Any:
        for layer in model.model.layers:
            fully_shard(layer)
        return fully_shard(model)

    right = choose_trees
    for wrap, order in itertools.product((ddp, fsdp), ("before", "after", "wrong")):
        model = make(family)
        if order != "after":
            share_prefixes(model, min_tokens=1)
        model = wrap(model)
        if order == "after":
            share_prefixes(model, min_tokens=1)
        if order == "wrong":  # the negative control
            sharing.choose_trees = lambda *given: [deeper(tree) for tree in right(*given)]
        gradients = found(model, batches[rank])
        sharing.choose_trees = right
        assert bool(shared_tokens(model).given) is (rank == 0)
        whole = {
            name.removeprefix("module."): one.full_tensor() if hasattr(one, "full_tensor") else one
            for name, one in gradients.items()
            if name != "values"
        }
        apart = deviation(expected, whole)
        assert apart > 100 * rounding(family) if order == "wrong" else apart < rounding(family), (
            wrap,
            order,
            apart,
        )
        unshare(model)
        with torch.no_grad():
            assert torch.equal(model(**batches[rank]).logits, truth(**batches[rank]).logits)
    dist.destroy_process_group()


@pytest.mark.full
@pytest.mark.parametrize("family", BOTH)
def test_processes_that_share_data_or_shards(family: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # where the processes find this module
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(parallel_gradients, (port, family), nprocs=2)
