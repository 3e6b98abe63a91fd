import random

import numpy as np
import pytest

from longrm.auditing.result import AuditSettings
from longrm.auditing.shingles import shingles

pytest.importorskip("datasketch")


def jaccard(one, other):
    """Exact, by sets of shingles: what MinHash estimates."""
    first, second = shingles(one, 5), shingles(other, 5)
    shared = len(np.intersect1d(first, second))
    return shared / (len(first) + len(second) - shared)


def changed(text, places, seed):
    words, random_ = text.split(), random.Random(seed)
    for place in random_.sample(range(len(words)), places):
        words[place] = f"x{place}"
    return " ".join(words)


def test_near_texts_are_those_of_an_exhaustive_search():
    from longrm.auditing.duplicates import NearTexts

    near, hits, false = NearTexts(AuditSettings()), {True: 0, False: 0}, 0
    expected = 0
    for number in range(60):
        random_ = random.Random(number)
        text = " ".join(f"w{random_.randrange(5000)}" for _ in range(300))
        other = changed(text, 1 + number % 12, number)
        exact = jaccard(text, other)
        assert near.see(text) == []
        found = near.see(other)
        if exact > 0.88:  # clearly near, beyond two standard errors of the estimate
            expected += 1
            hits[bool(found)] += 1
            assert found[0].number == 2 * number
            assert found[0].similarity == pytest.approx(exact, abs=0.13)
        elif exact < 0.7:
            false += bool(found)
    assert expected >= 10
    assert (hits[False], false) == (0, 0)


def test_two_texts_are_compared_by_number():
    from longrm.auditing.duplicates import NearTexts

    near = NearTexts(AuditSettings())
    text = " ".join(map(str, range(100)))
    near.see(text)
    near.see(f"{text} 100")
    near.see("something else altogether")
    near.see("...")
    assert near.are_near(0, 1)
    assert not near.are_near(0, 2)
    assert not near.are_near(0, 3)
    assert near.are_near(3, 3)


def test_an_index_of_bands_is_a_dictionary_however_often_it_was_sorted(monkeypatch):
    from longrm.auditing import duplicates

    monkeypatch.setattr(duplicates, "_FRESH", 40)
    random_, index, held = random.Random(0), duplicates.BandIndex(), {}
    for number in range(500):
        bands = [random_.randrange(3000) + (random_.randrange(2) << 63) for _ in range(8)]
        known = sorted({other for band in bands for other in held.get(band, ())})
        assert index.having(np.array(bands, np.uint64)).tolist() == known
        index.add(number, np.array(bands, np.uint64))
        for band in bands:
            held.setdefault(band, []).append(number)
    assert len(index._levels) > 1
