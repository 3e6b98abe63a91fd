"""How a judge is asked to score one response, and what its answer says."""

from dataclasses import dataclass

from longrm.clients import Completion, Request
from longrm.judging.answers import answer_of
from longrm.judging.pointwise import Pointwise
from longrm.synthesis.model_requests import JudgeResponse, TaskRequest
from longrm.synthesis.rubrics import SCORE_LINE, Domain
from longrm.types import Message, Outcome, Query, as_messages

_POINTWISE = Pointwise()


@dataclass(frozen=True, slots=True)
class JudgeScore:
    """What a judge's answer says of one response.

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


def judging_messages(
    domain: Domain, task: JudgeResponse, tag: str = "", *, rubric: bool
) -> tuple[Message, ...]:
    """The prompt to judge a response, with the rubric for the judge that labels and without it for the row."""
    text = domain.prompt(task.language, task.context, task.question, task.response, tag=tag, rubric=rubric)
    return ({"role": "user", "content": text},)


def judge_request(
    domain: Domain,
    task: JudgeResponse,
    tag: str = "",
    *,
    max_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> TaskRequest:
    """Asks a judge about one response, alone, with the rubric."""
    messages = judging_messages(domain, task, tag, rubric=True)
    return TaskRequest(messages, max_tokens, temperature, seed, SCORE_LINE, task=task)


def read_judgment(completion: Completion, request: Request, response: str) -> JudgeScore:
    """Reads the answer to a request to judge one response. Only what the judge ended by itself has a score."""
    text = answer_of(completion.text).strip()
    if completion.outcome is not Outcome.ANSWERED:
        return JudgeScore(None, text, reason=completion.outcome.value)
    query = Query("", request.messages, (as_messages(response, "assistant"),))
    reading = _POINTWISE.parse(completion.text, query)
    if reading is None:
        return JudgeScore(None, text, reason=Outcome.UNPARSED.value)
    score = reading.values[0]
    if score != int(score):
        return JudgeScore(None, text, reason="not_whole")
    return JudgeScore(score, text, reading.contradicted)
