"""A limit takes a sample of all lengths, depths and tasks; the most even one is found by brute force."""

import random
from collections import Counter
from itertools import pairwise, product

import pytest

from longrm.benchmarks import Probe
from longrm.benchmarks.benchmark import AuditedComparisons
from longrm.benchmarks.probe import comparisons, probe_parts
from longrm.benchmarks.stratified_sample import allot, balanced, evenly, sample, stratum_of
from longrm.types import Comparison

GRID = {
    "cells": [
        {"lengths": [128, 256, 512], "depths": [0, 0.5, 1], "worlds": ["records", "chain"], "groups": 3,
         "per_group": 4}
    ]
}  # fmt: skip


def fairest(limit, sizes):
    """The most even shares that there are, found by trying all: the lowest as high as can be, then the next, ..."""
    whole = min(limit, sum(sizes))
    shares = (one for one in product(*(range(size + 1) for size in sizes)) if sum(one) == whole)
    return max(tuple(sorted(share)) for share in shares)


def test_shares_are_as_even_as_brute_force_finds():
    draw = random.Random(7)
    for _ in range(200):
        sizes = [draw.randint(1, 5) for _ in range(draw.randint(1, 5))]
        limit = draw.randint(1, sum(sizes) + 2)
        strata = {(draw.randint(0, 2), number): size for number, size in enumerate(sizes)}
        taken = allot(limit, strata)
        assert all(taken[stratum] <= size for stratum, size in strata.items())
        assert tuple(sorted(taken.values())) == fairest(limit, sizes), (sizes, limit)
    assert fairest(6, [4, 4, 4]) != (0, 2, 4)  # negative control: the beginning of the data


@pytest.mark.parametrize("limit", range(1, 40))
def test_a_limit_reaches_every_length_then_every_depth_then_every_task(limit):
    """Of strata that are large enough, no length has two more than another, and so on."""
    strata = dict.fromkeys(product((128, 256, 512, 1024), (0, 1, 2), ("a", "b")), 99)
    taken = allot(limit, strata)
    for part in range(3):
        had = Counter()
        for stratum, count in taken.items():
            had[stratum[part]] += count
        spread = max(had.values()) - min(had[stratum[part]] for stratum in strata)
        assert spread <= (1 if part == 0 else 2), (part, had)
    assert max(taken.values()) - min(taken.values()) <= 1
    assert sum(taken.values()) == limit


def test_places_are_different_rising_and_from_end_to_end():
    for size in range(1, 30):
        for count in range(1, size + 1):
            places = evenly(count, size)
            assert len({*places}) == count
            assert places == sorted(places)
            assert places[0] == 0
            assert size - places[-1] <= -(-size // count)  # nothing longer than a step is left at the end
            assert {b - a for a, b in pairwise(places)} <= {size // count, -(-size // count)}
            drawn = [evenly(count, size, start) for start in range(size)]  # every place is equally likely
            assert Counter(place for places in drawn for place in places) == dict.fromkeys(range(size), count)


def test_a_balanced_sample_has_as_many_of_either_sign():
    rng = random.Random(5)
    for _ in range(200):
        leads = [rng.choice((-2.5, -1, 0, 1, 3)) for _ in range(rng.randrange(30))]
        kept = balanced(leads)
        signs = Counter((leads[place] > 0) - (leads[place] < 0) for place in kept)
        above, below = sum(lead > 0 for lead in leads), sum(lead < 0 for lead in leads)
        assert kept == sorted({*kept})
        assert signs == Counter({1: min(above, below), -1: min(above, below), 0: leads.count(0)})
    assert balanced([1, 1, 1, 1, -1, 0, 1, 1, -1]) == [0, 3, 4, 5, 8]  # of the many those far apart
    assert balanced([1, 1]) == []


def test_the_sample_of_a_probe_is_in_the_order_of_the_whole_and_spread_over_its_grid():
    probe = Probe.model_validate(GRID)
    whole = list(comparisons(probe))
    assert len(whole) == probe.total == 3 * 3 * 2 * 12
    for limit in (1, 5, 18, 40, 215, 216, 300):
        taken = list(comparisons(probe, limit=limit))
        assert len(taken) == min(limit, len(whole))
        ids = [one.id for one in taken]
        assert ids == [one.id for one in whole if one.id in {*ids}]
        assert {one.id: one for one in whole}.items() >= {one.id: one for one in taken}.items()
        assert ids == [one.id for one in comparisons(probe, limit=limit)]
        had = Counter((c.metadata["length"], c.metadata["depth"], c.metadata["task"]) for c in taken)
        assert tuple(sorted([*had.values(), *[0] * (18 - len(had))])) == tuple(
            sorted([min(limit, 216) // 18 + (place < min(limit, 216) % 18) for place in range(18)])
        )
    # Twelve of a part come from all its contexts, three of it from three.
    assert [len(part.contexts) for part in probe_parts(probe, limit=54)] == [3] * 18


def test_a_probe_generates_only_the_contexts_that_it_takes(monkeypatch):
    made = []
    from longrm.benchmarks import probe as module

    group = module.group
    monkeypatch.setattr(module, "group", lambda plan, *rest: made.append(plan.length) or group(plan, *rest))
    list(comparisons(Probe.model_validate(GRID), limit=6))
    assert Counter(made) == {128: 2, 256: 2, 512: 2}


def row(number, **metadata):
    prompt = ({"role": "user", "content": f"{number}?"},)
    responses = tuple(({"role": "assistant", "content": text},) for text in ("yes", "no"))
    return Comparison(str(number), str(number), prompt, responses, (1, 2), metadata=metadata)


def test_any_benchmark_takes_a_sample_and_knows_its_size():
    rows = [
        row(number, length=length, depth=depth, task=task)
        for number, (length, depth, task) in enumerate(
            [(1024, 0.1, "a")] * 50 + [(4096, 0.1, "a")] * 5 + [(4096, 0.9, "a")] * 5 + [(4096, 0.9, "b")] * 2
        )
    ]
    audited = AuditedComparisons(lambda _: iter(rows), limit=10)
    taken = list(audited)
    assert [one.id for one in taken] == [rows[place].id for place in sample(10, [*map(stratum_of, rows)])]
    assert Counter(map(stratum_of, taken)) == {
        (10, 0, "a"): 3, (12, 0, "a"): 2, (12, 4, "a"): 3, (12, 4, "b"): 2,
    }  # fmt: skip
    assert (audited.sampled_from, audited.audit.comparisons) == (62, 10)
    everything = AuditedComparisons(lambda _: iter(rows), limit=62)
    assert list(everything) == rows
    assert everything.sampled_from is None


def test_a_small_sample_has_every_kind_of_a_sorted_file_by_its_share():
    """One kind is read before the other: of a fifth of the rows, a sample has a fifth, whatever its size."""
    cells = [(2**length, f"task {task}") for length in range(5, 13) for task in range(12)]
    rows = [
        row(number, length=length, task=task, kind=kind)
        for number, (kind, (length, task)) in enumerate(
            (kind, cell)
            for kind, count in (("best-of-N", 10), ("pair", 40))
            for cell in cells
            for _ in range(count)
        )
    ]
    for limit in (48, 96, 200, 500):
        taken = list(AuditedComparisons(lambda _: iter(rows), limit=limit))
        share = sum(one.metadata["kind"] == "best-of-N" for one in taken) / limit
        assert share == pytest.approx(0.2, abs=0.08), limit  # two standard errors of a fifth of 96
        lengths = Counter(one.metadata["length"] for one in taken)
        assert len(lengths) == 8
        assert max(lengths.values()) - min(lengths.values()) <= 1
    first = {stratum_of(one): one for one in reversed(rows)}  # negative control: the first of every cell
    assert {one.metadata["kind"] for one in first.values()} == {"best-of-N"}


def test_a_file_is_sampled(put, bench):
    rows = [
        {"prompt": f"{number}?", "chosen": "yes", "rejected": "no", "length": 2 ** (7 + number // 20)}
        for number in range(60)
    ]
    loaded = bench(f"file:{put('rows.jsonl', *rows)}", limit=6)
    numbers = [int(one.id.removeprefix("row-")) - 1 for one in loaded.comparisons]
    assert [number // 20 for number in numbers] == [0, 0, 1, 1, 2, 2]
    assert [b - a for a, b in zip(numbers[::2], numbers[1::2], strict=True)] == [10, 10, 10]
    assert loaded.sampled_from == 60
