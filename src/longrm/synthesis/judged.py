"""What a judge's answer says of one response; both stages of training data read it alike."""

from dataclasses import dataclass

from longrm.clients import Completion, Request
from longrm.judging.answers import answer_of
from longrm.judging.pointwise import Pointwise
from longrm.types import Outcome, Query, as_messages

_POINTWISE = Pointwise()


@dataclass(frozen=True, slots=True)
class Judged:
    """A judgment.

    Attributes:
        score: In points, a whole number from 0 to 10; None where none could be read.
        text: The analysis and the score as they were written; thinking is left out.
        contradicted: Whether the text argues for another score; None where nothing tells.
        reason: Why there is no score: an outcome, "unparsed" or "not_whole".
    """

    score: float | None
    text: str
    contradicted: bool | None = None
    reason: str = ""


def read_judgment(completion: Completion, request: Request, response: str) -> Judged:
    """Reads the answer to a request to judge one response. Only what the judge ended by itself has a score."""
    text = answer_of(completion.text).strip()
    if completion.outcome is not Outcome.ANSWERED:
        return Judged(None, text, reason=completion.outcome.value)
    query = Query("", request.messages, (as_messages(response, "assistant"),))
    reading = _POINTWISE.parse(completion.text, query)
    if reading is None:
        return Judged(None, text, reason=Outcome.UNPARSED.value)
    score = reading.values[0]
    if score != int(score):
        return Judged(None, text, reason="not_whole")
    return Judged(score, text, reading.contradicted)
