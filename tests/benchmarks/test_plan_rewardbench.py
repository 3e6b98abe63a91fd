"""Rows in the form of the benchmark's files: calls as Python or JSON, several at once, results in their order."""

import json

import pytest

from longrm.benchmarks.plan_rewardbench import openai_messages
from longrm.errors import DataError
from longrm.reading import FieldError

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TASK = {"role": "user", "content": "Is it warmer in Oslo or in Bergen?"}


def called(name: str, arguments: str, *, python: bool = True) -> dict[str, str]:
    call = {"name": name, "arguments": arguments}
    return {"role": "tool_call", "content": repr(call) if python else json.dumps(call)}


GOOD = [
    TASK,
    {"role": "assistant", "content": "I ask for both."},
    called("weather", '{"city": "Oslo"}'),
    called("weather", '{"city": "Bergen"}', python=False),
    {"role": "tool_response", "content": "21 degrees", "name": "weather"},
    {"role": "tool_response", "content": "17 degrees"},
    {"role": "assistant", "content": "In Oslo."},
]
BAD = [TASK, {"role": "assistant", "content": "In Bergen: I looked."}]
ROW = {
    "query": TASK["content"],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}],
    "uuid": "u-1",
    "chosen": {"messages": GOOD},
    "reject": {"messages": BAD},
    "_lcp_bucket": "planning_single_easy",
}


def openai_call(number: int, city: str) -> dict[str, object]:
    function = {"name": "weather", "arguments": {"city": city}}
    return {"id": f"call0000{number}", "type": "function", "function": function}


def test_trajectories_become_openais_messages(put, bench):
    loaded = bench(f"plan-rewardbench:{put('p.jsonl', ROW)}", tokenizer="words")
    (pair,) = loaded.comparisons
    assert loaded.rule == "plan-rewardbench"
    assert (pair.id, pair.group, pair.ranks) == ("planning_single_easy/u-1", "u-1", (1, 2))
    assert pair.tools == tuple(ROW["tools"])
    assert pair.prompt == (TASK,)
    assert pair.responses == (
        (
            {**GOOD[1], "tool_calls": [openai_call(0, "Oslo"), openai_call(1, "Bergen")]},
            {"role": "tool", "content": "21 degrees", "name": "weather", "tool_call_id": "call00000"},
            {"role": "tool", "content": "17 degrees", "name": "weather", "tool_call_id": "call00001"},
            GOOD[6],
        ),
        (BAD[1],),
    )
    assert pair.metadata["task"] == "planning_single_easy"


def test_the_length_is_that_of_the_whole_pair(put, bench):
    short = put("short.jsonl", ROW)
    longer = {**ROW, "reject": {"messages": [TASK, {"role": "assistant", "content": "No. " * 900}]}}
    many = {**ROW, "tools": ROW["tools"] * 60}
    paths = [short, put("long.jsonl", longer), put("many.jsonl", many)]
    lengths = [
        one.metadata["length"] for path in paths for one in bench(f"plan-rewardbench:{path}").comparisons
    ]
    assert lengths[0] < min(lengths[1:])
    assert max(lengths) < 16 * 900


def test_the_shared_beginning_is_the_prompt(put, bench):
    other = [*GOOD[:4], {**GOOD[4], "content": "an error"}, *GOOD[5:]]
    ended = [*GOOD, {"role": "user", "content": "Thanks."}, {"role": "assistant", "content": "Welcome."}]
    again = [*GOOD, {"role": "user", "content": "Thanks."}, {"role": "assistant", "content": "Bye."}]
    rows = [
        {**ROW, "reject": {"messages": other}},
        {**ROW, "chosen": {"messages": ended}, "rejected": {"messages": again}, "reject": None},
    ]
    first, second = bench(f"plan-rewardbench:{put('p.jsonl', *rows)}").comparisons
    assert first.prompt == (TASK,), "not behind a call whose results differ"
    assert [len(one) for one in first.responses] == [4, 4]
    roles = [message["role"] for message in second.prompt]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert second.responses == ((ended[-1],), (again[-1],))
    assert second.id == "planning_single_easy/u-1#2", "a uuid of several pairs is numbered"
    assert second.group == first.group


def test_arguments_that_are_not_json_stay_as_they_are():
    (_, message) = openai_messages("chosen", [TASK, called("weather", '{"city": ')])
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": '}


def test_a_result_without_a_call_stays():
    (_, message) = openai_messages("chosen", [TASK, {"role": "tool_response", "content": "x"}])
    assert message == {"role": "tool", "content": "x", "name": "", "tool_call_id": ""}


@pytest.mark.parametrize("content", ["weather(Oslo)", "[1]", "{'name': 3}", "(" * 500, None])
def test_a_call_that_cannot_be_read_is_an_error(content):
    with pytest.raises(FieldError, match=r"field 'chosen.messages\[1\].content'"):
        openai_messages("chosen", {"messages": [TASK, {"role": "tool_call", "content": content}]})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"chosen": {}}, "chosen.messages"),
        ({"reject": None}, "reject"),
        ({"uuid": None}, "uuid"),
        ({"reject": {"messages": [{"role": "user", "content": "Else?"}, BAD[1]]}}, "prompt"),
    ],
)
def test_an_invalid_field_is_named(change, field, put, bench):
    with pytest.raises(DataError, match=f"field '{field}'"):
        bench(f"plan-rewardbench:{put('p.jsonl', {**ROW, **change})}")


def test_identical_trajectories_are_left_out_and_counted(put, bench, counts):
    loaded = bench(f"plan-rewardbench:{put('p.jsonl', ROW, {**ROW, 'uuid': 'u-2', 'chosen': ROW['reject']})}")
    assert [one.id for one in loaded.comparisons] == ["planning_single_easy/u-1"]
    assert counts(loaded) == {"identical_responses": 1}
