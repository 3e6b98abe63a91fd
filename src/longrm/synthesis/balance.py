"""An even choice: of every task at every length as many as of any other, as far as they go round."""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from longrm.rng import Draws

Cell = TypeVar("Cell", bound=Hashable)
Entry = TypeVar("Entry")


def shares(available: Mapping[Cell, int], total: int) -> dict[Cell, int]:
    """How many to take of every cell, so that the smallest share is as large as can be (max-min fairness).

    Cells that hold less than an even share give all they have, and the others share the rest evenly: two that are
    not used up differ by one at most.

    Args:
        available: How many there are in every cell.
        total: How many to take together, if there are as many.
    """
    taken, left = {}, total
    # The scarcest first: what they cannot give falls to the others. Names break ties, so that nothing else does.
    order = sorted(available, key=lambda cell: (available[cell], str(cell)))
    for done, cell in enumerate(order):
        taken[cell] = min(available[cell], left // (len(order) - done))
        left -= taken[cell]
    return {cell: taken[cell] for cell in available}


def in_turns(groups: Mapping[str, Sequence[Entry]], *key: object) -> list[Entry]:
    """All entries, one of every group, then a second one of each, and so on; both orders are drawn by the key."""
    queues = []
    for name in sorted(groups):
        queue = list(groups[name])
        Draws(*key, name).shuffle(queue)
        queues.append(queue)
    Draws(*key).shuffle(queues)
    longest = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]
