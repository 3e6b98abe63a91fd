"""Plan-RewardBench (arXiv 2604.08178): pairs of trajectories that use tools."""

import ast
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from longrm.benchmarks.benchmark import (
    BenchmarkRequest,
    LoadedBenchmark,
    bucket,
    load_rows,
    measure_with,
    numbered,
    rateable_responses,
)
from longrm.data.fields import FileRow, messages_of, name_of, required, tools_of
from longrm.data.formats import split_conversations
from longrm.reading import FieldError, parse_json, short
from longrm.types import Comparison, Message, text_of

SPLIT = "_lcp_bucket"
"""The column of the part of the benchmark that a pair is from, such as planning_multi_hard."""

_COLUMNS = {"chosen": ("chosen",), "reject": ("reject", "rejected")}


def load_plan_rewardbench(request: BenchmarkRequest) -> LoadedBenchmark:
    """The pairs as `SPLIT/UUID`; the task is the split.

    A uuid that is repeated in a split is numbered from its second pair on, and is the group of all of them. The prompt
    is what both trajectories begin with, up to a turn of the assistant: the task at least. The length is that of the
    whole pair: tools, prompt and both trajectories.
    """
    measure = measure_with(request.source.tokenizer)

    def convert(row: FileRow, number: int, names: Counter[str]) -> Comparison:
        split, uuid = name_of(row, SPLIT), name_of(row, "uuid")
        given = {field: openai_messages(*required(row, *columns)) for field, columns in _COLUMNS.items()}
        prompt, _ = split_conversations(list(given.values()))
        responses = {field: messages[len(prompt) :] for field, messages in given.items()}
        tools = tools_of(row.get("tools"))
        texts = [json.dumps(tools), text_of(prompt), *map(text_of, responses.values())]
        return Comparison(
            id=numbered(f"{split}/{uuid}", names),
            group=uuid,
            prompt=prompt,
            responses=rateable_responses(responses, (1, 2)),
            ranks=(1, 2),
            metadata={"task": split, "length": bucket(measure("\n\n".join(texts)))},
            tools=tools,
        )

    return load_rows(request, convert)


def openai_messages(field: str, given: Any) -> tuple[Message, ...]:
    """A trajectory with tool calls and results in OpenAI's form.

    Consecutive `tool_call` messages become the calls of one assistant turn, which holds the text before them, if any.
    Arguments that are JSON become objects. A `tool_response` answers the first call without an answer.

    Raises:
        FieldError: It is not a list of messages, or a call cannot be read.
    """
    if isinstance(given, Mapping):
        given, field = given.get("messages"), f"{field}.messages"
    messages: list[dict[str, Any]] = []
    unanswered: list[dict[str, Any]] = []
    calls = 0
    for index, message in enumerate(messages_of(given, field, "assistant")):
        if message["role"] == "tool_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            function = _function(message.get("content"), f"{field}[{index}].content")
            call = {"id": f"call{calls:05d}", "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
            unanswered.append(call)
            calls += 1
        elif message["role"] == "tool_response":
            answered: dict[str, Any] = (
                unanswered.pop(0) if unanswered else {"id": "", "function": {"name": ""}}
            )
            name = message.get("name") or answered["function"]["name"]
            messages.append({**message, "role": "tool", "name": name, "tool_call_id": answered["id"]})
        else:
            messages.append(dict(message))
    return tuple(messages)


def _function(content: Any, field: str) -> dict[str, Any]:
    """The name and the arguments of a call, which is written as Python or as JSON."""
    call = _literal(content) if isinstance(content, str) else content
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
        raise FieldError(
            field, f"must be a call such as {{'name': ..., 'arguments': ...}}, got {short(content)}"
        )
    arguments = call.get("arguments", {})
    unpacked = _literal(arguments) if isinstance(arguments, str) else arguments
    return {"name": call["name"], "arguments": unpacked if isinstance(unpacked, Mapping) else arguments}


def _literal(text: str) -> Any:
    """The value of a text in JSON or Python; None if it is neither."""
    try:
        return parse_json(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
