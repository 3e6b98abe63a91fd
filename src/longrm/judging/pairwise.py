"""Which of two responses is better, or neither."""

import re
from collections.abc import Sequence

from longrm.judging.contradiction import argues_otherwise
from longrm.judging.endings import stated_alone
from longrm.judging.format import JudgingFormat, ParsedVerdict
from longrm.judging.prompts import CRITERIA, ONE_CRITERION
from longrm.judging.verdicts import marked, valued, worded

_NAME = r"(?:(?:response|assistant|answer|candidate|model|option|antwort|réponse|respuesta|ответ)\s+|回答|助手|回复)?"
_BETTER = (
    r"(?:\s+is\s+(?:(?!not\b|no\b|never\b)\w+\s+){0,3}better(?:\s+(?:response|answer|one))?(?:\s+than\s+(?:response\s+|assistant\s+)?[A-Z])?|\s+wins|\s+ist\s+besser"
    r"|(?:的?回答)?(?:更好|更优|胜出))?"
)
_TIED = r"(?:(?:it\s+is\s+|it['’]s\s+)?(?:a\s+)?(?:tie|draw)|平局|平手)"
_SAID = rf"{_NAME}[A-Z](?:\s*[<>=]+\s*{_NAME}[A-Z]|{_BETTER})|{_TIED}"
_VERDICT = re.compile(
    rf"\s*(?:{_NAME}(?P<one>[ABC12])(?:\s*(?P<sign>>{{1,3}}|<{{1,3}}|={{1,2}})\s*{_NAME}(?P<other>[AB12])|"
    rf"{_BETTER})|{_TIED})\s*",
    re.IGNORECASE,
)

_LABELS = (
    r"verdict|winner|decision|judge?ment|preference"
    # "The best answer is B" may answer the question.
    r"|(?:better|preferred|winning|stronger) (?:response|assistant|answer)|best (?:response|assistant)|preferred"
    r"|urteil|gewinner|bessere antwort|gagnant|veredicto|ganador|verdetto"
    r"|裁决|判决|判断|判定|评判|结论|胜者|获胜者|胜出者|更好的回答|勝者|結論|вердикт|победитель"
)
_KEYS = frozenset(
    {
        *("verdict", "winner", "decision", "choice", "judgment", "judgement", "preference"),
        *("preferred", "preferredresponse", "better", "betterresponse", "betteranswer", "betterassistant"),
        *("best", "bestresponse", "winningresponse"),
    }
)
_FORM = "[[A]] if response A is better, [[B]] if response B is better, [[C]] if neither is."
_FIRST, _SECOND, _TIE = (1.0, 0.0), (0.0, 1.0), (0.5, 0.5)
_POINTS = {"A": _FIRST, "1": _FIRST, "B": _SECOND, "2": _SECOND, "C": _TIE}

# A last line that says nothing but which response wins, or that it is a tie.
_LEAD = (
    r"(?P<lead>(?:overall|therefore|thus|so|hence|ultimately|finally|in (?:conclusion|summary|short)|"
    r"to (?:conclude|summarize|sum up)|all (?:things considered|in all)|on balance)\b[,:]?\s+"
    r"|(?:(?:final|overall|my)\s+)*(?:conclusion|verdict|assessment|judge?ment|fazit)\s*:\s+"
    r"|(?:综上(?:所述)?|综合来看|总体(?:而言|来看)|总的来说|因此|所以),?\s*(?:我认为)?)?"
)
_CLAIMED = (
    # "Answer B is the best" may answer the question.
    r"(?!answer\b.*\bbest\b)(?:the\s+)?(?:(?:response|assistant|answer|candidate|model|antwort)\s+|回答|助手|回复)"
    r"(?P<one>(?-i:[A-Z]))(?:['’]s\s+(?:response|answer)|的(?:回答|回复))?"
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
    rf"{_LEAD}(?:(?P<mine>i\s+(?:(?:would|therefore|thus)\s+)?(?:choose|pick|select|prefer)\s+)?{_CLAIMED}"
    rf"(?(mine)(?:\s+(?:as|to\s+be)\s+(?:the\s+)?(?:better|best|stronger|winner)(?:\s+(?:response|answer|one))?)?"
    rf"|(?:\s+(?:(?P<wins>{_WINS})|{_IS_BETTER}|ist\s+besser)|更好|更优|胜出))"
    rf"|(?P<tie>{_TIES}))",
    re.IGNORECASE,
)


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
    by_criterion = (
        "Above stands what the models were given; below stand two responses to its last turn, A and B. Decide which "
        "is better by one criterion.\n\n" + ONE_CRITERION
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


def claimed_at_end(own: str, sources: Sequence[str]) -> str | None:
    """The letter that the last line claims to win, or "tie"; None where it says more, or where others claim otherwise.

    Under a heading the claim may be of one aspect, and without a word such as "overall" it must be the only one.

    Args:
        own: What the model wrote, plain, without its thinking and its quotations.
        sources: The texts that the model was given.
    """
    alone = stated_alone(own, sources)
    claim = alone and _CLAIM.fullmatch(alone[1])
    if not alone or not claim:
        return None
    before = alone[0]
    if not claim["lead"] and before:
        others = {found["one"] for found in _CLAIM.finditer(before)}
        stated = claim["wins"] or claim["mine"] or claim["tie"]
        if not stated or not others <= {claim["one"]}:
            return None
    return "tie" if claim["tie"] else claim["one"]
