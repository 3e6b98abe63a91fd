"""Problems of trajectories with tools: chat templates render them, or fail on them, without naming the row."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from longrm.reading import parse_json, short
from longrm.types import Message

ROLES = ("system", "developer", "user", "assistant", "tool")
"""The roles of OpenAI's messages, which chat templates know."""


def uses_tools(messages: Sequence[Message]) -> bool:
    """Whether there is a tool call or a tool result."""
    return any(message.get("tool_calls") or message["role"] == "tool" for message in messages)


def trajectory_problems(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yields the kind and the description of every problem; messages are numbered from 1.

    A result answers an earlier call without a result: the one with its `tool_call_id`, or the first if it has none. A
    call without a result is not a problem: a trajectory may end with one.
    """
    open_calls: list[Any] = []  # their ids
    for number, message in enumerate(messages, start=1):
        role = message["role"]
        if role not in ROLES:
            yield "unknown_roles", f"message {number} has the role {short(role)}"
        for call in message.get("tool_calls") or ():
            open_calls.append(call.get("id"))
            function = call.get("function", call)
            if not _is_object(function.get("arguments")):
                arguments = f"{short(function['name'])} with {short(function['arguments'])}"
                yield "arguments_not_json", f"message {number} calls {arguments}"
        if role == "tool":
            answered = message.get("tool_call_id")
            if answered in open_calls:
                open_calls.remove(answered)
            elif open_calls and not answered:
                open_calls.pop(0)
            else:
                named = f" of the call {short(answered)}" if answered else ""
                yield "results_without_call", f"message {number} is a result{named}"


def _is_object(arguments: Any) -> bool:
    try:
        found = parse_json(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return False
    return found is None or isinstance(found, Mapping)
