"""Whether an explanation argues for another verdict than the one it comes with: a failure of generative reward models.

Only plain statements about the whole count, such as "Response B is more accurate overall", or one score for each
response. Sentences that negate, suppose, weigh or speak of one aspect are passed over. What is found is therefore a
lower bound on the contradictions there are.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import permutations
from string import ascii_uppercase as LETTERS

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_DECORATION = re.compile(r"[*_#`]+|^\s*(?:[-•]|\d+[.)])\s+")
_MARKER = re.compile(r"\\?\[\\?\[[^\[\]\\]*\\?\]\\?\]")
_LEAD = re.compile(
    r"\s*(?:(?:overall|therefore|thus|hence|so|but|however|finally|clearly|in (?:conclusion|summary|short)|"
    r"as a result|based on (?:the|this|my) (?:above )?(?:analysis|evaluation|comparison|evidence)|"
    r"i (?:would )?(?:think|believe|say|conclude|judge|find)(?: that)?|it is clear that|(?:my )?(?:final )?"
    r"(?:verdict|judgment|conclusion)(?: is)?(?: that)?)(?:\s*[,:;-]\s*|\s+))*",
    re.IGNORECASE,
)
_UNSURE = re.compile(
    r"\b(?:not|no|never|neither|nor|cannot|if|unless|whether|might|may|could|were|but|although|though|while|"
    r"whereas|despite|yet|however|claims?|argues?|says|states)\b|n['’]t|\?",
    re.IGNORECASE,
)

_ONE = r"(?:the )?(?:(?:response|assistant|answer|candidate) )?(?P<one>(?-i:[A-Z]))\b(?:['’]s (?:response|answer))?"
_OTHER = _ONE.replace("<one>", "<other>")
_DEGREE = (
    r"(?:(?:significantly|slightly|much|clearly|far|considerably|marginally|somewhat|still|overall|the) )*"
)
_NOUN = r"(?: response| answer| one| choice| of the two)?"
_AGAINST = rf"(?: (?:than|to|over) (?:{_OTHER}|the other(?: response| answer| one)?))?(?: overall)?"
_STOP = r"(?=\s*(?:[.,;:!(]|$|because\b|since\b|due to\b))"
_BETTER, _MORE, _BEST = (
    re.compile(claim + _AGAINST + _STOP, re.IGNORECASE)
    for claim in (
        rf"{_ONE} (?:is|was) {_DEGREE}(?:better|superior|stronger|preferable){_NOUN}",
        rf"{_ONE} (?:is|was) {_DEGREE}more \w+(?: and \w+)?{_NOUN}",
        rf"(?:I (?:would |clearly |slightly )*(?:prefer|choose|pick) {_ONE}|"
        rf"{_ONE.replace('<one>', '<best>')} (?:wins|(?:is|was) {_DEGREE}(?:best|winner){_NOUN}))",
    )
)
_SCORE_OF = re.compile(
    r"\b(?P<one>(?-i:[A-Z]))\b(?:\s*[:=(–—-]\s*| (?:gets|receives|deserves|scores) (?:an? )?)(?:score\s*[:=]?\s*)?"
    r"(?P<score>\d+(?:\.\d+)?)\s*(?:/|out of)\s*10\b",
    re.IGNORECASE,
)
_WHOLE_SCORE = re.compile(
    r"(?:\b(?:overall|final|total) (?:score|rating)(?: is| of| would be)?\s*:?\s*|\b(?:give|rate|score) (?:this|the|it)"
    r"(?: response| answer)?(?: an?| at| with)*(?: score of| rating of)? |\bdeserves (?:an? )?(?:score of )?)"
    r"(?P<score>\d+(?:\.\d+)?)\b(?:\s*(?:/|out of)\s*(?P<most>\d+))?",
    re.IGNORECASE,
)


def argues_otherwise(explanation: str, points: Sequence[float]) -> bool | None:
    """Whether the last statement about some two responses is against the verdict; None where none is made.

    The explanation is what the judge wrote without its thinking and without quotations, and `points` what the verdict
    gives each response; more is better.
    """
    count = len(points)
    stated = [*_by_scores(explanation, count), *_by_words(explanation, count)]
    last = {frozenset(pair): pair for pair in stated}
    return any(points[better] <= points[worse] for better, worse in last.values()) if last else None


def names_another_score(explanation: str, score: float) -> bool | None:
    """Whether the last score that the explanation gives the whole response is a point or more from the verdict.

    None where it gives no such score.
    """
    named = [
        float(match["score"])
        for sentence in _sentences(explanation)
        if not _UNSURE.search(sentence)
        for match in _WHOLE_SCORE.finditer(sentence)
        if match["most"] in (None, "10")
    ]
    return abs(named[-1] - score) >= 1 if named else None


def _sentences(explanation: str) -> Iterator[str]:
    for sentence in _SENTENCE.split(_MARKER.sub("", explanation)):
        yield " ".join(_DECORATION.sub("", sentence).split())


def _by_words(explanation: str, count: int) -> Iterator[tuple[int, int]]:
    """Pairs (better, worse) that sentences state."""
    for sentence in _sentences(explanation):
        claim = _LEAD.sub("", sentence, count=1)
        if _UNSURE.search(claim):
            continue
        best = _BEST.match(claim)
        if best:
            winner = LETTERS.index(best["one"] or best["best"])
            yield from ((winner, other) for other in range(count) if winner < count and other != winner)
            continue
        better = _BETTER.match(claim) or ("overall" in sentence.lower() and _MORE.match(claim))
        if better and (better["other"] or count == 2):
            one = LETTERS.index(better["one"])
            other = LETTERS.index(better["other"]) if better["other"] else 1 - one
            if one != other and {one, other} <= set(range(count)):
                yield one, other


def _by_scores(explanation: str, count: int) -> Iterator[tuple[int, int]]:
    """Pairs (better, worse) by scores out of 10, if every response is given exactly one."""
    found = [
        (LETTERS.index(match["one"]), float(match["score"])) for match in _SCORE_OF.finditer(explanation)
    ]
    scores = dict(found)
    if len(found) == len(scores) == count and set(scores) == set(range(count)):
        yield from ((one, other) for one, other in permutations(scores, 2) if scores[one] > scores[other])
