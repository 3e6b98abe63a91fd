from hypothesis import given
from hypothesis import strategies as st

from longrm.data.joining import Encoded, encode
from longrm.modeling.shapes import TokenTree, build_trees, within_budget
from longrm.worlds import WorldPlan, generate, words_tokenizer

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=8)
items = st.builds(
    Encoded, prompts, st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=2, max_size=3)
)


@given(st.lists(items, min_size=1, max_size=6))
def test_every_response_follows_its_whole_prompt_in_order(given_items: list[Encoded]):
    wanted = [[*item.prompt, *response] for item in given_items for response in item.responses]
    trees = build_trees(given_items)
    assert [[*tree.prefix, *branch] for tree in trees for branch in tree.branches] == wanted
    assert all(tree.prefix for tree in trees)


def test_questions_about_one_context_share_it_and_other_contexts_do_not():
    rows = list(generate(WorldPlan("records", 300, per_group=3), 6, words_tokenizer()))
    tokenizer = words_tokenizer()
    trees = build_trees([encode(tokenizer, row.prompt, row.responses) for row in rows])
    assert [len(tree.branches) for tree in trees] == [6, 6]
    context = tokenizer.count("".join(rows[0].prompt[0]["content"].split("\n\n")[0]))
    assert len(trees[0].prefix) >= context
    alone = build_trees([encode(tokenizer, rows[0].prompt, rows[0].responses)])
    assert len(alone[0].prefix) == len(tokenizer.prompt_ids(rows[0].prompt))


def size(tree: TokenTree) -> int:
    return len(tree.prefix) + sum(map(len, tree.branches))


@given(st.lists(items, min_size=1, max_size=6), st.integers(1, 40))
def test_sharing_saves_tokens_and_keeps_to_a_budget(given_items: list[Encoded], budget: int):
    alone = [size(TokenTree(item.prompt, item.responses)) for item in given_items]
    assert sum(map(size, build_trees(given_items))) <= sum(alone)
    assert all(size(tree) <= max(budget, *alone, 1) for tree in build_trees(given_items, budget))


def test_what_would_be_repeated_for_many_responses_is_not_parted_from_its_document():
    many = [[number] for number in range(5)]
    for shared, trees in ((6, 2), (11, 1)):
        assert (
            len(build_trees([Encoded([0] * shared + [own] * (12 - shared), many) for own in (1, 2)])) == trees
        )


def test_runs_stay_within_the_budget_and_a_larger_tree_is_a_run_of_its_own():
    trees = [TokenTree([0] * size, [[1]]) for size in (3, 4, 20, 2, 2)]
    runs = list(within_budget(trees, 10))
    assert [[len(tree.prefix) for tree in run] for run in runs] == [[3, 4], [20], [2, 2]]
    assert [tree for run in runs for tree in run] == trees
