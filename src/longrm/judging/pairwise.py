"""Which of two responses is better, or neither."""

import re
from collections.abc import Sequence

from longrm.judging.claims import claimed_at_end
from longrm.judging.contradiction import argues_otherwise
from longrm.judging.format import JudgingFormat, ParsedVerdict
from longrm.judging.prompts import CRITERIA
from longrm.judging.verdicts import marked, valued, worded

_NAME = r"(?:(?:response|assistant|answer|candidate|model|option)\s+|回答|助手|回复)?"
_BETTER = r"(?:\s+is\s+(?:\w+\s+)?better|\s+wins|更好|更优|胜出)?"
_TIED = r"(?:(?:it\s+is\s+|it['’]s\s+)?(?:a\s+)?(?:tie|draw)|平局|平手)"
_SAID = rf"{_NAME}[A-Z](?:\s*[<>=]+\s*{_NAME}[A-Z]|{_BETTER})|{_TIED}"
_VERDICT = re.compile(
    rf"\s*(?:{_NAME}(?P<one>[ABC12])(?:\s*(?P<sign>>{{1,3}}|<{{1,3}}|={{1,2}})\s*{_NAME}(?P<other>[AB12])|"
    rf"{_BETTER})|{_TIED})\s*",
    re.IGNORECASE,
)

_LABELS = (
    r"verdict|winner|decision|judge?ment|preference"
    r"|(?:better|best|preferred|winning|stronger) (?:response|assistant|answer)"
    r"|urteil|gewinner|veredicto|ganador|verdetto|裁决|判决|判断|判定|评判|结论|胜者|获胜者|胜出者|更好的回答|勝者|結論|вердикт|победитель"
)
_KEYS = frozenset(
    {
        *(
            f"{final}{name}"
            for final in ("", "final")
            for name in ("verdict", "winner", "decision", "choice")
        ),
        *(f"{final}{name}" for final in ("", "final") for name in ("judgment", "judgement", "preference")),
        *("preferred", "preferredresponse", "better", "betterresponse", "betteranswer", "betterassistant"),
        *("best", "bestresponse", "winningresponse"),
    }
)
_FORM = "[[A]] if response A is better, [[B]] if response B is better, [[C]] if neither is."
_FIRST, _SECOND, _TIE = (1.0, 0.0), (0.0, 1.0), (0.5, 0.5)
_POINTS = {"A": _FIRST, "1": _FIRST, "B": _SECOND, "2": _SECOND, "C": _TIE}


class Pairwise(JudgingFormat):
    """Asks which of two responses is better: [[A]], [[B]], or [[C]] for neither.

    Arena-Hard's [[A>>B]], [[A>B]], [[A=B]], [[B>A]] and [[B>>A]] are read too, without their strength; what a
    verdict pattern finds may also be 1, 2 or "tie".
    """

    name = "pairwise"
    scale = "verdict"
    counts = range(2, 3)
    instruction = (
        "Above stands what the models were given; below stand two responses to its last turn, A and B. Decide which "
        "is better: the more faithful one or, where they are equally faithful, the more helpful one.\n\n"
        + CRITERIA
    )
    request = (
        "Write a short analysis: name what decides, with the passages that show it. Then end with your verdict, "
        "alone on the last line: " + _FORM
    )
    form = _FORM
    marker = marked(_SAID)
    worded = worded(_LABELS, _SAID)
    value = valued(_SAID)
    keys = _KEYS

    def read(self, verdict: str, explanation: str, responses: int) -> ParsedVerdict | None:
        """Reads a letter, a relation or a number as the points of the two responses."""
        points = _points(verdict)
        return None if points is None else ParsedVerdict(points, (), argues_otherwise(explanation, points))

    def claimed_verdict(self, own_words: str, sources: Sequence[str]) -> str | None:
        """A whole last line such as "Assistant A wins." or "It is a tie."."""
        return claimed_at_end(own_words, sources)


def _points(verdict: str) -> tuple[float, float] | None:
    match = _VERDICT.fullmatch(verdict)
    if match is None:
        return None
    if match["one"] is None:
        return _TIE
    one = _POINTS[match["one"].upper()]
    if match["sign"] is None:
        return one
    other = _POINTS[match["other"].upper()]
    if {one, other} != {_FIRST, _SECOND}:
        return None
    return {">": one, "<": other, "=": _TIE}[match["sign"][0]]
