from hypothesis import given
from hypothesis import strategies as st

from longrm.modeling.encoding import Encoded, common_prefix, encode, plant, within_budget
from longrm.modeling.shared_prefix import TokenTree
from longrm.worlds import Plan, generate, words

tokens = st.lists(st.integers(0, 1), max_size=12)


@given(tokens, tokens, tokens)
def test_the_common_prefix_is_the_longest(start: list[int], left: list[int], right: list[int]):
    one, other = start + left, start + right
    shared = common_prefix(one, other)
    assert one[:shared] == other[:shared]
    assert shared == min(len(one), len(other)) or one[shared] != other[shared]


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=8)
items = st.builds(
    Encoded, prompts, st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=2, max_size=3)
)


@given(st.lists(items, min_size=1, max_size=6))
def test_every_response_follows_its_whole_prompt_in_order(given_items: list[Encoded]):
    wanted = [[*item.prompt, *response] for item in given_items for response in item.responses]
    trees = plant(given_items)
    assert [[*tree.prefix, *branch] for tree in trees for branch in tree.branches] == wanted
    assert all(tree.prefix for tree in trees)


def test_questions_about_one_context_share_it_and_other_contexts_do_not():
    rows = list(generate(Plan("records", 300, per_group=3), 6, words()))
    tokenizer = words()
    trees = plant([encode(tokenizer, row.prompt, row.responses) for row in rows])
    assert [len(tree.branches) for tree in trees] == [6, 6]
    context = tokenizer.count("".join(rows[0].prompt[0]["content"].split("\n\n")[0]))
    assert len(trees[0].prefix) >= context
    alone = plant([encode(tokenizer, rows[0].prompt, rows[0].responses)])
    assert len(alone[0].prefix) == len(tokenizer.prompt_ids(rows[0].prompt))


def test_runs_stay_within_the_budget_and_a_larger_tree_stands_alone():
    trees = [TokenTree([0] * size, [[1]]) for size in (3, 4, 20, 2, 2)]
    runs = list(within_budget(trees, 10))
    assert [[len(tree.prefix) for tree in run] for run in runs] == [[3, 4], [20], [2, 2]]
    assert [tree for run in runs for tree in run] == trees
