"""The world `contradiction`: a claim that the text contradicts, against the one that is faithful to it.

Akin to the detection of claims that a source does not support (faithfulness). Right and wrong claim differ in one of
two opposite words, of which either is as likely to be right, and both stand in the context.
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
    """Claims one of two opposites of every name; of four names, two share a claim, one with either opposite."""
    draws = names.draws
    noun, claims = draws.one(_NOUNS), list(draws.order(_CLAIMS))
    turns = [draws.below(2) for _ in range(size)]
    if (
        size <= 4
    ):  # of more points each is drawn alone: were half of them known to be right, some would tell of others
        turns[1::2] = [1 - turn for turn in turns[: size - 1 : 2]]
    points = []
    for number, turn in enumerate(turns):
        claim, opposites = claims[number // 2 % len(claims)]
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
    draws.shuffle(points)
    return Case(tuple(points), f"Report {{number}} claims of the text, each about another {noun}.")
