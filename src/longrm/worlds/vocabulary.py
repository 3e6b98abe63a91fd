"""Every word and sentence form of the worlds of sentences. A change here changes all data: raise `VERSION`.

Every sentence is seven words and a full stop, so that with the `words` tokenizer it is `SENTENCE` tokens.
"""

VERSION = "1"
SENTENCE = 8
"""Tokens of a sentence with the `words` tokenizer: seven words and the full stop."""


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FIRST = _split("Al Bar Cor Dal El Far Gar Hal Jor Kel Lan Mar Nor Or Per Quin Ros Sel Tal Var")
_LAST = _split("adan afin ago alda amir anor bek bira dun dola esk eth igan imo inda oban olin ora ulo wen")

ENTITIES = tuple(first + last for first in _FIRST for last in _LAST)
"""The 400 people that facts are about; no other word of a context is one of these."""

VALUES = _split(
    """
    anchor basket beaver bottle branch bucket butter button camera candle canvas carpet carrot castle cherry
    coffee copper cotton cradle donkey dragon engine falcon fiddle finger flower garlic ginger goblet guitar
    hammer helmet jacket kettle ladder magnet marble mirror napkin needle orange oyster paddle parrot pebble
    pencil pepper pillow planet pocket potato rabbit ribbon rocket saddle salmon shovel silver spider sponge
    thread turtle violin walnut
    """
)
"""The 64 six-letter nouns that are access codes; fillers never name one."""

RECORDS = (
    "The access code of {entity} is {value}.",
    "Our notes say that {entity} has {value}.",
    "In the old ledger {entity} holds {value}.",
    "It was agreed that {entity} keeps {value}.",
)
"""What a context states about one entity. The value always is two words after the entity."""

LINK = "{entity} works together with {partner} in town."
"""What a context states about two partners."""

FILLERS = (
    "The {person} walked slowly to the {place}.",
    "A {kind} {person} waited near the {place}.",
    "Rain fell on the {kind} {place} again.",
    "Nobody visited the {kind} {place} that {day}.",
    "On {day} the {place} was rather {kind}.",
    "Every {day} the {person} cleaned the {place}.",
    "The {person} and my {relative} talked quietly.",
    "Some {kind} music came from the {place}.",
    "We saw a {kind} {person} last {day}.",
)
"""Sentences that state nothing about any entity: 6,288 distinct ones with the slots below."""

SLOTS = {
    "person": _split(
        "baker barber doctor driver farmer gardener painter plumber sailor tailor teacher writer"
    ),
    "place": _split(
        "bakery chapel garden harbor library market meadow museum square station theater village"
    ),
    "kind": _split("charming cheerful curious famous gentle gloomy lively lonely modest quiet strange tiny"),
    "relative": _split("aunt brother cousin father mother neighbor sister uncle"),
    "day": _split("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
}

QUESTION = "Question: What is the access code of {subject}?"
ANSWER = "The access code of {subject} is {value}."
QUESTION_MANY = "Question: Name {number} people and the access code of {subject}."
CLAIM = "{subject} has {value}"
"""One of the m claims of an answer to `QUESTION_MANY`; they are joined as "A, B and C."."""

NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}
"""How `QUESTION_MANY` writes m; more than seven claims a response would need more than 64 values."""

VERDICTS = _split("[[ ]] A B 0 10 Score :")
"""The words of judging prompts and verdicts that are not the world's own."""
