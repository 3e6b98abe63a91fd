import importlib.util
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longrm.data.joining import Encoded
from longrm.data.training_rows import Example
from longrm.errors import DataError
from longrm.modeling.device_memory import pair_cost
from longrm.modeling.loading import new_language_model, new_scorer
from longrm.modeling.shapes import ModelShape, TreeShape
from longrm.training.batches import Batches, deal, duration, operations
from longrm.training.losses import LOSSES, Loss
from longrm.training.objectives import SFT, BradleyTerry, Preference
from longrm.training.sampling import Mixture
from longrm.training.settings import LossSettings, WorldDataSettings
from longrm.training.sources import GeneratedSource
from longrm.worlds import words_tokenizer

SHAPE = ModelShape(layers=2, hidden=16, heads=2, kv_heads=2, head_dim=8, init_std=0.2)


@dataclass
class Fixed:
    """The same examples for every step."""

    examples: list[Example]

    def batch(self, step, length):
        return self.examples


def example(prompt, *responses, name="x"):
    return Example(name, Encoded(prompt, responses), tuple(range(1, len(responses) + 1)), name)


def prepared(examples, *, budget, objective=None, limit=10_000):
    objective = objective or BradleyTerry(LossSettings(loss_type="bradley_terry"))
    return Batches(Fixed(examples), objective, budget=budget, limit=limit, curriculum=None).prepare(0)


def sequences(micro):
    """Of every response: what its last token sees, and which of these tokens are its own."""
    ids, layout = micro.packed.input_ids[0].tolist(), micro.packed.layout
    return [
        ([ids[at] for place in path for at in place], [ids[at] for at in own])
        for path, own in zip(layout.paths(), layout.written_tokens(micro.written), strict=True)
    ]


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=8)
responses = st.lists(st.lists(st.integers(2, 3), min_size=1, max_size=3), min_size=2, max_size=3)
examples = st.lists(
    st.builds(lambda prompt, own: example(prompt, *own), prompts, responses), min_size=1, max_size=8
)


@given(examples, st.integers(1, 60))
@settings(max_examples=150)
def test_micro_batches_hold_every_response_after_its_prompt_once_and_fit(given_examples, budget):
    step = prepared(given_examples, budget=budget)
    held = [one for micro in step.micro_batches for one in micro.examples]
    assert sorted(map(id, held)) == sorted(map(id, given_examples))
    for micro in step.micro_batches:
        wanted = [
            ([*one.tokens.prompt, *response], [*response])
            for one in micro.examples
            for response in one.tokens.responses
        ]
        assert sequences(micro) == wanted
        assert micro.packed.layout.tokens <= budget or len(micro.examples) == 1
        assert micro.weight == pytest.approx(len(micro.examples) / len(given_examples))
    assert sum(micro.weight for micro in step.micro_batches) == pytest.approx(1.0)


@given(examples, st.integers(1, 60))
@settings(max_examples=50)
def test_no_two_micro_batches_are_half_empty(given_examples, budget):
    sizes = [micro.packed.layout.tokens for micro in prepared(given_examples, budget=budget).micro_batches]
    assert all(one + other > budget for one, other in pairwise(sorted(sizes)))


def test_large_and_small_examples_fill_each_other_up():
    """In the order given, a series of neighbors would need six micro-batches."""
    sizes = [7, 5, 7, 5, 7, 5, 3, 3, 3]
    given_examples = [example([number] * (size - 2), [50], [51]) for number, size in enumerate(sizes)]
    step = prepared(given_examples, budget=10)
    held = sorted(micro.packed.layout.tokens for micro in step.micro_batches)
    assert held == [5, 10, 10, 10, 10]


def test_prompts_that_share_a_document_are_one_tree_wherever_they_stand_in_the_step():
    document, other = list(range(20)), list(range(30, 50))
    given_examples = [
        example([*start, 60 + number], [70, number], [71], name=str(number))
        for number, start in enumerate([document, other] * 3)
    ]
    (micro,) = prepared(given_examples, budget=200).micro_batches
    assert [(tree.prefix, len(tree.leaves)) for tree in micro.packed.layout.trees] == [(20, 6), (20, 6)]
    # A budget that a whole tree exceeds parts it, and the document is read once for each part.
    parts = prepared(given_examples, budget=31).micro_batches
    assert [[tree.prefix for tree in part.packed.layout.trees] for part in parts] == [[20]] * 2 + [[21]] * 2


def test_trees_of_one_shape_stand_together():
    given_examples = [example([number] * (4 + number % 2), [50], [51]) for number in range(8)]
    (micro,) = prepared(given_examples, budget=1000).micro_batches
    assert [len([*run]) for _, run in groupby(micro.packed.layout.trees)] == [4, 4]


def test_a_world_is_read_with_every_context_once():
    source = GeneratedSource(
        WorldDataSettings(tokens_per_step=16 * 128, responses_per_step=256), words_tokenizer(), "comparison"
    )
    micro_batches = prepared(source.batch(0, 128), budget=10_000).micro_batches
    trees = [tree for micro in micro_batches for tree in micro.packed.layout.trees]
    assert [len(tree.leaves) for tree in trees] == [16] * 16
    assert all(tree.prefix > 80 for tree in trees)
    assert len(micro_batches) == 1


def test_a_row_that_the_model_cannot_read_is_named():
    with pytest.raises(DataError, match="'x' has 12 tokens"):
        prepared([example([1] * 10, [2, 3], [4])], budget=100, limit=11)
    assert prepared([example([1] * 10, [2, 3], [4])], budget=100, limit=12).length == 10


def gradient(model, objective, step, weights=None):
    """The gradient of a step: of the weighted sum over its micro-batches."""
    model.zero_grad()
    for micro, weight in zip(
        step.micro_batches, weights or [micro.weight for micro in step.micro_batches], strict=True
    ):
        loss, _ = objective.loss(model, micro)
        (loss * weight).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def off(one, other):
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("kind", ["bradley_terry", "sft"])
def test_neither_packing_nor_order_changes_the_gradient(kind):
    world = WorldDataSettings(responses=(2, 4), tokens_per_step=640, responses_per_step=16)
    imitates = kind == "sft"
    rows = GeneratedSource(world, words_tokenizer(), "demonstration" if imitates else "comparison").batch(
        0, 160
    )
    assert len({len(row.tokens.responses[0]) for row in rows}) > 1, "answers of one and of several tokens"
    objective = (
        SFT(LossSettings(loss_type="sft"))
        if imitates
        else BradleyTerry(LossSettings(loss_type="bradley_terry"))
    )
    model = (new_language_model if imitates else new_scorer)(SHAPE, words_tokenizer(), seed=0).model.train()
    whole = gradient(model, objective, prepared(rows, budget=10**6, objective=objective))
    for budget, own in ((1, rows), (400, rows), (400, rows[::-1]), (10**6, rows[::-1])):
        step = prepared(own, budget=budget, objective=objective)
        assert (len(step.micro_batches) > 1) == (budget < 10**6)
        assert off(gradient(model, objective, step), whole) < 2e-5
    # Micro-batches that count the same, whatever they hold, give another gradient.
    unequal = prepared(rows, budget=400, objective=objective)
    flat = [1 / len(unequal.micro_batches)] * len(unequal.micro_batches)
    assert off(gradient(model, objective, unequal, flat), whole) > 2e-3


def token_mean(logprobs, counts):
    """A new loss: one mean over the tokens of all responses, so that long ones weigh more."""
    flat = torch.cat(list(logprobs))
    return flat.square().mean(), {}


@pytest.mark.parametrize(("unit", "close"), [("tokens", True), ("comparisons", False), ("responses", False)])
def test_a_loss_says_how_examples_weigh_in_a_step(unit, close, monkeypatch):
    """The other units are negative controls: with them the gradient depends on how a step is cut."""
    loss = Loss("preference", token_mean, "token mean", "a mean over all tokens", {}, mean_over=unit)
    monkeypatch.setitem(LOSSES, "token_mean", loss)
    objective = Preference(LossSettings(loss_type="token_mean"))
    rows = [
        example([5 + number] * 9, *([20 + number] * length for length in lengths), name=str(number))
        for number, lengths in enumerate([(1, 2), (9, 14), (3, 1, 5), (30, 2)])
    ]
    model = new_language_model(SHAPE, words_tokenizer(), seed=0).model.train()
    whole = gradient(model, objective, prepared(rows, budget=10**6, objective=objective))
    cut = prepared(rows, budget=1, objective=objective)
    assert len(cut.micro_batches) == 4
    difference = off(gradient(model, objective, cut), whole)
    assert difference < 2e-5 if close else difference > 2e-3


# --- How the trees of a step are shared out over groups of devices ---

shapes = st.lists(
    st.builds(TreeShape, st.integers(1, 50), st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)),
    min_size=1,
    max_size=12,
)


@given(shapes, st.integers(1, 5), st.integers(1, 90), st.booleans())
def test_every_tree_is_dealt_once_and_fits(given_shapes, parts, budget, aligned):
    dealt = deal(given_shapes, parts, budget, 0.1, aligned=aligned)
    assert len(dealt) == parts
    held = [held for own in dealt for held in own]
    assert sorted(index for one in held for index in one) == list(range(len(given_shapes)))
    assert all(sum(given_shapes[index].tokens for index in one) <= budget or len(one) == 1 for one in held)


def test_a_long_tree_counts_for_more_than_its_tokens():
    """One row of 800 takes as long as 26 of 100 here."""
    step = [TreeShape(800, (1,)), *[TreeShape(100, (1,))] * 32]
    costs = [operations(shape, 0.01) for shape in step]
    dealt = deal(step, 2, 10_000, 0.01, aligned=False)
    assert duration(dealt, costs, aligned=False) == pytest.approx(sum(costs) / 2, rel=0.05)
    by_tokens = deal(step, 2, 10_000, 0.0, aligned=False)
    assert duration(by_tokens, costs, aligned=False) > 1.25 * sum(costs) / 2


def test_the_cost_of_pairs_is_that_of_the_model():
    shape = ModelShape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=32, intermediate=96)
    model = new_scorer(shape, words_tokenizer(), seed=0).model
    assert pair_cost(model) == pytest.approx(2 * 4 * 32 / (2 * 64 * 32 * (4 + 2) + 3 * 64 * 96))


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=60), st.integers(2, 8), st.integers(0, 9))
def test_groups_by_length_read_every_row_once_and_are_alike(lengths, alike, seed):
    epoch = [row for _, row in Mixture([lengths], [1.0], seed, alike).epoch(1)]
    assert sorted(epoch) == list(range(len(lengths)))
    strata = [length.bit_length() for length in lengths]
    whole = sum(strata.count(stratum) // alike for stratum in set(strata))
    groups = [[strata[row] for row in epoch[at : at + alike]] for at in range(0, whole * alike, alike)]
    assert all(len(set(group)) == 1 for group in groups)
    assert len(groups) == whole


def test_groups_of_devices_are_busy():
    """The shares on docs/scale.md; rows that are shared out by tokens are the negative control."""
    spec = importlib.util.spec_from_file_location("dealing", Path(__file__).parents[2] / "perf/dealing.py")
    dealing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dealing)
    for rows in ("six", "spread"):
        for aligned in (False, True):
            assert dealing.efficiency(rows, 8, aligned=aligned, baseline=True) < 0.84
            assert dealing.efficiency(rows, 8, aligned=aligned, group_size=8) > 0.97
            assert dealing.efficiency(rows, 2, aligned=aligned) > 0.95
    assert dealing.efficiency("six", 8, aligned=False) > 0.91
