"""What a simulated model asks about a passage: the gap at the end of a sentence, which it fills when it sees it."""

import re

from longrm.data.chunking import words_of
from longrm.rng import Draws

_SENTENCE = re.compile(r"[^\s.!?。！？][^.!?。！？\n]*[.!?。！？]")
_LAST_WORD = re.compile(r"(\w+)\W*$")
_LEAST = 5  # words of a sentence that is asked about
_ASKING = 'Which word ends the sentence that begins "{}"?'
_ASKED = re.compile(re.escape(_ASKING).replace(r"\{\}", "(.+)"))
_OTHER = "quite another sentence"


def write_question(passage: str, draws: Draws, *, faulty: bool, readable: bool) -> str:
    """Asks for the last word of a drawn sentence of the passage, with the sentence as evidence.

    Where it is faulty, the evidence is another sentence, which stands nowhere; where it is not readable, its label is
    missing. A passage without a sentence of five words gets no question.
    """
    sentences = [part for part in _SENTENCE.findall(passage) if len(words_of(part)) >= _LEAST]
    if not sentences:
        return "There is nothing to ask about."
    sentence = draws.one(sentences)
    found = _LAST_WORD.search(sentence)
    assert found is not None, "a sentence has words"
    beginning = " ".join(sentence[: found.start()].split())
    evidence = f"{beginning} {_OTHER}." if faulty else " ".join(sentence.split())
    label = "Evidence: " if readable else ""
    return f"Question: {_ASKING.format(beginning)}\nAnswer: {found[1]}\n{label}{evidence}"


def fill_gap(question: str, shown: str) -> str | None:
    """The answer to such a question by what is shown; None to any other question."""
    asked = _ASKED.fullmatch(question.strip())
    if asked is None:
        return None
    beginning = r"\s+".join(map(re.escape, asked[1].split()))
    found = re.search(rf"{beginning}\s*(\w+)", shown)
    return found[1] if found else "unknown"
