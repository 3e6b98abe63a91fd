"""Every response alone on a scale from 0 to 10."""

import math
import re
import sys

from longrm.judging.answers import names_another_score
from longrm.judging.format import JudgingFormat, ParsedVerdict, TokenFormat, labeled, marked, valued
from longrm.judging.prompts import CRITERIA, ONE_CRITERION

_SAID = r"[-+]?[0-9]+(?:[.,][0-9]+)?(?:\s*(?:/|out of)\s*[0-9]+)?"
_SCORE = re.compile(r"\s*([0-9]+(?:[.,][0-9]+)?)(?:\s*(?:/|out of)\s*10)?\s*", re.IGNORECASE)
_SHOWN = "An assistant responded to the last turn of this conversation. "
_FORM = "a number from 0 to 10 in double square brackets, for example [[5]]."


class Pointwise(JudgingFormat):
    """Asks for a score from 0 to 10 for one response at a time, decimals allowed: [[7]], [[7.5]], [[7/10]]."""

    name = "pointwise"
    scale = "points"
    n_responses = range(1, sys.maxsize)
    pointwise = True
    instruction = (
        f"{_SHOWN}Rate the response on a scale from 0 to 10.\n\n{CRITERIA}\n\n"
        "9 or 10: every important claim is supported, and the question is answered completely.\n"
        "7 or 8: every important claim is supported; something minor is missing or imprecise.\n"
        "5 or 6: mostly supported, but an important part of the answer is missing or vague.\n"
        "3 or 4: an important claim is wrong or unsupported, but part of the answer is correct.\n"
        "1 or 2: mostly wrong, unsupported or off topic.\n"
        "0: nothing is correct, no answer, or harmful."
    )
    by_criterion = (
        f"{_SHOWN}Rate by one criterion, on a scale from 0 to 10, how good the response is: 10 if it meets the "
        f"criterion completely, 5 if it meets half of it, 0 if it does not meet it.\n\n{ONE_CRITERION}"
    )
    request = (
        "First write a short explanation that quotes the decisive passages. Then output your rating on the last line, "
        "strictly in this format: " + _FORM
    )
    form = _FORM
    marker = marked(_SAID)
    labeled = labeled("verdict|score|rating", _SAID)
    value = valued(_SAID)
    keys = frozenset({"verdict", "score", "rating", "grade"})
    boxes = False  # a number in a box usually answers the question

    def read(self, verdict: str, explanation: str, responses: int) -> ParsedVerdict | None:
        """A number from 0 to 10."""
        score = _SCORE.fullmatch(verdict)
        points = float(score[1].replace(",", ".")) if score else math.inf
        if points > 10:
            return None
        return ParsedVerdict((points,), (), names_another_score(explanation, points))


class TokenPointwise(TokenFormat, Pointwise):
    """Asks whether one response is good, Yes or No."""

    instruction = (
        f"{_SHOWN}Decide whether the response is good: accurate, and an answer to the question.\n\n{CRITERIA}"
    )
    by_criterion = f"{_SHOWN}Decide whether the response meets one criterion.\n\n{ONE_CRITERION}"
    request = "Answer with one word only: Yes if the response is good, No if it is not."
    tokens = ("Yes", "No")
