import random
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from longrm.data import read, write_rows
from longrm.synthesis.voting import (
    Vote,
    VotingSettings,
    by_agreement,
    clusters,
    count_votes,
    judgment_row,
    verify_votes,
)

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "longrm-sample" / "simpo"
PROMPT = ({"role": "user", "content": "Judge this."},)


def votes(*scores):
    return [
        Vote(f"judge {number}", score, f"Analysis {number}. [[{score}]]")
        for number, score in enumerate(scores)
    ]


def scores_of(found):
    return [sorted(vote.score for vote in cluster.votes) for cluster in found]


@pytest.mark.parametrize("seed", range(10))
def test_without_tolerance_clusters_are_the_equal_scores(seed):
    drawn = [random.Random(seed).choice([0, 2, 4, None]) for _ in range(7)]
    expected = Counter(score for score in drawn if score is not None)
    found = clusters(votes(*drawn))
    assert {cluster.score: len(cluster.votes) for cluster in found} == expected
    assert [cluster.size for cluster in found] == sorted(expected.values(), reverse=True)


@pytest.mark.parametrize("seed", range(40))
def test_clusters_are_within_the_tolerance_and_the_first_is_the_largest_of_all_sets(seed):
    random_ = random.Random(seed)
    cast = votes(*(random_.randrange(11) for _ in range(6)))
    found = clusters(cast, 2)
    assert sorted(vote.judge for cluster in found for vote in cluster.votes) == [vote.judge for vote in cast]
    assert all(max(scores) - min(scores) <= 2 for scores in scores_of(found))
    possible = [
        size
        for size in range(1, 7)
        for some in combinations(cast, size)
        if max(vote.score for vote in some) - min(vote.score for vote in some) <= 2
    ]
    assert found[0].size == max(possible)


def test_clusters_do_not_chain():
    assert scores_of(clusters(votes(1, 2, 3, 4, 4), 1)) == [[3, 4, 4], [1, 2]]


@pytest.mark.parametrize(
    ("scores", "settings", "reason", "score"),
    [
        ([8, 8, 8, 2, 4], {}, "", 8),
        ([8, 8, 2, 4, 6], {}, "no_majority", None),
        ([8, 8, 2, 4, 6], {"majority": 0.3}, "", 8),
        ([8, 8, 2, 2], {}, "tie", None),
        ([8, 8, 2, 2, 9], {"ties": "median", "majority": 0.3}, "", 8),
        ([8, 8, 2, 2], {"ties": "median", "majority": 0.3}, "tie", None),
        ([1, 2, 3], {"tolerance": 1}, "tie", None),  # 1 and 2, or 2 and 3: nobody can tell
        ([1, 2, 3], {"tolerance": 2}, "", 2),
        ([None, None, 8], {}, "no_majority", None),
        ([None, None], {}, "nothing_read", None),
        ([8, 8, None, None], {}, "no_majority", None),
    ],
)
def test_rules_of_consensus(scores, settings, reason, score):
    found = count_votes(votes(*scores), VotingSettings(**settings))
    assert found.reason == reason
    assert (found.consensus and found.consensus.score) == score


def test_conf_counts_all_clusters_and_the_unparsed():
    assert count_votes(votes(8, 8, 2, None, 8), VotingSettings()).cluster_sizes == [3, 1, 1]
    assert count_votes(votes(8, 8, 8), VotingSettings()).cluster_sizes == [3]


def test_chosen_says_what_the_others_of_its_cluster_say():
    shared = "The response names Marlow and quotes the ledger, as the context says."
    cast = [
        Vote("odd", 8, "Bananas are yellow and rarely sing."),
        Vote("one", 8, shared),
        Vote("two", 8, f"{shared} Good."),
        Vote("low", 2, "It is wrong."),
    ]
    assert [vote.judge for vote in by_agreement(cast[:3])][-1] == "odd"
    found = count_votes(cast, VotingSettings())
    assert found.chosen.judge == "one"
    assert [vote.judge for vote in found.rejected] == ["low"]
    # One that argues against its own score is taken last.
    doubted = [Vote("one", 8, shared, contradicted=True), *cast[2:3], cast[0]]
    assert by_agreement(doubted)[-1].judge == "one"


def test_rejected_are_those_outside_the_consensus_smallest_cluster_first():
    found = count_votes(votes(8, 8, 8, 2, 2, 5, None), VotingSettings(majority=0.3))
    assert [vote.score for vote in found.rejected] == [5, 2, 2, None]  # training may read the first two only
    assert found.contrast == "score"
    tied = VotingSettings(majority=0.3, ties="median")
    assert [vote.score for vote in count_votes(votes(8, 8, 2, 2, 9), tied).rejected] == [9]


def test_nothing_without_contrast_is_shipped_silently():
    marking = VotingSettings(without_contrast="mark")
    assert count_votes(votes(8, 8, 8), VotingSettings()).chosen is None
    marked = count_votes(votes(8, 8, 8), marking)
    assert marked.contrast == "none"
    assert len(marked.rejected) == 2
    assert count_votes(votes(8, 8, None), VotingSettings()).contrast == "format"
    same = [Vote("one", 8, "Good."), Vote("two", 8, "Good."), Vote("three", None, " ")]
    assert count_votes(same, marking).chosen is None


def test_rows_are_read_back_and_count_the_same(tmp_path):
    settings = VotingSettings(majority=0.3)
    cases = [[8, 8, 8, 2, None], [4, 4, 6, 8], [10, 10, 9]]
    rows = [
        judgment_row(str(number), "g", PROMPT, count_votes(votes(*scores), settings), {"insert_index": 3})
        for number, scores in enumerate(cases)
    ]
    write_rows(tmp_path / "rows.jsonl", rows)
    reading = read(tmp_path / "rows.jsonl")
    assert reading.format == "chat_template"
    for row in reading:
        found = verify_votes(row.comparison, settings)
        assert found.same_conf
        assert found.same_chosen
        assert found.outside == found.rejected
        assert found.contrast == row.comparison.metadata["contrast"]
        assert row.comparison.group == "g"
        assert row.source["insert_index"] == 3


def test_what_is_unknown_is_no_column_and_columns_of_the_release_come_first():
    count = count_votes(votes(8, 8, 2), VotingSettings())
    given = {"domain": "chat", "insert_index": None, "length": None, "query": "What?", "tag": ""}
    row = judgment_row("d#0", "g", PROMPT, count, given)
    assert list(row)[:4] == ["id", "chat_template", "chosen", "rejects"]
    assert list(row)[8:] == ["query", "domain", "tag", "group", "contrast", "consensus_score"]


@pytest.mark.real
@pytest.mark.skipif(not SAMPLE.is_dir(), reason="the real sample does not lie beside the checkout")
def test_the_released_rows_count_as_they_were_recorded():
    rows = [row.comparison for part in ("train", "eval") for row in read(SAMPLE / part)]
    found = [verify_votes(row, VotingSettings(majority=0.3)) for row in rows]
    assert len(found) == 18
    assert all(row.same_conf and row.same_consensus for row in found)
    # Negative control: with a tolerance of a point, or two, rows do not come out as recorded.
    assert sum(not verify_votes(row, VotingSettings(tolerance=1)).same_conf for row in rows) == 3
    assert sum(not verify_votes(row, VotingSettings(tolerance=2)).same_conf for row in rows) == 9
    # By our defaults one consensus of two judges in five is no majority, and five rows are unanimous.
    ours = [count_votes(row.votes, VotingSettings()) for row in found]
    assert [one.reason for one in ours].count("no_majority") == 1
    assert [row.contrast for row in found].count("none") == 5
    assert [row.contrast for row in found].count("format") == 2
    assert sum(one.chosen is not None for one in ours) == 12
    # Most of what was rejected says the same score as what was chosen.
    assert (sum(len(row.outside) for row in found), sum(len(row.rejected) for row in found)) == (23, 72)
