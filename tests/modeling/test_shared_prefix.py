import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrm.errors import ModelError
from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import pack

from .conftest import make_pair

tokens = st.lists(st.integers(0, 3), min_size=1, max_size=6)
trees = st.lists(
    st.builds(TokenTree, tokens, st.lists(tokens, min_size=1, max_size=4)), min_size=1, max_size=4
)


@given(trees)
def test_every_branch_can_be_read_back_from_the_layout(given_trees: list[TokenTree]):
    packed = pack(given_trees)
    ids = packed.input_ids[0].tolist()
    positions = packed.position_ids[0].tolist()
    spans = list(packed.layout.branches())
    wanted = [(tree, list(branch)) for tree in given_trees for branch in tree.branches]
    assert len(spans) == len(wanted)
    for (last, begin, end), (tree, branch) in zip(spans, wanted, strict=True):
        size = len(tree.prefix)
        assert ids[begin:end] == branch
        assert ids[last + 1 - size : last + 1] == list(tree.prefix)
        # Read along the branch, positions count on without a gap, as in a sequence of its own.
        assert positions[last + 1 - size : last + 1] + positions[begin:end] == list(range(size + len(branch)))
        assert packed.layout.predictors(range(begin, end)) == [last, *range(begin, end - 1)]
    assert packed.layout.branch_ends() == [end - 1 for _, _, end in spans]
    assert packed.layout.tokens == len(ids)


def test_the_first_token_of_a_prefix_has_no_predictor():
    layout = pack([TokenTree([1, 2], [[3]]), TokenTree([4], [[5]])]).layout
    for target in (0, 3, 5, -1):
        with pytest.raises(ValueError, match="no predictor"):
            layout.predictors([target])
    assert layout.predictors([1, 2, 4]) == [0, 1, 3]


def test_attention_dropout_is_refused_in_training_only():
    _, ours = make_pair("llama", "scores")
    for layer in ours.model.layers:
        layer.self_attn.attention_dropout = 0.1
    packed = pack([TokenTree([3], [[4]])])
    arguments = {"position_ids": packed.position_ids, "layout": packed.layout}
    ours.eval().model(packed.input_ids, **arguments)
    with pytest.raises(ModelError, match="attention_dropout"):
        ours.train().model(packed.input_ids, **arguments)


def test_a_plain_forward_pass_is_refused_with_the_way_to_one():
    theirs, ours = make_pair("llama", "scores")
    packed = pack([TokenTree([3], [[4]])])
    with pytest.raises(ModelError, match="set_attn_implementation"):
        ours.model(packed.input_ids)
    theirs.model(packed.input_ids)  # the control: the same weights with attention of transformers
