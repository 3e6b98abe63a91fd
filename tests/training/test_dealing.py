"""How the trees of a step are shared out over groups of devices."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrm.modeling.device_memory import pair_cost
from longrm.modeling.loading import new_scorer
from longrm.modeling.shapes import ModelShape, TreeShape
from longrm.training.batches import deal, duration, operations
from longrm.training.sampling import Mixture
from longrm.worlds import words_tokenizer

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
