"""Every response alone on a scale from 0 to 10."""

import math
import re
import sys

from longrm.judging.answers import names_another_score
from longrm.judging.format import JudgingFormat, ParsedVerdict, TokenFormat, labeled, marked, valued
from longrm.judging.prompts import CRITERIA, ONE_CRITERION

_SAID = r"[-+]?[0-9]+(?:[.,][0-9]+)?(?:\s*(?:/|out of)\s*[0-9]+)?"
_SCORE = re.compile(r"\s*([0-9]+(?:[.,][0-9]+)?)(?:\s*(?:/|out of)\s*10)?\s*", re.IGNORECASE)
_SHOWN = "Above stands what a model was given; below stands its response to the last turn. "
_FORM = "between double square brackets a number from 0 to 10, decimals allowed, in this form: [[5]]."


class Pointwise(JudgingFormat):
    """Asks for a score from 0 to 10 for one response at a time, decimals allowed: [[7]], [[7.5]], [[7/10]]."""

    name = "pointwise"
    scale = "points"
    n_responses = range(1, sys.maxsize)
    pointwise = True
    instruction = (
        f"{_SHOWN}Score the response from 0 to 10, by its faithfulness first and then by its helpfulness.\n\n"
        f"{CRITERIA}\n\n"
        "9 or 10: all that matters is supported, and the question is answered in full.\n"
        "7 or 8: all that matters is supported; something small is missing or loosely put.\n"
        "5 or 6: mostly supported, but a part of the answer that matters is missing or vague.\n"
        "3 or 4: a claim that matters is wrong or made up, though part of the answer holds.\n"
        "1 or 2: mostly wrong, made up or beside the question.\n"
        "0: nothing in it holds, it answers nothing, or it does harm."
    )
    by_criterion = (
        f"{_SHOWN}Score by one criterion from 0 to 10 how good the response is: 10 where it meets the criterion in "
        f"full, 5 where it does so by half, 0 where it does not at all.\n\n{ONE_CRITERION}"
    )
    request = (
        "Write a short analysis: name what decides, with the passages that show it. Then end with the score, alone on "
        "the last line: " + _FORM
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
        f"{_SHOWN}Decide whether the response is good: faithful in all that matters, and an answer to the question."
        f"\n\n{CRITERIA}"
    )
    by_criterion = (
        f"{_SHOWN}Decide whether the response is good by one criterion, which it meets or does not.\n\n"
        f"{ONE_CRITERION}"
    )
    request = "Answer with one word and nothing else: Yes if the response is good, No if it is not."
    tokens = ("Yes", "No")
