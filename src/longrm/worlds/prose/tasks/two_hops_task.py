"""The world `two-hops`: two facts must be joined, who looks after something and what is said of that thing.

Akin to BABILong's second task (Kuratov et al., 2024) and to variable tracking in RULER. The same is said of all
things, and the wrong value belongs to what somebody else looks after: neither fact alone tells the right one.
"""

from longrm.worlds.prose.cases import Case, Names, Point
from longrm.worlds.prose.families import capital, family_for, stated


def two_hops(names: Names, size: int) -> Case:
    """Gives every person something to look after, and that a value of its own."""
    family = family_for(size, names)
    states, asks = names.draws.one(family.sayings)
    points = []
    for value in names.values(family.values, size):
        person, subject = names.person(), f"the {names.surname()} {family.noun}"
        facts = [stated(f"{person} looks after {subject}", names)]
        facts.append(stated(f"{subject} {states.format(value)}", names))
        names.draws.shuffle(facts)
        asked = f"the {family.noun} that {person} looks after"
        points.append(Point(tuple(facts), capital(asks.format(asked)), capital(f"{asked} {states}."), value))
    return Case(
        tuple(points),
        f"Name {{number}} people, and say what is told of the {family.noun} that each looks after.",
    )
