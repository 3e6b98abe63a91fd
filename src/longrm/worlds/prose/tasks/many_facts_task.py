"""The world `many-facts`: one fact answers, among as many of the very same form as a third of the text holds.

Akin to NIAH with several keys in RULER (Hsieh et al., 2024, section 3), whose distractors also grow with the length.
The wrong value is that of another name.
"""

from itertools import cycle, islice

from longrm.worlds.prose.cases import Case, Names, Point, ProseFact
from longrm.worlds.prose.families import capital, family_for, sayings

_VALUES = 20
"""As many as five responses make claims about."""


def many_facts(names: Names, size: int) -> Case:
    """Says the same of every name, with values that come round again where there are more names than values."""
    family = family_for(_VALUES, names)
    pool = names.values(family.values, _VALUES)
    ((states, asks),) = sayings(family, 1, names)
    points = []
    for value in islice(cycle(pool), size):
        subject = f"the {names.surname()} {family.noun}"
        fact = ProseFact(capital(f"{subject} {states.format(value)}."))
        points.append(Point((fact,), capital(asks.format(subject)), capital(f"{subject} {states}."), value))
    return Case(
        tuple(points), f"Report {{number}} facts that the text states, each about another {family.noun}."
    )
