"""The world `single-fact`: one fact answers, among near distractors that give other names other values.

Akin to NIAH with several keys in RULER (Hsieh et al., 2024, section 3). The wrong value is that of another name.
"""

from longrm.worlds.prose.cases import Case, Names, Point
from longrm.worlds.prose.families import capital, family_for, sayings, stated


def single_fact(names: Names, size: int) -> Case:
    """Says something else of every name, with a value of its own."""
    family = family_for(size, names)
    values = names.values(family.values, size)
    points = []
    for value, (states, asks) in zip(values, sayings(family, size, names), strict=True):
        subject = f"the {names.surname()} {family.noun}"
        fact = stated(f"{subject} {states.format(value)}", names)
        points.append(Point((fact,), capital(asks.format(subject)), capital(f"{subject} {states}."), value))
    return Case(
        tuple(points), f"Report {{number}} facts that the text states, each about another {family.noun}."
    )
