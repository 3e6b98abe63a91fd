"""The world `citation`: which entry of the text says something.

Akin to the citation of the supporting passage in ALCE (Gao et al., 2023) and LongCite. Entries have numbers that tell
nothing of their place. The wrong entry says the same of another name.
"""

from longrm.worlds.prose.cases import Case, Names, Point, ProseFact, reference
from longrm.worlds.prose.families import capital, family_for, sayings


def citation(names: Names, size: int) -> Case:
    """Says something of every name, in an entry of its own."""
    family = family_for(size, names)
    numbers = dict.fromkeys(reference(names.draws) for _ in range(4 * size))
    points = []
    for number, value, (states, _) in zip(
        numbers, names.values(family.values, size), sayings(family, size, names), strict=False
    ):
        subject = f"the {names.surname()} {family.noun}"
        fact = ProseFact(capital(f"{subject} {states.format(value)}."), number)
        points.append(
            Point(
                (fact,),
                f"In which entry does the text say something about {subject}?",
                f"The text says something about {subject} in entry {{}}.",
                number,
            )
        )
    return Case(
        tuple(points), f"Name {{number}} entries, each with what it says about another {family.noun}."
    )
