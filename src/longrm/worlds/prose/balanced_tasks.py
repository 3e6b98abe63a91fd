"""Tasks that no shallow rule answers: both values of a question have the same support but for what the text says.

Both occur equally often, in the same kind of sentence, near the asked name, in either order and at any distance from
it. So the rules of `longrm.reward_models.shallow_rules` are at chance at every depth, as
`experiments/shallow_rules.py` shows. Rules that know the forms of `exchange` are not: the value that follows the asked
giver's name is wrong in 7 of 12 cases.
"""

from longrm.worlds.prose.tasks import MOVED_THINGS, REPORT_FACTS, Case, Names, Point, ProseFact, capital
from longrm.worlds.prose.word_lists import CITIES, CROPS, GOODS

_TRADERS = (("farm", CROPS), ("workshop", GOODS))
# To give, gave, got.
_TRADES = (("give", "gave", "got"), ("send", "sent", "received"))
# One side gives {a} to the other and gets {b}. Over these forms with either side as the subject, the right value of
# "one gave other a" is the first one, the one nearer to either name, and that of the longest common subsequence in
# exactly half of the cases: a change of one form unbalances the others.
_TRADED = (
    "{one} {gave} {other} {a} and {got} {b} in return",
    "{one} {got} {b} from {other} and {gave} {a} in return",
    "in return for {b}, {one} {gave} {other} {a}",
    "in return for {b}, {one} {gave} {a} to {other}",
    "in return for {a}, {one} {got} {b} from {other}",
    "{a} went from {one} to {other} in return for {b}",
)


def exchange(names: Names, size: int) -> Case:
    """Who gave what to whom: one sentence has both names and both values, and its subject may be either side.

    The twin of a question asks what the other side gave.
    """
    rng = names.rng
    noun, pool = rng.choice([(noun, pool) for noun, pool in _TRADERS if len(pool) >= 2 * size])
    give, gave, got = rng.choice(_TRADES)
    values = iter(names.values(pool, 2 * size))
    points = []
    for _ in range(size):
        sides = [(f"the {names.surname()} {noun}", next(values)) for _ in range(2)]
        (one, a), (other, b) = sides
        fact = names.stated(rng.choice(_TRADED).format(one=one, other=other, a=a, b=b, gave=gave, got=got))
        rng.shuffle(sides)
        both = [
            Point(
                (fact,),
                f"What did {giver} {give} to {taker}?",
                capital(f"{giver} {gave} {taker} {{}}."),
                value,
                wrong,
            )
            for (giver, value), (taker, wrong) in (sides, sides[::-1])
        ]
        points.append(both[0].with_twin(both[1]))
    return Case(tuple(points), f"Say {{number}} times what a {noun} {gave} to another one.")


def joined_facts(names: Names, size: int) -> Case:
    """Two facts must be joined: who looks after something, and what is said of that thing.

    The same is said of what another person looks after, with the wrong value, and the four facts are in any order.
    The twin of a question asks about that person. Similar to BABILong's second task (Kuratov et al. 2024).
    """
    rng, family = names.rng, names.family(2 * size)
    states, asks = rng.choice(family.sayings)
    values = iter(names.values(family.values, 2 * size))
    points = []
    for _ in range(size):
        said = []
        for _ in range(2):
            person, subject, value = names.person(), f"the {names.surname()} {family.noun}", next(values)
            facts = (
                names.stated(f"{person} looks after {subject}"),
                names.stated(f"{subject} {states.format(value)}"),
            )
            said.append((f"the {family.noun} that {person} looks after", value, facts))
        both = [
            Point(
                facts,
                capital(asks.format(asked)),
                capital(f"{asked} {states}."),
                value,
                wrong,
                decoys=decoys,
            )
            for (asked, value, facts), (_, wrong, decoys) in (said, said[::-1])
        ]
        points.append(both[0].with_twin(both[1]))
    return Case(tuple(points), REPORT_FACTS.format(f"{family.noun} that somebody looks after"))


_DATED_MOVES = (
    "in {2}, the {0} was moved to {1}.",
    "the {0} was moved to {1} in {2}.",
    "by a narrow vote, the {0} was moved to {1} in {2}.",
    "to save on rent, the {0} was moved to {1} in {2}.",
)


def dated_update(names: Names, size: int) -> Case:
    """Of two dated statements about the same thing the later one holds; their order in the text says nothing.

    Another thing moved to the same cities in the opposite order, so that each city occurs twice. The twin of a question
    asks about that thing. Similar to knowledge updates in LongMemEval (Wu et al. 2024), with dates.
    """
    rng, thing = names.rng, names.rng.choice(MOVED_THINGS)
    values = iter(names.values(CITIES, 2 * size))
    points = []
    for _ in range(size):
        before, after = next(values), next(values)
        moved = []
        for order in ((before, after), (after, before)):
            name, first = f"{names.surname()} {thing}", 1950 + rng.below(30)
            years = first, first + 1 + rng.below(20)
            facts = tuple(
                ProseFact(capital(rng.choice(_DATED_MOVES).format(name, city, year)))
                for city, year in zip(order, years, strict=True)
            )
            moved.append((name, order, facts))
        both = [
            Point(
                facts,
                f"To which city was the {name} moved last?",
                f"The {name} was last moved to {{}}.",
                value,
                wrong,
                decoys=decoys,
            )
            for (name, (wrong, value), facts), (_, _, decoys) in (moved, moved[::-1])
        ]
        points.append(both[0].with_twin(both[1]))
    many = f"Name {{number}} of the places called {thing}, and say to which city each was moved last."
    return Case(tuple(points), many)
