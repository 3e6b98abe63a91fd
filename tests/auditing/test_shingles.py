import random

import numpy as np
import pytest

from longrm.auditing.shingles import every, shingles
from longrm.data.chunking import words_of


def runs(text, size):
    held = words_of(text)
    size = min(size, len(held))
    return {tuple(held[start : start + size]) for start in range(len(held) - size + 1)} if held else set()


@pytest.mark.parametrize("seed", range(6))
def test_shared_numbers_are_shared_runs_of_words(seed):
    random_ = random.Random(seed)
    vocabulary = ["Marlow", "keeps", "the", "红", "狐", "amber", "code", "12"]
    one, other = (" ".join(random_.choice(vocabulary) for _ in range(300)) for _ in range(2))
    for size in (1, 2, 3, 13):
        found = shingles(one, size), shingles(other, size)
        assert len(found[0]) == len(runs(one, size))
        assert len(np.intersect1d(*found)) == len(runs(one, size) & runs(other, size))


def test_case_marks_and_spaces_do_not_count_and_order_does():
    assert (shingles("A red fox.", 2) == shingles("a RED, fox", 2)).all()
    assert not len(np.intersect1d(shingles("a red fox", 3), shingles("fox red a", 3)))
    assert len(shingles("one two", 5)) == 1
    assert len(shingles(" ... ", 5)) == 0


def test_numbers_are_the_same_in_every_process():
    assert int(shingles("the code of Marlow is copper", 5)[0]) == PINNED


PINNED = 15790755907205759637


def test_sampling_takes_the_same_numbers_of_every_text():
    numbers = shingles(" ".join(str(number) for number in range(20_000)), 1)
    sampled = every(numbers, 16)
    assert 0.8 < 16 * len(sampled) / len(numbers) < 1.2
    assert (every(numbers[::2], 16) == np.intersect1d(numbers[::2], sampled)).all()
