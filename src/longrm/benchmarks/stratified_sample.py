"""Stratified samples: as many comparisons of every length, depth and task as possible."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from longrm.data.fields import length_and_depth
from longrm.rng import hash_fraction
from longrm.types import Comparison, Trajectory

_DEPTHS = 5  # bins, as in the metrics by depth

Stratum = tuple[Hashable, ...]
"""What comparisons of one kind share, such as length, depth and task."""


def stratum_of(comparison: Comparison | Trajectory) -> Stratum:
    """The length rounded up to a power of two, the fifth of the context with the evidence, and the task."""
    place = length_and_depth(comparison)
    length = None if place.length is None else (place.length - 1).bit_length()
    depth = None if place.depth is None else min(int(place.depth * _DEPTHS), _DEPTHS - 1)
    return length, depth, str(comparison.metadata.get("task", ""))


def allot(limit: int, sizes: Mapping[Stratum, int]) -> dict[Stratum, int]:
    """Allots a sample to strata: equally many of each, and all of those that have fewer.

    The remainder, less than one per stratum, goes to strata whose first part (length), then second part (depth) and so
    on has the fewest so far: a limit below the number of strata reaches every length before it reaches one twice.

    Args:
        limit: The size of the sample; if there are fewer comparisons, all are taken.
        sizes: The size of each stratum, in the order of the data.
    """
    taken, left = dict.fromkeys(sizes, 0), limit
    open_ones = [stratum for stratum, size in sizes.items() if size]
    while open_ones and (share := left // len(open_ones)):
        for stratum in open_ones:
            more = min(share, sizes[stratum] - taken[stratum])
            taken[stratum] += more
            left -= more
        open_ones = [stratum for stratum in open_ones if taken[stratum] < sizes[stratum]]
    have = Counter[tuple[int, Hashable]]()
    for stratum, count in taken.items():
        have.update(dict.fromkeys(enumerate(stratum), count))
    for _ in range(min(left, len(open_ones))):
        poorest = min(open_ones, key=lambda stratum: [have[part] for part in enumerate(stratum)])
        open_ones.remove(poorest)
        taken[poorest] += 1
        have.update(enumerate(poorest))
    return taken


def evenly(count: int, size: int, start: int = 0) -> list[int]:
    """`count` of `size` places, spread evenly, so that they come from many contexts.

    A random `start` from 0 to `size` - 1 makes every place equally likely.
    """
    return [(number * size + start) // count for number in range(count)]


def sample(limit: int, strata: Sequence[Stratum]) -> list[int]:
    """The places of the sampled comparisons, ascending, given the stratum of every comparison in order.

    Where each stratum starts is hashed: files are often sorted by kind, such as best-of-N before pairs, and the first
    of every stratum would all be of one kind.
    """
    places: dict[Stratum, list[int]] = {}
    for place, stratum in enumerate(strata):
        places.setdefault(stratum, []).append(place)
    taken = allot(limit, {stratum: len(found) for stratum, found in places.items()})
    return sorted(
        found[number]
        for stratum, found in places.items()
        for number in evenly(taken[stratum], len(found), int(hash_fraction(*stratum) * len(found)))
    )


def balanced(leads: Sequence[float]) -> list[int]:
    """The places that are kept, ascending, so that as many leads are above 0 as below; those at 0 are all kept.

    The larger side is sampled evenly down to the size of the smaller one.

    Args:
        leads: One number per comparison, such as how much longer its better response is.
    """
    above = [place for place, lead in enumerate(leads) if lead > 0]
    below = [place for place, lead in enumerate(leads) if lead < 0]
    count = min(len(above), len(below))
    kept = (side[number] for side in (above, below) for number in evenly(count, len(side)))
    return sorted([*kept, *(place for place, lead in enumerate(leads) if lead == 0)])
