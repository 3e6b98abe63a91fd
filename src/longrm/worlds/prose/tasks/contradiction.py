"""The world `contradiction`: a claim that the text contradicts, against the one that is faithful to it.

Akin to the detection of claims that a source does not support (faithfulness). Right and wrong claim differ in one of
two opposite words, of which either is as likely to be right, and which the context uses equally often.
"""

from longrm.worlds.prose.cases import Case, Names, Point
from longrm.worlds.prose.families import capital, stated

_NOUNS = ("company", "family", "society", "college", "club", "museum")
_CLAIMS = (
    ("the plan of {} was {} by the board", ("approved", "rejected")),
    ("the budget of {} was {} in the second vote", ("raised", "lowered")),
    ("the story of {} was {} by two witnesses", ("confirmed", "denied")),
    ("the lease of {} was {} by a year", ("extended", "shortened")),
    ("the work of {} was {} in the newspaper", ("praised", "criticized")),
    ("the offer of {} was {} after a short talk", ("accepted", "refused")),
    ("the visit of {} was moved to {} in the week", ("earlier", "later")),
    ("the share of {} was found to be {} than it had been", ("larger", "smaller")),
)


def contradiction(names: Names, size: int) -> Case:
    """Says one of two opposites of every name; with few names, each of half of them."""
    noun, (claim, opposites) = names.draws.one(_NOUNS), names.draws.one(_CLAIMS)
    # Of many points each is drawn alone: were half of them known to be right, some claims would tell of others.
    turns = [number % 2 if size <= 4 else names.draws.below(2) for number in range(size)]
    names.draws.shuffle(turns)
    points = []
    for turn in turns:
        subject, value, wrong = f"the {names.surname()} {noun}", opposites[turn], opposites[1 - turn]
        points.append(
            Point(
                (stated(claim.format(subject, value), names),),
                f"What does the text say about {claim.split(' of ')[0]} of {subject}?",
                capital(f"{claim.format(subject, '{}')}."),
                value,
                wrong,
            )
        )
    about = claim.split(" of ")[0]
    return Case(
        tuple(points), f"What does the text say about {about} of any {{number}} of those that it names?"
    )
