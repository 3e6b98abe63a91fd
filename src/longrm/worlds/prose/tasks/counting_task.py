"""The world `counting`: how many sentences of the text say the same of a name.

Akin to aggregation in RULER, with small counts. The wrong count is drawn from the same few.
"""

from longrm.worlds.prose.cases import Case, Names, Point
from longrm.worlds.prose.families import capital, stated
from longrm.worlds.prose.word_lists import ANIMALS, CITIES, GOODS

_COUNTS = {2: "two", 3: "three", 4: "four"}
_FORMS = (
    (
        "family",
        "bought a {} from a neighbor",
        "bought {} animals from a neighbor",
        "animals did {} buy from a neighbor",
        ANIMALS,
    ),
    (
        "family",
        "lost a {} in the flood",
        "lost {} animals in the flood",
        "animals did {} lose in the flood",
        ANIMALS,
    ),
    ("company", "opened a branch in {}", "opened branches in {} cities", "branches did {} open", CITIES),
    (
        "company",
        "sent an engineer to {}",
        "sent engineers to {} cities",
        "cities did {} send engineers to",
        CITIES,
    ),
    (
        "workshop",
        "began to make {}",
        "began to make {} sorts of goods",
        "sorts of goods did {} begin to make",
        GOODS,
    ),
    (
        "workshop",
        "was asked for {}",
        "was asked for {} sorts of goods",
        "sorts of goods was {} asked for",
        GOODS,
    ),
)


def counting(names: Names, size: int) -> Case:
    """Says the same of every name two to four times, each time with another value."""
    noun, states, counts, asks, pool = names.draws.one(_FORMS)
    points = []
    for _ in range(size):
        subject = f"the {names.surname()} {noun}"
        order = names.draws.order(tuple(_COUNTS))
        count, wrong = next(order), next(order)
        facts = [stated(f"{subject} {states.format(value)}", names) for value in names.values(pool, count)]
        points.append(
            Point(
                tuple(facts),
                f"How many {asks.format(subject)}?",
                capital(f"{subject} {counts}."),
                _COUNTS[count],
                _COUNTS[wrong],
            )
        )
    return Case(tuple(points), f"How many {asks.format(f'each {noun}')}? Answer for {{number}} of them.")
