"""The table of kept blocks: what it finds, what gives way, and that nothing is found whose beginning is gone."""

import random

from longrm.modeling.prefix_cache import BLOCK, PrefixTable, block_keys


def enter(table, keys):
    """Enters what is not there, as a forward does."""
    found = table.count(keys)
    in_use = set(table.use(keys[:found]))
    reserved = []
    for key in keys[found:]:
        place = table.reserve(in_use)
        if place is None:
            break
        reserved.append((key, place))
    table.keep(reserved, [keys])
    return found


def test_a_key_stands_for_a_block_and_all_before_it():
    ids = list(range(3 * BLOCK + 5))
    keys = block_keys(ids)
    assert len(keys) == len(set(keys)) == 3
    assert block_keys([*ids[: 2 * BLOCK], 7])[:2] == keys[:2]
    assert block_keys([9, *ids[1:]])[1:] != keys[1:], "another first token changes every key"
    assert block_keys(ids[: BLOCK - 1]) == []
    assert not set(block_keys(ids, "salt")) & set(keys), "another salt changes every key"
    assert block_keys(ids, "salt") == block_keys(ids, "salt") != block_keys(ids, "pepper")


def test_what_was_not_used_for_longest_gives_way_from_its_end():
    table = PrefixTable(4)
    old, new = block_keys([1] * 3 * BLOCK), block_keys([2] * 3 * BLOCK)
    assert enter(table, old) == 0
    assert enter(table, new) == 0
    assert table.count(new) == 3
    assert table.count(old) == 1, "its first block is the last to go"
    assert len(table) == 4


def test_places_are_never_given_twice_and_never_lost():
    draw, table = random.Random(0), PrefixTable(20)
    for _ in range(2000):
        start, length = draw.randrange(6), draw.randrange(1, 25)
        ids = [
            token
            for number in range(length)
            for token in [start if number < 3 else draw.randrange(2)] * BLOCK
        ]
        keys = block_keys(ids)
        enter(table, keys)
        places = [*table._slots.values(), *table._free]
        assert sorted(places) == list(range(20))
        found = table.count(keys)
        assert not any(key in table._slots for key in keys[found:]), "nothing is kept whose beginning is gone"


def test_what_is_in_use_stays():
    table = PrefixTable(3)
    keys = block_keys([1] * 3 * BLOCK)
    enter(table, keys)
    assert table.reserve(set(table.use(keys))) is None
    (first, *_) = in_use = table.use(keys[:2])
    place = table.reserve(set(in_use))
    assert place not in in_use
    table.release([place])
    assert table.use(keys[:1]) == [first]
