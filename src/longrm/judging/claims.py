"""Verdicts as plain claims: a last line that says nothing but which response wins, or that it is a tie."""

import re
from collections.abc import Sequence

from longrm.judging.endings import reports_others_words
from longrm.judging.verdicts import squeezed

_LEAD = (
    r"(?P<lead>(?:overall|therefore|thus|so|hence|ultimately|finally|in (?:conclusion|summary|short)|"
    r"to (?:conclude|summarize|sum up)|all (?:things considered|in all)|on balance)\b[,:]?\s+)?"
)
_NAMED = (
    r"(?:the\s+)?(?:response|assistant|answer|candidate|model)\s+(?P<one>(?-i:[A-Z]))"
    r"(?:['’]s\s+(?:response|answer))?"
)
_WINS = r"(?:clearly\s+|still\s+)?(?:wins|is\s+the\s+(?:clear\s+|overall\s+)?winner)(?:\s+overall)?"
_IS_BETTER = (
    r"is\s+(?:the\s+)?(?:clearly\s+|much\s+|slightly\s+|significantly\s+|overall\s+)?"
    r"(?:better|superior|stronger|best)(?:\s+(?:response|answer|one|of the two))?(?:\s+overall)?"
)
_TIES = (
    r"(?:it\s+is|it['’]s|this\s+is|i(?:\s+would|['’]d)?\s+call\s+(?:it|this))\s+a\s+(?:clear\s+)?(?:tie|draw)"
    r"(?:\s+overall)?"
)
_CLAIM = re.compile(
    rf"{_LEAD}(?:(?P<mine>i\s+(?:(?:would|therefore|thus)\s+)?(?:choose|pick|select|prefer)\s+)?{_NAMED}"
    rf"(?(mine)|\s+(?:(?P<wins>{_WINS})|{_IS_BETTER}))"
    rf"|(?P<tie>{_TIES}))",
    re.IGNORECASE,
)
_ENDS = re.compile(r"[.!?。)\"]\Z")
_HEADING = re.compile(
    r"\b(?:verdict|conclusion|winner|decision|judge?ment|overall|summary|result)\b", re.IGNORECASE
)


def claimed_at_end(own: str, sources: Sequence[str]) -> str | None:
    """The letter that the last line claims to win, or "tie"; None where it says more, or where others claim otherwise.

    Under a heading the claim may be of one aspect, and without a word such as "overall" it must be the only one.

    Args:
        own: What the model wrote, plain, without its thinking and its quotations.
        sources: The texts that the model was given.
    """
    before, _, line = own.strip().rpartition("\n")
    claim = _CLAIM.fullmatch(line.strip(" \t_#.!"))
    if claim is None or (before and any(squeezed(line) in squeezed(source) for source in sources)):
        return None
    above = before.rstrip().rpartition("\n")[2].strip(" \t_-")
    if reports_others_words(above):
        return None
    if above and not _ENDS.search(above) and not _HEADING.search(above):
        return None
    if not claim["lead"] and before:
        others = {found["one"] for found in _CLAIM.finditer(before)}
        stated = claim["wins"] or claim["mine"] or claim["tie"]
        if not stated or not others <= {claim["one"]}:
            return None
    return "tie" if claim["tie"] else claim["one"]
