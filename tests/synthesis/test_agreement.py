import math
import random

import pytest

from longrm.synthesis.voting import Agreement


def collected(table, groups=None):
    """`table` has one row a judge and one column an item; None where nothing could be read."""
    found = Agreement()
    for number, column in enumerate(zip(*table, strict=True)):
        scores = {f"judge {index}": score for index, score in enumerate(column)}
        found.see(scores, groups[number] if groups else str(number))
    return found


def drawn(seed, judges, items, missing):
    random_ = random.Random(seed)
    truth = [random_.randrange(11) for _ in range(items)]
    return [
        [
            None if random_.random() < missing else min(10, max(0, score + random_.choice([-2, 0, 0, 0, 1])))
            for score in truth
        ]
        for _ in range(judges)
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("judges", "missing"), [(2, 0.0), (3, 0.2), (5, 0.5)])
def test_alpha_equals_the_reference(seed, judges, missing):
    krippendorff = pytest.importorskip("krippendorff")
    table = drawn(seed, judges, 40, missing)
    data = [[math.nan if score is None else score for score in row] for row in table]
    expected = krippendorff.alpha(reliability_data=data, level_of_measurement="interval")
    assert collected(table).alpha().value == pytest.approx(expected, abs=1e-10)
    # Negative control: measured as categories the same data give another number.
    other = krippendorff.alpha(reliability_data=data, level_of_measurement="nominal")
    assert abs(collected(table).alpha().value - other) > 1e-8


def test_alpha_of_krippendorffs_own_example():
    # Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", section D: interval alpha = 0.849.
    text = [
        "1 2 3 3 2 1 4 1 2 . . .",
        "1 2 3 3 2 2 4 1 2 5 . 3",
        ". 3 3 3 2 3 4 2 2 5 1 .",
        "1 2 3 3 2 4 4 1 2 5 1 .",
    ]
    table = [[None if word == "." else float(word) for word in row.split()] for row in text]
    assert collected(table).alpha().value == pytest.approx(0.849, abs=5e-4)


def test_alpha_in_closed_form():
    assert collected([[1, 5, 9], [1, 5, 9]]).alpha().value == 1
    # Two judges, (0, 1) and (1, 0): observed 1, expected 2/3, so 1 - 3/2.
    assert collected([[0, 1], [1, 0]]).alpha().value == pytest.approx(-0.5)
    assert collected([[7, 7], [7, 7]]).alpha().value is None
    assert collected([[7, None], [None, 3]]).alpha().value is None
    assert collected([[None], [None]]).pairwise().value is None


def test_interval_covers_the_value_and_widens_where_groups_are_few():
    table = drawn(1, 3, 200, 0.0)
    alone = collected(table).alpha()
    shared = collected(table, groups=[str(number // 25) for number in range(200)]).alpha()
    assert alone.value == pytest.approx(shared.value)
    assert (alone.groups, shared.groups) == (200, 8)
    assert alone.low < alone.value < alone.high
    one = collected(table, groups=["all"] * 200).alpha()
    assert (one.low, one.high, one.groups) == (None, None, 1)


def test_pairs_and_judges_are_counted_by_hand():
    found = collected([[8, 8, 2], [8, 9, None], [4, 8, None]])
    manifest = found.to_dict()
    pairs = {tuple(one["judges"]): one for one in manifest["pairs"]}
    first = pairs["judge 0", "judge 1"]
    assert (first["n"], first["agreement"], first["mean_distance"]) == (2, 0.5, 0.5)
    assert pairs["judge 1", "judge 2"]["agreement"] == 0
    assert found.pairwise().value == pytest.approx(2 / 6)
    assert manifest["judges"]["judge 1"] == {"asked": 3, "unparsed": 1, "agreement_with_others": 0.25}
    assert manifest["judges"]["judge 0"]["agreement_with_others"] == 0.5
