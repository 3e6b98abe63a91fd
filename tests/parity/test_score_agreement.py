import re

import numpy as np
import pytest

from longrm.parity.parity_run import ParitySettings
from longrm.parity.score_agreement import agreement, fault_of
from longrm.parity.servers import SERVERS, AskedText

OURS = np.random.default_rng(0).normal(0, 3, 40)
ROWS = np.repeat(np.arange(20), 2)


def figures(theirs, ours=OURS):
    return agreement(ours, theirs, theirs, ROWS[: len(ours)])


def sigmoid(scores):
    return 1 / (1 + np.exp(-scores))


def test_equal_scores_agree():
    found = figures(OURS)
    assert (found.max_difference, found.flipped, found.tied, found.pairs) == (0.0, 0, 0, 20)
    assert found.spearman == pytest.approx(1.0)


def test_what_is_turned_round_flips_every_pair():
    found = figures(-OURS)
    assert (found.flipped, found.tied) == (20, 0)
    assert found.spearman == pytest.approx(-1.0)
    assert found.max_difference == pytest.approx(2 * max(abs(OURS)))


def test_one_answer_for_all_ties_every_pair():
    found = figures(np.ones(40))
    assert (found.flipped, found.tied, found.spearman) == (0, 20, None)


def test_a_text_without_score_is_left_out():
    theirs = OURS.copy()
    theirs[3] = np.nan
    found = figures(theirs)
    assert (found.texts, found.pairs, found.max_difference) == (39, 19, 0.0)
    none = figures(np.full(40, np.nan))
    assert (none.texts, none.max_difference, none.max_change, none.spearman) == (0, None, None, None)


def test_scores_of_one_text_have_no_rank_correlation():
    assert figures(OURS[:1], OURS[:1]).spearman is None


def test_our_own_ties_are_no_pairs():
    assert figures(OURS, np.zeros(40)).pairs == 0


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (OURS, None),
        (OURS + np.random.default_rng(1).normal(0, 0.3, 40), None),
        (2 * OURS + 5, None),
        (sigmoid(OURS), "the sigmoid"),
        (np.round(sigmoid(OURS), 2), "the sigmoid"),
        (np.ones(40), "softmax of a single label"),
        (np.zeros(40), r"\(constant\)"),
        (np.random.default_rng(2).normal(0, 3, 40), r"do not go with ours \(Spearman -?0\.\d\d\)"),
        (-OURS, r"\(Spearman -1\.00\)"),
    ],
)
def test_relations_are_told_apart(theirs, expected):
    found = fault_of(OURS, theirs)
    assert (found is None) == (expected is None)
    assert expected is None or re.search(expected, found)


def test_sigmoids_that_are_all_near_one_are_no_softmax():
    high = np.linspace(15, 30, 40)
    assert "the sigmoid" in fault_of(high, sigmoid(high).astype(np.float32))
    assert "softmax" in fault_of(np.linspace(0.9, 5, 40), np.ones(40))


def test_scores_that_nearly_tie_may_be_rounded():
    near = 1.0 + 1e-4 * np.arange(40)
    assert fault_of(near, near + np.where(np.arange(40) % 2, 1e-4, -1e-4)) is None


def test_every_kind_of_server_can_be_asked_and_read():
    text = AskedText(({"role": "user", "content": "a"},), ({"role": "assistant", "content": "b"},), (4, 5, 6))
    usage = {"prompt_tokens": 3, "total_tokens": 3, "cached_tokens": 1}
    answers = {
        "longrm": {"scores": [-3.28], "usage": usage},
        "vllm": {
            "data": [{"index": 0, "label": "LABEL_0", "probs": [-3.28], "num_classes": 1}],
            "usage": usage,
        },
        "sglang": [{"embedding": [-3.28], "meta_info": {"id": "a", "prompt_tokens": 3, "cached_tokens": 1}}],
    }
    assert answers.keys() == SERVERS.keys()
    for name, kind in SERVERS.items():
        assert ParitySettings(url="http://h:1", model="m", data="d", server=name).server == name
        told = kind.read(answers[name])
        assert (told.scores, told.tokens) == ((-3.28,), 3)
        assert str(kind.body(text, "salt"))
        for other in answers.keys() - {name}:
            with pytest.raises((KeyError, ValueError, TypeError, AttributeError)):
                kind.read(answers[other])
