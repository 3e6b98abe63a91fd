"""longrm's own format: a prompt and its responses, or a list of such bodies."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field, RootModel

from longrm.serving import wire
from longrm.types import as_messages


class PromptToScore(wire.StrictBody):
    """A prompt and its responses.

    Attributes:
        prompt: A user's text, messages, or a text that a chat template rendered.
        responses: At least one, each a text or messages.
        model: Ignored: the server has one model.
        explanations: Whether the answer has what a generative reward model wrote.
        cut: What may be cut out of `context` if the prompt does not fit; by default nothing is.
        context: The part of the prompt that may be cut, word for word.
        cache_salt: Cached prefixes are shared only between requests of the same salt.
        tools: The tools that the prompt offers, as `{"type": "function", "function": {...}}`.
        steps: Whether the only response is a trajectory, whose turns of the assistant are scored one by one.
    """

    prompt: str | wire.Several[wire.ChatMessage]
    responses: wire.Several[str | wire.Several[wire.ChatMessage]] = Field(min_length=1)
    model: str | None = None
    explanations: bool = False
    cut: Literal["middle", "left", "right"] | None = None
    context: str | None = None
    cache_salt: wire.Salt = ""
    tools: wire.Several[dict[str, Any]] | None = None
    steps: bool = False


class ScoreBody(RootModel[PromptToScore | wire.Several[PromptToScore]]):
    """One prompt, or a list of them."""


def _prompts(body: ScoreBody) -> list[PromptToScore]:
    return body.root if isinstance(body.root, list) else [body.root]


def _requests(body: ScoreBody) -> list[wire.ScoreRequest]:
    return [_request(item) for item in _prompts(body)]


def _request(item: PromptToScore) -> wire.ScoreRequest:
    options: dict[str, Any] = {
        "cut": item.cut,
        "cache_salt": item.cache_salt,
        "tools": wire.tools_in(item.tools),
    }
    prompt = wire.text_or_messages(item.prompt)
    responses = [wire.text_or_messages(response) for response in item.responses]
    if not item.steps:
        return wire.ScoreRequest(prompt, responses, context=item.context, **options)
    if len(responses) != 1 or isinstance(responses[0], str) or item.context is not None:
        raise wire.Failure("invalid", "steps needs one response, a list of messages, and no context")
    before = as_messages(prompt, "user")
    return wire.steps_request([*before, *responses[0]], len(before), **options)


def _answer(body: ScoreBody, results: Sequence[wire.ScoreResult], model: str) -> Any:
    answers = []
    for item, result in zip(_prompts(body), results, strict=True):
        answer: dict[str, Any] = {
            "model": model,
            "scores": list(result.scores),
            "order": result.order,
            "usage": {
                "prompt_tokens": result.prompt_tokens,
                "cached_tokens": result.cached_tokens,
                "total_tokens": result.total_tokens,
            },
            "seconds": round(result.seconds, 6),
        }
        if result.cut is not None:
            answer["cut"] = asdict(result.cut)
        if item.explanations:
            answer["explanation"] = result.explanation
        if result.failure is not None:
            answer["error"] = {"type": result.failure.kind, "message": result.failure.message}
        answers.append(answer)
    return answers if isinstance(body.root, list) else answers[0]


_EXAMPLE = {"prompt": "What is the capital of France?", "responses": ["Paris.", "Rome, I think."]}

NATIVE = (wire.Route("/v1/scores", ScoreBody, _requests, _answer, _EXAMPLE),)
