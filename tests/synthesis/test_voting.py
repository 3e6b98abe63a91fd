import math
import random
from collections import Counter
from pathlib import Path

import pytest

from longrm.data import read, write_rows
from longrm.synthesis.voting import Agreement, Vote, by_agreement, count_votes, judgment_row, verify_votes

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "longrm-sample" / "simpo"
PROMPT = ({"role": "user", "content": "Judge this."},)


def votes(*scores):
    return [
        Vote(f"judge {number}", score, f"Analysis {number}. [[{score}]]")
        for number, score in enumerate(scores)
    ]


@pytest.mark.parametrize("seed", range(10))
def test_clusters_are_the_equal_scores(seed):
    drawn = [random.Random(seed).choice([0, 2, 4, None]) for _ in range(7)]
    expected = Counter(score for score in drawn if score is not None)
    found = count_votes(votes(*drawn), 0.5).clusters
    assert {cluster[0].score: len(cluster) for cluster in found} == expected
    assert [len(cluster) for cluster in found] == sorted(expected.values(), reverse=True)


@pytest.mark.parametrize(
    ("scores", "majority", "reason", "score"),
    [
        ([8, 8, 8, 2, 4], 0.5, "", 8),
        ([8, 8, 2, 4, 6], 0.5, "no_majority", None),
        ([8, 8, 2, 4, 6], 0.3, "", 8),
        ([8, 8, 2, 2], 0.3, "tie", None),
        ([None, None, 8], 0.5, "no_majority", None),
        ([None, None], 0.5, "nothing_read", None),
        ([8, 8, None, None], 0.5, "no_majority", None),
        ([1, 1, 1, *range(2, 9)], 0.3, "no_majority", None),  # 0.3 of ten votes are exactly three
    ],
)
def test_rules_of_consensus(scores, majority, reason, score):
    found = count_votes(votes(*scores), majority)
    assert (found.reason, found.consensus_score) == (reason, score)


def test_conf_counts_all_clusters_and_the_unparsed():
    assert count_votes(votes(8, 8, 2, None, 8), 0.5).cluster_sizes == [3, 1, 1]
    assert count_votes(votes(8, 8, 8), 0.5).cluster_sizes == [3]


def test_chosen_agrees_best_with_its_cluster():
    shared = "The response names Marlow and quotes the ledger, as the context says."
    cast = [
        Vote("odd", 8, "Bananas are yellow and rarely sing."),
        Vote("one", 8, shared),
        Vote("two", 8, f"{shared} Good."),
        Vote("low", 2, "It is wrong."),
    ]
    assert [vote.judge for vote in by_agreement(cast[:3])][-1] == "odd"
    found = count_votes(cast, 0.5)
    assert found.chosen.judge == "one"
    assert [vote.judge for vote in found.rejected] == ["low"]
    # One that argues against its own score is taken last.
    doubted = [Vote("one", 8, shared, contradicted=True), *cast[2:3], cast[0]]
    assert by_agreement(doubted)[-1].judge == "one"


def test_rejected_are_those_outside_the_consensus_smallest_cluster_first():
    found = count_votes(votes(8, 8, 8, 2, 2, 5, None), 0.3)
    assert [vote.score for vote in found.rejected] == [5, 2, 2, None]  # training may read the first two only
    assert found.contrast == "score"


def test_rows_are_read_back_and_count_the_same(tmp_path):
    cases = [[8, 8, 8, 2, None], [4, 4, 6, 8], [10, 10, 9]]
    rows = [
        judgment_row(str(number), "g", PROMPT, count_votes(votes(*scores), 0.3), {"insert_index": 3})
        for number, scores in enumerate(cases)
    ]
    write_rows(tmp_path / "rows.jsonl", rows)
    reading = read(tmp_path / "rows.jsonl")
    assert reading.format == "chat_template"
    for row in reading:
        found = verify_votes(row.comparison)
        assert found.same_conf
        assert found.same_chosen
        assert found.outside == found.rejected
        assert found.contrast == row.comparison.metadata["contrast"]
        assert row.comparison.group == "g"
        assert row.source["insert_index"] == 3


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="needs the real sample next to the checkout")
def test_the_released_rows_count_as_they_were_recorded():
    rows = [row.comparison for part in ("train", "eval") for row in read(SAMPLE / part)]
    found = [verify_votes(row) for row in rows]
    assert len(found) == 18
    assert all(row.same_conf and row.same_consensus for row in found)
    # Negative control: if the chosen judge had given another score, no row would count as recorded.
    for row in rows:
        scores = row.metadata["scores"]
        scores[row.metadata["chosen_model"]] += 0.5
        assert not verify_votes(row).same_consensus
    # By our default one consensus of two judges in five is no majority, and five rows are unanimous.
    ours = [count_votes(row.votes, 0.5) for row in found]
    assert [one.reason for one in ours].count("no_majority") == 1
    assert [row.contrast for row in found].count("none") == 5
    assert [row.contrast for row in found].count("format") == 2
    assert sum(one.chosen is not None for one in ours) == 12
    # Most rejected judgments give the same score as the chosen one.
    assert (sum(len(row.outside) for row in found), sum(len(row.rejected) for row in found)) == (23, 72)


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
