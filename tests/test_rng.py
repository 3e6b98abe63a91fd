import pytest

from longrm.rng import Rng, hash_fraction, key_hash, seed_of


def test_draws_of_a_key_are_the_ones_that_earlier_versions_drew():
    rng = Rng("a", 1)
    items = [*range(8)]
    drawn = rng.fraction(), rng.below(1000), rng.choice("abcdef")
    rng.shuffle(items)
    assert (drawn, items, [*rng.order(range(8))]) == (
        (0.09193439942826953, 313, "c"),
        [6, 7, 1, 2, 0, 4, 5, 3],
        [2, 1, 4, 0, 7, 5, 6, 3],
    )


def test_seeds_and_fractions_of_a_key_are_the_ones_that_earlier_versions_drew():
    assert (seed_of("a", 1), seed_of("é\n", 2.5), seed_of()) == (47506100, 1190225998, 1910006305)
    assert hash_fraction("a", "x") == 0.5450246886031529


@pytest.mark.parametrize("other", [("a", 2), (1, "a"), ("a1",), ("a", 1, "")])
def test_another_key_has_another_hash(other):
    assert key_hash("a", 1) != key_hash(*other)


def test_an_order_names_every_item_once_and_draws_no_more_than_is_asked_for():
    taken, rng = Rng("b"), Rng("b")
    assert sorted(taken.order(range(50))) == [*range(50)]
    next(rng.order(range(50)))
    fresh = Rng("b")
    fresh.fraction()
    assert rng.fraction() == fresh.fraction()
