"""The world `who-said-it`: attribution of a quoted remark. The wrong speaker made another remark."""

from longrm.worlds.prose.cases import Case, Names, Point, ProseFact

_THINGS = (
    "bus line",
    "town fountain",
    "ferry",
    "swimming pool",
    "ring road",
    "night market",
    "clock tower",
    "football field",
    "bakery",
    "campsite",
    "cable car",
    "planetarium",
    "bicycle path",
    "fish hatchery",
    "ice rink",
    "post office",
    "quarry",
    "railway crossing",
    "sawmill",
    "tennis court",
    "windmill",
    "youth hostel",
    "cider press",
    "greenhouse",
)
_OPINIONS = (
    "costs more than it is worth",
    "was the best idea in years",
    "will not last another decade",
    "ought to belong to all of us",
    "has been neglected for too long",
    "should have been built elsewhere",
    "deserves a second chance",
    "brings nothing but trouble",
    "is the pride of the county",
    "could be run by half as many people",
)


def who_said_it(names: Names, size: int) -> Case:
    """Gives every remark, each about something else, a speaker."""
    things, points = names.draws.order(_THINGS), []
    for thing in (next(things) for _ in range(size)):
        remark = f"The {thing} {names.draws.one(_OPINIONS)}"
        answer = f'"{remark}," said {{}}.'
        speaker = names.person()
        points.append(Point((ProseFact(answer.format(speaker)),), f'Who said, "{remark}"?', answer, speaker))
    return Case(tuple(points), "Quote {number} remarks from the text, each with its speaker.")
