from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from longrm.synthesis.inputs.selection import even_shares, in_turns

CELLS = st.dictionaries(st.text("abcde", min_size=1, max_size=2), st.integers(0, 30), max_size=8)


@given(CELLS, st.integers(0, 120))
def test_shares_are_even_as_far_as_cells_go_round(available, total):
    taken = even_shares(available, total)
    assert taken.keys() == available.keys()
    assert sum(taken.values()) == min(total, sum(available.values()))
    assert all(0 <= taken[cell] <= available[cell] for cell in available)
    most = max(taken.values(), default=0)
    for cell, count in taken.items():
        assert count >= most - 1 or count == available[cell]


@given(CELLS, st.integers(0, 120))
def test_no_share_can_grow_without_a_smaller_one_shrinking(available, total):
    taken = even_shares(available, total)

    def filled(level):
        return sum(min(level, held) for held in available.values())

    level = max((level for level in range(31) if filled(level) <= total), default=0)  # water that rises
    for cell, count in taken.items():
        assert min(level, available[cell]) <= count <= level + 1


def test_taking_what_comes_first_would_not_be_even():
    available = {"a": 30, "b": 5}
    assert even_shares(available, 10) == {"a": 5, "b": 5}
    assert Counter(["a"] * 30 + ["b"] * 5).most_common(1) == [("a", 30)]


@given(
    st.dictionaries(st.text("xyz", min_size=1, max_size=3), st.lists(st.integers(), max_size=6), max_size=5)
)
def test_groups_take_turns(groups):
    named = {name: [(name, at) for at in range(len(items))] for name, items in groups.items()}
    found = in_turns(named, "seed", 1)
    assert sorted(found) == sorted(entry for items in named.values() for entry in items)
    seen = Counter()
    for name, _ in found:
        assert all(seen[name] <= seen[other] or seen[other] == len(groups[other]) for other in groups)
        seen[name] += 1
    assert found == in_turns(dict(reversed(named.items())), "seed", 1)


def test_another_seed_draws_another_order():
    groups = {"x": list(range(20))}
    assert in_turns(groups, 1) != in_turns(groups, 2)
