"""Near duplicates against an exhaustive search, and n-grams against sets of runs of words."""

import random

import numpy as np
import pytest

from longrm.auditing.duplicates import NearTexts, ngrams
from longrm.data.chunking import words_of

pytest.importorskip("datasketch")


def jaccard(one, other):
    """Exact, by sets of n-grams: what MinHash estimates."""
    first, second = ngrams(one, 5), ngrams(other, 5)
    shared = len(np.intersect1d(first, second))
    return shared / (len(first) + len(second) - shared)


def changed(text, places, seed):
    words, random_ = text.split(), random.Random(seed)
    for place in random_.sample(range(len(words)), places):
        words[place] = f"x{place}"
    return " ".join(words)


def test_near_texts_are_those_of_an_exhaustive_search():
    near, missed, expected = NearTexts(0.8), 0, 0
    for number in range(60):
        random_ = random.Random(number)
        text = " ".join(f"w{random_.randrange(5000)}" for _ in range(300))
        other = changed(text, 1 + number % 12, number)
        exact = jaccard(text, other)
        assert near.see(text) == []
        found = near.see(other)
        if exact > 0.88:  # clearly near, beyond two standard errors of the estimate
            expected += 1
            missed += not found
            assert found[0][0] == 2 * number
            assert found[0][1] == pytest.approx(exact, abs=0.13)
        elif exact < 0.7:
            assert not found
    assert expected >= 10
    assert missed == 0


def runs(text, size):
    words = words_of(text)
    size = min(size, len(words))
    return {tuple(words[start : start + size]) for start in range(len(words) - size + 1)} if words else set()


@pytest.mark.parametrize("seed", range(3))
def test_shared_ngrams_are_shared_runs_of_words(seed):
    random_ = random.Random(seed)
    vocabulary = ["Marlow", "keeps", "the", "红", "狐", "amber", "code", "12"]
    one, other = (" ".join(random_.choice(vocabulary) for _ in range(300)) for _ in range(2))
    for size in (1, 2, 3, 13):
        found = ngrams(one, size), ngrams(other, size)
        assert len(found[0]) == len(runs(one, size))
        assert len(np.intersect1d(*found)) == len(runs(one, size) & runs(other, size))


def test_case_marks_and_spaces_do_not_count_and_order_does():
    assert (ngrams("A red fox.", 2) == ngrams("a RED, fox", 2)).all()
    assert not len(np.intersect1d(ngrams("a red fox", 3), ngrams("fox red a", 3)))
    assert len(ngrams("one two", 5)) == 1
    assert len(ngrams(" ... ", 5)) == 0
    assert int(ngrams("the code of Marlow is copper", 5)[0]) == 15790755907205759637, "in every process"
