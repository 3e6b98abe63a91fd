"""Verdicts that an answer ends with in a form of its own: a JSON object, a box, a sentence in quotation marks."""

import json
import re
from collections.abc import Set
from typing import Any

from longrm.judging.answers import BOX

_FENCE = re.compile(r"```\w*\Z")
_OBJECT = re.compile(r"[{\[]")
_TRIED = 50  # places from either end at which the JSON may begin
_WRAPPERS = frozenset({"result", "output", "evaluation", "judgment", "judgement", "final", "response"})
_LETTERS = re.compile(r"[^a-z]")

_AROUND_BOX = " \t\n.*$"
_SENTENCE_ENDS = ".!?:;)\"'。！？：）”"
_OF_A_VERDICT = re.compile(
    r"\b(?:verdict|winner|better|prefer\w*|judg\w*|decision|ranking|response|assistant)\b", re.IGNORECASE
)

# What the line above a form tells of others' words, unless its writer tells of the own ones.
_GIVEN = re.compile(
    r"\b(?:for )?(?:example|instance|expected|told|asked|sample|template|placeholder|says|said)\b|\be\.g\.",
    re.IGNORECASE,
)
_OF_OTHERS = re.compile(
    r"\b(?:closes|ends|concludes|writes|wrote|outputs|answers|returns|contains|adds|quotes|repeats|copies|claims|gives"
    r"|follows|following|like this)\b",
    re.IGNORECASE,
)
_BY_ME = re.compile(r"\b(?:I|my|here is|here's)\b", re.IGNORECASE)

_VERB = (
    r"conclude|choose|select|pick|decide|judge|rate|rank|give|assign|award|declare|output|end|finish|close|vote|settle|"
    r"prefer|say|answer|return|render|deliver|issue"
)
_NOUN = (
    r"verdict|judge?ment|decision|conclusion|choice|ranking|rating|score|answer|output|label|winner|urteil"
)
_THEN = r"(?:\s+(?:therefore|thus|hence|then|here|now|overall|also|final|at the end|in this case))*"
_OWN = re.compile(
    rf"\b(?:I|we)\s+(?:\w+,?\s+){{0,3}}(?:{_VERB})\b"
    rf"|\b(?:{_NOUN}){_THEN}(?:\s*:|\s+(?:is|lautet|es|(?:would|must|should) be)\b)"
    r"|\b(?:therefore|thus|hence|so)\b[,:]?\s*\Z|裁决|判断|判定|结论|选择|评分|排名",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"[\s.!。]*\Z|[.!。]?\s*[:;]|,?\s*(?:as|because|since|for|meaning|which means)\b", re.IGNORECASE
)
_SENTENCE = re.compile(r"[.!?]\s+|,\s*(?:and\s+)?(?=(?:so|therefore|thus|hence)\b)", re.IGNORECASE)
_NOT_OWN = re.compile(
    r"\b(?:if|unless|whether|otherwise|example|e\.g|format|form|template|expected|required|instruct\w*|prompt\w*|asks?|"
    r"asked|told|tells?|sa(?:ys|id)|claim\w*|argu\w*|wr[io]tes?|written|reads?|saw|quot\w*|repeat\w*|closes|ends|adds?|"
    r"inject\w*|tr(?:y|ies|ied|ying)|steer\w*|tempt\w*|initially|at first|would have|(?:I|we|verdict) (?:was|were)|"
    r"about to|until|between|whoever|someone|anyone|judges?(?<!I judge)|reader|grader|annotator|"
    r"of (?:response|assistant))\b|\A\W*(?:response|assistant|answer|candidate|model)\s+[A-Z]\s*:",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"\b(?:no|not|never|cannot|neither|nor|might|may|could|ought|have to|had to|instead|rather)\b|n['’]t\b[^,;]*\Z",
    re.IGNORECASE,
)


def json_at_end(answer: str) -> tuple[str, str, Any] | None:
    """The text before the JSON object that an answer ends with, the object as written, and what it holds."""
    end = _FENCE.sub("", answer.rstrip()).rstrip(" \t\n.")
    if not end.endswith(("}", "]")):
        return None
    for place in _starts(end):
        try:
            value, stop = _DECODER.raw_decode(end, place)
        except (ValueError, RecursionError):
            continue
        if stop == len(end):
            if type(value) is list and len(value) == 1:  # a list of one object
                value = value[0]
            return (
                (_FENCE.sub("", end[:place].rstrip()), end[place:], value)
                if isinstance(value, _Pairs)
                else None
            )
    return None


def values_under(keys: Set[str], value: Any) -> list[Any]:
    """What an object says under some keys, also within an object that only wraps it; keys are compared by letters."""
    if not isinstance(value, _Pairs):
        return []
    named = [(_LETTERS.sub("", key.lower()), inner) for key, inner in value]
    found = [inner for name, inner in named if name in keys and not isinstance(inner, _Pairs)]
    wrapped = [inner for name, inner in named if name in _WRAPPERS | keys and isinstance(inner, _Pairs)]
    return found or [said for inner in wrapped for said in values_under(keys, inner)]


def box_at_end(answer: str) -> tuple[str, str] | None:
    """The text before a box that is all of an answer's last line, and its content.

    None as well where the words before go on in the box, or do not speak of a verdict: the box may hold the
    answer to the question.
    """
    end = answer.rstrip(_AROUND_BOX).removesuffix("\\]").rstrip(_AROUND_BOX)
    last = next((box for box in BOX.finditer(end) if box.end() == len(end)), None)
    if last is None:
        return None
    before = end[: last.start()].rstrip("*$ \t")
    if before.rstrip().endswith("\\["):
        before = before.rstrip()[:-2].rstrip(" \t")
    if before and not before.endswith("\n"):
        return None
    line = before.rstrip().rpartition("\n")[2].strip()
    ended = not line or line.startswith("#") or line.rstrip("*_ ")[-1:] in _SENTENCE_ENDS
    if not ended or (line and not _OF_A_VERDICT.search(line)):
        return None
    return before, last[1] or last[2] or ""


def reports_others_words(before: str) -> bool:
    """Whether the last line before a form says that it is an example, or what another wrote."""
    line = before.rstrip().rpartition("\n")[2]
    return bool(_GIVEN.search(line) or (_OF_OTHERS.search(line) and not _BY_ME.search(line)))


def is_own_sentence(line: str, marker: re.Pattern[str]) -> bool:
    """Whether a line that was written with quotation marks states one verdict, as its writer's own."""
    matches = list(marker.finditer(line))
    if len(matches) != 1 or line.rstrip().endswith("?") or not _AFTER.match(line, matches[0].end()):
        return False
    sentence = _SENTENCE.split(line[: matches[0].start()])[-1]
    clause = re.split("[,;]", sentence)[-1]
    told_of_others = _NOT_OWN.search(sentence) or _NOT_OWN.search(line[matches[0].end() :])
    return bool(_OWN.search(sentence)) and not told_of_others and not _DENIED.search(clause)


class _Pairs(list[tuple[str, Any]]):
    """An object as its pairs: a key may come twice."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Pairs)


def _starts(text: str) -> list[int]:
    """Where the JSON may begin, outermost first: not every bracket is tried, for a text may be full of them."""
    places = [found.start() for found in _OBJECT.finditer(text)]
    return [*places[:_TRIED], *places[-_TRIED:]]
