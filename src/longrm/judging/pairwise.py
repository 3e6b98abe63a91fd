"""Which of two responses is better, or neither."""

import re

from longrm.judging.answers import argues_otherwise
from longrm.judging.format import JudgingFormat, ParsedVerdict, TokenFormat, labeled, marked, valued
from longrm.judging.prompts import CRITERIA, ONE_CRITERION

_NAME = r"(?:(?:response|assistant|answer|candidate|model|option)\s+)?"
_BETTER = (
    r"(?:\s+is\s+(?:(?!not\b|no\b|never\b)\w+\s+){0,3}better(?:\s+(?:response|answer|one))?"
    r"(?:\s+than\s+(?:response\s+|assistant\s+)?[A-Z])?|\s+wins)?"
)
_TIED = r"(?:(?:it\s+is\s+|it['’]s\s+)?(?:a\s+)?(?:tie|draw))"
_SAID = rf"{_NAME}[A-Z](?:\s*[<>=][\s<>=]*{_NAME}[A-Z]|{_BETTER})|{_TIED}"
_VERDICT = re.compile(
    rf"\s*(?:{_NAME}(?P<one>[ABC12])(?:\s*(?P<sign>>{{1,3}}|<{{1,3}}|={{1,2}})\s*{_NAME}(?P<other>[AB12])|"
    rf"{_BETTER})|{_TIED})\s*",
    re.IGNORECASE,
)

_LABELS = (
    # Not "best answer", which may answer the question.
    r"verdict|winner|decision|choice|judge?ment|preference|preferred|conclusion|(?:better|preferred|winning|stronger) "
    r"(?:response|assistant|answer)|best (?:response|assistant)"
)
_KEYS = frozenset(
    {
        *("verdict", "winner", "decision", "choice", "judgment", "judgement", "preference"),
        *("preferred", "preferredresponse", "better", "betterresponse", "betteranswer", "betterassistant"),
        *("best", "bestresponse", "winningresponse"),
    }
)
_SHOWN = "Assistants A and B responded to the last turn of this conversation. Decide which response is better"
_FORM = "[[A]] if response A is better, [[B]] if response B is better, [[C]] for a tie."
_FIRST, _SECOND, _TIE = (1.0, 0.0), (0.0, 1.0), (0.5, 0.5)
_POINTS = {"A": _FIRST, "1": _FIRST, "B": _SECOND, "2": _SECOND, "C": _TIE}

_CLAIM = re.compile(
    r"(?:(?:overall|therefore|thus|so|hence|ultimately|finally|in (?:conclusion|summary)|to conclude)\b,?\s+)?"
    r"(?:(?P<mine>I\s+(?:(?:would|therefore)\s+)?(?:choose|pick|select|prefer)\s+)?"
    # Not "Answer B is the best", which may answer the question.
    r"(?:the\s+)?(?:response|assistant|candidate|model)\s+(?P<one>(?-i:[AB]))"
    r"(?(mine)|\s+(?:wins|is\s+(?:the\s+)?(?:clearly\s+|slightly\s+|overall\s+)?(?:winner|better|best|superior))"
    r"(?:\s+(?:response|one|of the two))?(?:\s+overall)?)"
    r"|(?P<tie>it(?:\s+i|['’])s\s+a\s+(?:tie|draw)))",
    re.IGNORECASE,
)
"""A last line that states which response wins, or a tie, and nothing else."""


class Pairwise(JudgingFormat):
    """Asks which of two responses is better: [[A]], [[B]], or [[C]] for neither.

    Arena-Hard's [[A>>B]], [[A>B]], [[A=B]], [[B>A]] and [[B>>A]] are accepted, and their strength is dropped. The
    user's own pattern may also find 1, 2 or "tie".
    """

    name = "pairwise"
    scale = "verdict"
    n_responses = range(2, 3)
    instruction = f"{_SHOWN}.\n\n{CRITERIA}"
    by_criterion = f"{_SHOWN} by one criterion.\n\n{ONE_CRITERION}"
    request = (
        "First compare the responses in a short explanation that quotes the decisive passages. Then output your final "
        "verdict on the last line, strictly in this format: " + _FORM
    )
    form = _FORM
    marker = marked(_SAID)
    labeled = labeled(_LABELS, _SAID)
    value = valued(_SAID)
    keys = _KEYS

    def read(self, verdict: str, explanation: str, responses: int) -> ParsedVerdict | None:
        """A letter, a relation or a number as the points of the two responses."""
        match = _VERDICT.fullmatch(verdict)
        if match is None:
            return None
        points = _TIE if match["one"] is None else _POINTS[match["one"].upper()]
        if match["sign"] is not None:
            other = _POINTS[match["other"].upper()]
            if {points, other} != {_FIRST, _SECOND}:
                return None
            points = {">": points, "<": other, "=": _TIE}[match["sign"][0]]
        return ParsedVerdict(points, (), argues_otherwise(explanation, points))

    def claimed(self, line: str) -> str | None:
        """The winner of a line such as "Assistant A wins." or "It is a tie."."""
        claim = _CLAIM.fullmatch(line)
        return claim and (claim["one"] or "tie")


class TokenPairwise(TokenFormat, Pairwise):
    """Asks which of two responses is better, A or B."""

    request = "Answer with one letter only: A if response A is better, B if response B is better."
    tokens = ("A", "B")
