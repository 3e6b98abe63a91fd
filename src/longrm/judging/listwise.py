"""All responses ranked from best to worst in one answer."""

import re
from string import ascii_uppercase as LETTERS

from longrm.judging.contradiction import argues_otherwise
from longrm.judging.format import Format, Reading
from longrm.judging.prompts import CRITERIA
from longrm.judging.verdicts import marked, worded

_NAME = r"(?:(?:response|assistant|answer|candidate|model)\s+)?"
_NAMES = re.compile(r"\b(?:response|assistant|answer|candidate|model)\b", re.IGNORECASE)
_SAID = rf"{_NAME}[A-Z](?:[\s,<>=]+{_NAME}[A-Z])*"
_RANKING = re.compile(r"\s*(?:[A-Z](?:[\s,>=]*[A-Z])*|\d+(?:[\s,>=]+\d+)*)\s*")

_FORM = (
    "between double square brackets the letters of all responses from the best to the worst, with no ties, in this "
    "form: [[B > A]]."
)


class Listwise(Format):
    """Asks for a ranking of 2 to 26 responses, best first: [[B > A > C]].

    Equal signs are read as the order in which the letters are written. What a verdict pattern finds may also be
    numbers, counted from 1.
    """

    name = "listwise"
    scale = "verdict"
    counts = range(2, len(LETTERS) + 1)
    instruction = (
        "Above stands what the models were given; below stand several responses to its last turn, each named by a "
        "letter. Rank them from the best to the worst: the more faithful ones before the less faithful, and among "
        "equally faithful ones the more helpful before the less helpful.\n\n" + CRITERIA
    )
    request = (
        "Write a short analysis: name what decides, with the passages that show it. Then end with the ranking, alone "
        "on the last line: " + _FORM
    )
    form = _FORM
    marker = marked(_SAID)
    worded = worded("verdict|ranking|order", _SAID)

    def read(self, said: str, explanation: str, responses: int) -> Reading | None:
        """Reads letters or numbers as an order; every response must stand in it once."""
        order = _order(said)
        if sorted(order) != list(range(responses)):
            return None
        points = [float(-order.index(position)) for position in range(responses)]
        return Reading((), order, argues_otherwise(explanation, points))


def _order(said: str) -> tuple[int, ...]:
    plain = _NAMES.sub(" ", said).upper()
    if not _RANKING.fullmatch(plain):
        return ()
    numbers = re.findall(r"\d+", plain)
    if numbers:
        return tuple(int(number) - 1 for number in numbers)
    return tuple(LETTERS.index(letter) for letter in re.findall(r"[A-Z]", plain))
