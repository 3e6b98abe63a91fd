"""NeMo Gym's resources server: `/verify` for one rollout, `/compare` for several of one prompt."""

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict

from longrm.serving import wire
from longrm.types import message_text


class ResponsesParams(wire.ClientBody):
    """The request that the policy answered, in the format of the Responses API."""

    model_config = ConfigDict(extra="allow", frozen=True)

    input: str | wire.Several[dict[str, Any]]
    instructions: str | None = None


class VerifyBody(wire.ClientBody):
    """A rollout: request and response in the format of the Responses API. All of it is sent back."""

    model_config = ConfigDict(extra="allow", frozen=True)

    responses_create_params: ResponsesParams
    response: dict[str, Any]


class CompareBody(wire.ClientBody):
    """A conversation and several responses to it; the principle is ignored, as the model has its own."""

    conversation_history: wire.Several[wire.ChatMessage]
    response_objs: wire.Several[dict[str, Any]]
    principle: str | None = None


def _verify_requests(body: VerifyBody) -> list[wire.ScoreRequest]:
    params = body.responses_create_params
    turns = [{"role": "user", "content": params.input}] if isinstance(params.input, str) else params.input
    if not all(isinstance(turn.get("role"), str) for turn in turns):
        raise wire.Failure("invalid", "input has an item that is not a message: only messages can be scored")
    messages = [{"role": turn["role"], "content": message_text(turn)} for turn in turns]
    if params.instructions is not None:
        messages.insert(0, {"role": "system", "content": params.instructions})
    response = _response_text(body.response)
    if not response:
        raise wire.Failure("unscored", "the response has no message with text: there is nothing to score")
    return [wire.ScoreRequest(messages, [response])]


def _response_text(response: Mapping[str, Any]) -> str:
    """The text of all messages of a response, without its reasoning and its tool calls."""
    output = response.get("output")
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        raise wire.Failure("invalid", "a response must have an output: a list of items of the Responses API")
    return "".join(message_text(item) for item in output if item.get("type", "message") == "message")


_QUESTION = {"role": "user", "content": "Capital of France?"}
_MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Paris."}]}

NEMO_GYM = (
    wire.Route(
        "/verify",
        VerifyBody,
        _verify_requests,
        lambda body, results, model: {
            **body.model_dump(exclude_unset=True),
            "reward": results[0].scores[0],
        },
        {"responses_create_params": {"input": [_QUESTION]}, "response": {"output": [_MESSAGE]}},
    ),
    wire.Route(
        "/compare",
        CompareBody,
        lambda body: [
            wire.ScoreRequest(
                wire.messages_in(body.conversation_history), list(map(_response_text, body.response_objs))
            )
        ],
        lambda body, results, model: {
            "rewards": wire.all_scores(results),
            "comparison_results": None,
            "metrics": None,
        },
        {"conversation_history": [_QUESTION], "response_objs": [{"output": [_MESSAGE]}]},
    ),
)
