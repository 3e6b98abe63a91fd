import pytest

from longrm.auditing import as_text, audit
from longrm.auditing.trajectories import trajectory_problems
from longrm.data.fields import messages_of

pytest.importorskip("datasketch")

ASK = {"role": "user", "content": "Is it warm in Oslo?"}
DONE = {"role": "assistant", "content": "Yes."}


def call(arguments, identity="a"):
    function = {"name": "weather", "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": identity, "type": "function", "function": function}],
    }


def result(identity="a", content="21 degrees"):
    return {
        "role": "tool",
        "content": content,
        **({} if identity is None else {"tool_call_id": identity}),
    }


GOOD = [ASK, call({"city": "Oslo"}), result(), DONE]


def kinds(*messages):
    return [kind for kind, _ in trajectory_problems(messages_of(list(messages), "chosen", "assistant"))]


@pytest.mark.parametrize(
    "messages",
    [
        GOOD,
        [ASK, DONE],
        [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, *GOOD],
        [ASK, call('{"city": "Oslo"}'), result(None), DONE],
        [ASK, call({}, "b"), call(None, "a"), result("a"), result("b"), DONE],
        [ASK, call({"city": "Oslo"})],
    ],
)
def test_sound_trajectories_have_no_problem(messages):
    assert kinds(*messages) == []


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([ASK, result(), DONE], ["results_without_call"]),
        ([ASK, result(), call({}), DONE], ["results_without_call"]),
        ([*GOOD[:3], result(), DONE], ["results_without_call"]),
        ([ASK, call({}), result("b"), DONE], ["results_without_call"]),
        ([ASK, call({}), result(None), result(None), DONE], ["results_without_call"]),
        ([ASK, call('{"city": '), result(), DONE], ["arguments_not_json"]),
        ([ASK, call(""), result(), DONE], ["arguments_not_json"]),
        ([ASK, call("[1]"), result(), DONE], ["arguments_not_json"]),
        ([ASK, call([1]), result(), DONE], ["arguments_not_json"]),
        ([ASK, {"role": "critic", "content": "Hm."}, DONE], ["unknown_roles"]),
        (
            [{"role": "User", "content": "?"}, result(), call("x")],
            ["unknown_roles", "results_without_call", "arguments_not_json"],
        ),
    ],
)
def test_each_problem_is_found(messages, found):
    assert kinds(*messages) == found


def test_an_audit_counts_rows_and_names_the_message(put):
    rows = [
        {"id": "good", "prompt": [ASK], "chosen": GOOD[1:], "rejected": "No."},
        {"id": "result", "prompt": [ASK], "chosen": GOOD[1:], "rejected": [result("z"), result("y"), DONE]},
        {"id": "both", "prompt": [ASK], "chosen": [call("{"), DONE], "rejected": [call("["), DONE]},
        {"id": "role", "prompt": [{"role": "human", "content": "?"}], "chosen": "a", "rejected": "b"},
    ]
    found = audit(put("a.jsonl", *rows))
    counts = {
        name: found.findings[name] for name in ("results_without_call", "arguments_not_json", "unknown_roles")
    }
    assert {name: one.count for name, one in counts.items()} == dict.fromkeys(counts, 1), "rows, not messages"
    examples = {name: one.examples[0] for name, one in counts.items()}
    assert examples["results_without_call"].startswith("result: response 2, message 2 ")
    assert examples["arguments_not_json"].startswith("both: response 1, message 2 ")
    assert examples["unknown_roles"].startswith("role: response 1, message 1 ")
    assert "results without call: 1" in as_text(found)
    # Without a tool there is nothing to look for, but roles are always checked.
    plain = audit(put("b.jsonl", {"prompt": "?", "chosen": "a", "rejected": "b"})).findings
    assert "results_without_call" not in plain
    assert plain["unknown_roles"].count == 0
    imitated = put("c.jsonl", {"prompt": [ASK], "completion": [result(), DONE]})
    assert audit(imitated).findings["results_without_call"].count == 1
