"""All responses ranked from best to worst in one answer."""

import re
from string import ascii_uppercase as LETTERS
from typing import Any

from longrm.judging.answers import argues_otherwise
from longrm.judging.format import JudgingFormat, ParsedVerdict, TokenFormat, labeled, marked, valued
from longrm.judging.prompts import CRITERIA, ONE_CRITERION

_NAME = r"(?:(?:response|assistant|answer|candidate|model)\s+)?"
_NAMES = re.compile(r"\b(?:response|assistant|answer|candidate|model)\b", re.IGNORECASE)
_SAID = rf"{_NAME}[A-Z](?:[\s,<>=]+{_NAME}[A-Z])*"
_SIGN = r"(?:\s*(?:>{1,3}|={1,2}|,)\s*|\s+)"
_RANKING = re.compile(rf"\s*(?:[A-Z](?:{_SIGN}?[A-Z])*|\d+(?:{_SIGN}\d+)*)\s*")

_CHAIN = re.compile(rf"{_NAME}\b[A-Z](?:\s*[>=]+\s*{_NAME}[A-Z]\b)+")

# RankGPT's (arXiv 2304.09542), whose responses have numbers.
_BRACKETED = re.compile(
    r"(?:(?:(?:my|the|final) )*(?:verdict|ranking|order)\s*:\s*)?(\[(?:\d+|[A-Z])\](?:\s*[>=]\s*\[(?:\d+|[A-Z])\])+)",
    re.IGNORECASE,
)

_SHOWN = "Several assistants, named by letters, responded to the last turn of this conversation. "
_FORM = (
    "the letters of all responses in double square brackets, from best to worst and without ties: [[B > A]]."
)


class Listwise(JudgingFormat):
    """Asks for a ranking of 2 to 26 responses, best first: [[B > A > C]].

    Letters joined by equal signs tie, although the prompt asks for no ties. The user's own pattern may also find
    numbers from 1.
    """

    name = "listwise"
    scale = "verdict"
    n_responses = range(2, len(LETTERS) + 1)
    instruction = f"{_SHOWN}Rank the responses from best to worst.\n\n{CRITERIA}"
    by_criterion = f"{_SHOWN}Rank the responses from best to worst by one criterion.\n\n{ONE_CRITERION}"
    request = (
        "First compare the responses in a short explanation that quotes the decisive passages. Then output your "
        "ranking on the last line, strictly in this format: " + _FORM
    )
    form = _FORM
    marker = marked(_SAID)
    labeled = labeled("verdict|ranking|order", _SAID)
    value = valued(_SAID)
    keys = frozenset({"verdict", "ranking", "order"})

    def claimed(self, line: str) -> str | None:
        """A line such as "B > A > C" or "[2] > [1] > [3]"."""
        if bracketed := _BRACKETED.fullmatch(line):
            return re.sub(r"[][]", "", bracketed[1])
        return line if _CHAIN.fullmatch(line) else None

    def text_of(self, verdict: Any) -> str:
        """A list of names in JSON is a ranking, best first."""
        if isinstance(verdict, list) and all(isinstance(name, str) for name in verdict):
            return " > ".join(verdict)
        return super().text_of(verdict)

    def read(self, verdict: str, explanation: str, responses: int) -> ParsedVerdict | None:
        """Letters or numbers, each response once.

        A ranking with ties becomes values: 1 for the first place down to 0 for the last, and their mean for a tie.
        """
        blocks = _blocks(verdict)
        order = tuple(position for block in blocks for position in block)
        if sorted(order) != list(range(responses)):
            return None
        values = [0.0] * responses
        for block in blocks:
            places = [order.index(position) for position in block]
            for position in block:
                values[position] = (responses - 1 - sum(places) / len(places)) / (responses - 1)
        contradicted = argues_otherwise(explanation, values)
        if len(blocks) < responses:
            return ParsedVerdict(tuple(values), (), contradicted)
        return ParsedVerdict((), order, contradicted)


def _blocks(verdict: str) -> list[list[int]]:
    """Positions, best first, with ties in one block; empty if the text is not a ranking."""
    plain = _NAMES.sub(" ", verdict).upper()
    blocks: list[list[int]] = []
    if not _RANKING.fullmatch(plain):
        return blocks
    for sign, name in re.findall(r"([\s,>=]*)(\d+|[A-Z])", plain):
        position = int(name) - 1 if name.isdigit() else LETTERS.index(name)
        if blocks and set("".join(sign.split())) == {"="}:
            blocks[-1].append(position)
        else:
            blocks.append([position])
    return blocks


class TokenListwise(TokenFormat, Listwise):
    """Asks which of 2 to 26 responses is the best, by its letter."""

    instruction = f"{_SHOWN}Decide which response is the best.\n\n{CRITERIA}"
    by_criterion = f"{_SHOWN}Decide which response is the best by one criterion.\n\n{ONE_CRITERION}"
    request = "Answer with one letter only, that of the best response."
    tokens = tuple(LETTERS)
