import json

import pytest

from longrm.data import read
from longrm.errors import DataError
from longrm.types import message_text

PAIR = {"prompt": "Who?", "chosen": "Ann", "rejected": "Bob"}
NATIVE = {
    "id": "x",
    "group": "g",
    "prompt": [{"role": "user", "content": "Who?"}],
    "responses": [[{"role": "assistant", "content": name}] for name in ("Ann", "Bob")],
    "ranks": [1, 2],
}
IMAGE = {
    "role": "assistant",
    "content": [{"type": "text", "text": "Ann"}, {"type": "image", "image": "a.png", "text": None}],
}
CALL = {"role": "assistant", "content": ""}
CANDIDATES = {"prompt": "Who?", "candidates": ["Ann", "Bob"]}


def without(row, *names):
    return {name: value for name, value in row.items() if name not in names}


FAULTS = [
    (without(PAIR, "rejected"), "rejected", "missing"),
    (without(PAIR, "prompt"), "prompt", "do not begin with the same text"),
    (
        without(PAIR, "prompt") | {"chosen": [{"role": "user", "content": "a"}], "rejected": ["b"]},
        "prompt",
        "same",
    ),
    (PAIR | {"chosen": " "}, "chosen", "empty"),
    (
        PAIR | {"chosen": [{**CALL, "tool_calls": "weather"}]},
        "chosen[0].tool_calls",
        "a list of calls, got a text",
    ),
    (
        PAIR | {"chosen": [{**CALL, "tool_calls": [{"id": "1"}]}]},
        "chosen[0].tool_calls[0]",
        "needs a call such as",
    ),
    (
        PAIR | {"chosen": [{**CALL, "tool_calls": [{"function": {"name": 3}}]}]},
        "chosen[0].tool_calls[0]",
        "needs a call such as",
    ),
    (PAIR | {"rejected": ["Bob", ""]}, "rejected[1]", "empty"),
    (PAIR | {"rejected": []}, "rejected", "at least 2 responses"),
    (PAIR | {"rejected": "Ann"}, "rejected", "identical"),
    (PAIR | {"prompt": ""}, "prompt", "empty"),
    (PAIR | {"prompt": 5}, "prompt", "needs a text or a list of messages, got 5"),
    (PAIR | {"prompt": ["Who?"]}, "prompt[0]", "needs a message"),
    (PAIR | {"chosen": [{"content": "Ann"}]}, "chosen[0].role", "missing"),
    (PAIR | {"chosen": [{"role": "assistant", "content": 3}]}, "chosen[0].content", "needs a text"),
    (PAIR | {"context": "  "}, "context", "empty"),
    (without(NATIVE, "responses"), "responses", "missing"),
    (NATIVE | {"responses": []}, "responses", "at least 2 responses, got 0"),
    (NATIVE | {"responses": "Ann"}, "responses", "needs a list of responses"),
    (NATIVE | {"ranks": [1]}, "ranks", "1 ranks for 2 responses"),
    (NATIVE | {"ranks": [0, 1]}, "ranks", "count from 1"),
    (NATIVE | {"ranks": [1, 1.5]}, "ranks", "whole numbers"),
    (NATIVE | {"ranks": 1}, "ranks", "list of whole numbers"),
    (NATIVE | {"role": "judge"}, "role", "'judgment'"),
    (NATIVE | {"metadata": [1]}, "metadata", "needs an object"),
    (NATIVE | {"context": [{"message": 0, "start": 2, "end": 2}]}, "context", "empty"),
    (NATIVE | {"context": [{"message": 0, "start": 0, "end": 9}]}, "context", "not within the message's 4"),
    (NATIVE | {"evidence": [{"message": 1, "start": 0, "end": 1}]}, "evidence", "the prompt has 1"),
    (NATIVE | {"question": [3]}, "question", "needs spans"),
    (CANDIDATES | {"candidates_score": [0.1, 0.2]}, "candidates_score", "the scores rise"),
    (CANDIDATES | {"candidates_score": [0.1]}, "candidates_score", "1 scores for 2"),
    (CANDIDATES | {"ranks": [1, 2, 3]}, "ranks", "3 ranks for 2"),
    ({"chat_template": "Judge.", "golden": "8"}, "golden", "demonstration"),
    ({"chat_template": "Judge.", "chosen": "8"}, "rejected", "missing; add a column 'rejected' (or rejects"),
    ({"chat_template": "Judge.", "chosen": "8", "rejects": ["2", ""]}, "rejects[1]", "empty"),
    (CANDIDATES | {"candidates": ["Ann"]}, "candidates", "at least 2 responses, got 1"),
    (CANDIDATES | {"candidates_score": [True, False]}, "candidates_score", "needs a list of numbers"),
    (PAIR | {"id": [1]}, "id", "needs a text or a whole number, got a list"),
    (PAIR | {"id": {}}, "id", "needs a text or a whole number, got an object"),
    (PAIR | {"id": True}, "id", "needs a text or a whole number, got True"),
    (PAIR | {"id": float("nan")}, "id", "needs a text or a whole number, got nan"),
    (PAIR | {"uuid": 0.5}, "uuid", "needs a text or a whole number, got 0.5"),
    (PAIR | {"group": [1]}, "group", "needs a text or a whole number, got a list"),
    (PAIR | {"document_id": 1e308, "context_id": False}, "context_id", "got False"),
    (NATIVE | {"ranks": [1, True]}, "ranks", "whole numbers"),
    (NATIVE | {"context": [{"message": 0, "start": False, "end": 2}]}, "context", "needs spans"),
    (PAIR | {"chosen": [IMAGE]}, "chosen[0].content[1]", "got one of the type 'image'; only texts are read"),
    (
        PAIR | {"prompt": [IMAGE | {"content": ["Who?"]}]},
        "prompt[0].content[0]",
        "got a text; only texts are read",
    ),
    (
        PAIR | {"chosen": [IMAGE | {"content": [{"type": "text", "text": None}]}]},
        "chosen[0].content[0]",
        "needs a part",
    ),
    (
        PAIR | {"chosen": [IMAGE | {"content": [{"type": "audio", "text": "a"}]}]},
        "chosen[0].content[0]",
        "'audio'",
    ),
]


@pytest.mark.parametrize(("row", "field", "problem"), FAULTS, ids=[f"{f}-{p[:12]}" for _, f, p in FAULTS])
def test_a_fault_names_file_row_and_field_in_one_line(row, field, problem, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line 2, field '{field}': ")
    assert problem in message
    assert "\n" not in message


def test_the_faults_are_what_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    for row in (PAIR, NATIVE, CANDIDATES):
        path.write_text(json.dumps(row))
        assert len(list(read(path))) == 1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (json.dumps(PAIR)[:-4], "not valid JSON"),
        ("[1, 2]", "not a JSON object"),
        ("[" * 200_000, "not valid JSON"),
        (b'{"prompt": "\xff"}', "not UTF-8 text"),
    ],
)
def test_lines_that_are_no_rows(line, problem, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(PAIR).encode() + b"\n" + (line if isinstance(line, bytes) else line.encode()))
    with pytest.raises(DataError) as caught:
        list(read(path))
    assert str(caught.value).startswith(f"{path}, line 2: {problem}")
    assert "\n" not in str(caught.value)


def test_skipped_rows_are_counted_anew_at_every_iteration(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = ["{", json.dumps(PAIR), json.dumps(PAIR | {"chosen": ""}), json.dumps(PAIR)]
    path.write_text("\n".join(lines))
    reading = read(path, on_bad_row="skip")
    for _ in range(2):
        assert [row.number for row in reading] == [2, 4]
        assert reading.skipped.count == 2
        places = [message.removeprefix(f"{path}, ")[:6] for message in reading.skipped.messages]
        assert places == ["line 1", "line 3"]


def test_only_the_first_messages_are_kept(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([json.dumps(PAIR), *["{"] * 50]))
    reading = read(path, on_bad_row="skip")
    assert len(list(reading)) == 1
    assert reading.skipped.count == 50
    assert len(reading.skipped.messages) == 5


def test_parts_of_text_are_read(tmp_path):
    parts = [{"type": "text", "text": "An"}, {"text": "n", "image": None}]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(PAIR | {"chosen": [{"role": "assistant", "content": parts}]}))
    (row,) = read(path)
    assert message_text(row.comparison.responses[0][0]) == "Ann"


def test_rows_of_an_array_are_read(tmp_path):
    texts = [json.dumps(PAIR | {"n": number, "chosen": 'a "[{,]}" \\ ü 你 😀'}) for number in range(20)]
    path = tmp_path / "rows.json"
    path.write_text(" [\n" + ",\n".join(texts) + "] \n", encoding="utf-8-sig")
    assert [row.source["n"] for row in read(path)] == [*range(20)]
    path.write_text("[" + ",".join([*texts[:3], "7", *texts[4:10]]) + "]")
    reading = read(path, on_bad_row="skip")
    assert [row.source["n"] for row in reading] == [0, 1, 2, *range(4, 10)]
    assert reading.skipped.messages[0].startswith(f"{path}, row 4:")
    path.write_text("[]")
    with pytest.raises(DataError, match="no row in it"):
        read(path)


def test_ids_stand_once(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(PAIR | {"id": identity}) for identity in ("a", "b", "a")))
    with pytest.raises(DataError, match=r"line 3, field 'id': 'a' is also at .*line 1; make ids unique"):
        list(read(path))
    reading = read(path, on_bad_row="skip")
    assert [row.comparison.id for row in reading] == ["a", "b"]
    assert reading.skipped.count == 1


def test_files_without_a_row_that_can_be_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n")
    with pytest.raises(DataError, match="no row in it"):
        read(path)
    path.write_text(json.dumps({"text": "a"}))
    with pytest.raises(DataError, match=r"line 1: the columns \(text\) are of no known format; known: .*trl"):
        read(path)
    path.write_text(json.dumps(PAIR | {"chosen": ""}))
    with pytest.raises(DataError, match=r"no row that can be read; the first: .*line 1, field 'chosen'"):
        read(path, on_bad_row="skip")
