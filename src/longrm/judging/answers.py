"""Reads a judge's answer: its thoughts, its markup, and whether its explanation argues against its verdict."""

import html
import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import permutations
from string import ascii_uppercase as LETTERS

# ---- Thoughts ----

_TAG = (
    r"(?:(?i:<(?P<end>/)?(?:think(?:ing)?|thought|reasoning|\w+:think)>)|\[(?P<stop>/)?THINK\]|<\|(?:begin|(?P<over>end))_of_thought\|>"
    r"|<\|channel\|>(?:(?P<final>final)|\w+)[^<\n]*<\|message\|>)"  # the channels of gpt-oss
)
_THINKING = re.compile(_TAG)
_QUOTED_TAG = re.compile(rf"""["'`“‘]{re.sub(r"P<[a-z]+>", ":", _TAG)}["'`”’]""")


def thinking_tags(text: str) -> list[re.Match[str]]:
    """The tags that open and close thoughts; a tag in quotation marks is only mentioned."""
    mentioned = {match.start() + 1 for match in _QUOTED_TAG.finditer(text)}  # after the quotation mark
    return [tag for tag in _THINKING.finditer(text) if tag.start() not in mentioned]


def answer_of(text: str) -> str:
    """The text after the last thought; empty if a thought is not closed.

    A closing tag without an opening one counts: chat templates of reasoning models open the thought in the prompt.
    """
    tags = thinking_tags(text)
    if not tags:
        return text
    return text[tags[-1].end() :] if any(tags[-1].groups()) else ""


def opened_thought(prompt: str) -> str:
    """The opening tag, with the spaces after it, that a prompt ends with; empty if it does not leave a thought open."""
    last = next(reversed(thinking_tags(prompt)), None)
    if last is None or any(last.groups()) or prompt[last.end() :].strip():
        return ""
    return prompt[last.start() :]


# ---- Markup ----

_QUOTATION = re.compile(
    r"^(?P<fence>```|~~~)[^\n]*\n(?s:.*?)^(?P=fence)[ \t]*$"  # a code block
    r"|^[ \t]*>.*$"  # a block quote
    r"|\"[^\"\n]{0,999}\"|“[^”\n]{0,999}”|`[^`\n]{0,999}`",
    re.MULTILINE,
)
_BOX = re.compile(r"\\(?:boxed|fbox)\{(?:\\(?:text|math)\w*\{([^{}\n]*)\}|([^{}\n]*))\}")
_LABEL = re.compile(r"<(verdict|winner|decision|judge?ment|ranking|score|rating)>", re.IGNORECASE)
_MARKUP = re.compile(r"[*`$]|\\(?=[\[\]])|</?\|?[a-zA-Z]\w+\|?>")
_ARROW = re.compile(r"-{1,2}>|[→≻]")
_CHAIN = re.compile(r"\]\]\s*([<>=]+)\s*\[\[")
_BRACKETS = str.maketrans("【】", "[]")  # full width in Chinese and Japanese; NFKC keeps them


def plain(text: str) -> str:
    """A text without emphasis, boxes, tags and escapes. Arrows become ">", and [[B]] > [[A]] becomes [[B > A]]."""
    text = unicodedata.normalize("NFKC", html.unescape(text)).translate(_BRACKETS)
    text = _BOX.sub(lambda match: match[1] or match[2] or "", text)
    text = _LABEL.sub(r"\n\1: ", text)
    text = _MARKUP.sub(lambda match: " " if match[0][0] == "<" else "", text)
    return _CHAIN.sub(r" \1 ", _ARROW.sub(">", text))


def unquoted(text: str) -> str:
    """A text without code blocks, block quotes, inline code and text in double quotation marks."""
    return _QUOTATION.sub(" ", text)


def boxed(line: str) -> str | None:
    """The content of a LaTeX box that makes up a whole line."""
    box = _BOX.fullmatch(line.strip(" \t*.$"))
    return box and (box[1] or box[2] or "")


# ---- Contradictions ----
#
# Only plain overall statements count, such as "Response B is more accurate overall", or one score for each response.
# Sentences that negate, suppose, weigh or discuss one aspect are skipped, so the result is a lower bound.

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
_OVERALL_SCORE = re.compile(
    r"(?:\b(?:overall|final|total) (?:score|rating)(?: is| of| would be)?\s*:?\s*|\b(?:give|rate|score) (?:this|the|it)"
    r"(?: response| answer)?(?: an?| at| with)*(?: score of| rating of)? |\bdeserves (?:an? )?(?:score of )?)"
    r"(?P<score>\d+(?:\.\d+)?)\b(?:\s*(?:/|out of)\s*(?P<most>\d+))?",
    re.IGNORECASE,
)


def argues_otherwise(explanation: str, points: Sequence[float]) -> bool | None:
    """Whether the last statement about some pair of responses contradicts the verdict.

    Args:
        explanation: The judge's answer without thoughts and quotations.
        points: The verdict as one number a response, higher is better.

    Returns:
        None if the explanation makes no such statement.
    """
    count = len(points)
    stated = [*_pairs_by_scores(explanation, count), *_pairs_by_words(explanation, count)]
    last = {frozenset(pair): pair for pair in stated}
    return any(points[better] <= points[worse] for better, worse in last.values()) if last else None


def names_another_score(explanation: str, score: float) -> bool | None:
    """Whether the last overall score in an explanation is a point or more from the verdict; None if there is none."""
    named = [
        float(match["score"])
        for sentence in _sentences(explanation)
        if not _UNSURE.search(sentence)
        for match in _OVERALL_SCORE.finditer(sentence)
        if match["most"] in (None, "10")
    ]
    return abs(named[-1] - score) >= 1 if named else None


def _sentences(explanation: str) -> Iterator[str]:
    for sentence in _SENTENCE.split(_MARKER.sub("", explanation)):
        yield " ".join(_DECORATION.sub("", sentence).split())


def _pairs_by_words(explanation: str, count: int) -> Iterator[tuple[int, int]]:
    """Pairs (better, worse) that sentences state."""
    for sentence in _sentences(explanation):
        claim = _LEAD.sub("", sentence, count=1)
        if _UNSURE.search(claim):
            continue
        if best := _BEST.match(claim):
            winner = LETTERS.index(best["one"] or best["best"])
            yield from ((winner, other) for other in range(count) if winner < count and other != winner)
            continue
        better = _BETTER.match(claim) or ("overall" in sentence.lower() and _MORE.match(claim))
        if better and (better["other"] or count == 2):
            one = LETTERS.index(better["one"])
            other = LETTERS.index(better["other"]) if better["other"] else 1 - one
            if one != other and {one, other} <= set(range(count)):
                yield one, other


def _pairs_by_scores(explanation: str, count: int) -> Iterator[tuple[int, int]]:
    """Pairs (better, worse) by scores out of 10, if every response has exactly one."""
    found = [
        (LETTERS.index(match["one"]), float(match["score"])) for match in _SCORE_OF.finditer(explanation)
    ]
    scores = dict(found)
    if len(found) == len(scores) == count and set(scores) == set(range(count)):
        yield from ((one, other) for one, other in permutations(scores, 2) if scores[one] > scores[other])
