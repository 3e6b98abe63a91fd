"""Rows that cannot be read: the error names file, row and field, or the row is counted as skipped."""

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
TURN = {"role": "assistant", "content": ""}
CANDIDATES = {"prompt": "Who?", "candidates": ["Ann", "Bob"]}
JUDGMENTS = {"chat_template": "Judge.", "chosen": "8", "rejects": ["2"]}


def without(row, *names):
    return {name: value for name, value in row.items() if name not in names}


BAD_ROWS = [
    (without(PAIR, "rejected"), "rejected"),
    (without(PAIR, "prompt"), "prompt"),
    # The prompt is in another column, and the responses begin alike.
    ({"question": "Who?", "chosen": "It was Ann.", "rejected": "It was Bob."}, "prompt"),
    (PAIR | {"chosen": " "}, "chosen"),
    (PAIR | {"chosen": [{**TURN, "tool_calls": [{"id": "1"}]}]}, "chosen[0].tool_calls[0].name"),
    (PAIR | {"chosen": [{"content": "Ann"}]}, "chosen[0].role"),
    (PAIR | {"chosen": [{**TURN, "content": 3}]}, "chosen[0].content"),
    (
        PAIR | {"chosen": [{**TURN, "content": [{"type": "image", "text": "a"}]}]},
        "chosen[0].content[0].type",
    ),
    (PAIR | {"rejected": ["Bob", ""]}, "rejected[1]"),
    (PAIR | {"rejected": []}, "rejected"),
    (PAIR | {"rejected": "Ann"}, "rejected"),  # identical to the chosen one
    (PAIR | {"prompt": ["Who?"]}, "prompt[0]"),
    (PAIR | {"context": "  "}, "context"),
    (PAIR | {"context": "Whom?"}, "context"),  # not in the prompt
    (PAIR | {"id": [1]}, "id"),
    (PAIR | {"uuid": 0.5}, "uuid"),
    (PAIR | {"margin": float("nan")}, "margin"),
    (PAIR | {"tools": "look"}, "tools"),
    (PAIR | {"tools": ["look"]}, "tools[0]"),
    (NATIVE | {"responses": "Ann"}, "responses"),
    (NATIVE | {"ranks": [1]}, "ranks"),
    (NATIVE | {"ranks": [0, 1]}, "ranks"),
    (NATIVE | {"role": "judge"}, "role"),
    (NATIVE | {"metadata": [1]}, "metadata"),
    (NATIVE | {"context": [{"message": 0, "start": 2, "end": 2}]}, "context"),
    (NATIVE | {"context": [{"message": 0, "start": 0, "end": 9}]}, "context"),
    (NATIVE | {"evidence": [{"message": 1, "start": 0, "end": 1}]}, "evidence"),
    (CANDIDATES | {"candidates": ["Ann"]}, "candidates"),
    (CANDIDATES | {"candidates_score": [0.1, 0.2]}, "candidates_score"),  # best first, but rising
    (CANDIDATES | {"candidates_score": [True, False]}, "candidates_score"),
    ({"chat_template": "Judge.", "golden": "8"}, "golden"),  # a demonstration
    (without(JUDGMENTS, "rejects"), "rejected"),
]


@pytest.mark.parametrize(("row", "field"), BAD_ROWS)
def test_an_error_names_file_row_and_field_in_one_line(row, field, put):
    path = put("rows.jsonl", row)
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}, line 1, field '{field}': ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", [json.dumps(PAIR)[:-4].encode(), b"[1, 2]", b'{"prompt": "\xff"}'])
def test_a_line_that_is_not_a_json_object_is_an_error(line, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(PAIR).encode() + b"\n" + line)
    with pytest.raises(DataError, match=r"rows\.jsonl, line 2"):
        list(read(path))


def test_skipped_rows_are_counted_at_every_iteration_and_the_first_messages_kept(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "\n".join(["{", json.dumps(PAIR), json.dumps(PAIR | {"chosen": ""}), *["{"] * 8, json.dumps(PAIR)])
    )
    reader = read(path, on_bad_row="skip")
    for _ in range(2):
        assert [row.number for row in reader] == [2, 12]
        assert reader.skipped.count == 10
        places = [message.removeprefix(f"{path}, ")[:6] for message in reader.skipped.messages]
        assert places == ["line 1", "line 3", "line 4", "line 5", "line 6"]


def test_lone_surrogates_become_question_marks_and_text_parts_are_read(put):
    parts = [{"type": "text", "text": "Bo"}, {"text": "b", "image": None}]
    row = PAIR | {"chosen": "Ann\ud83d", "rejected": [{"role": "assistant", "content": parts}]}
    (found,) = read(put("rows.jsonl", row))
    assert [message_text(one[0]) for one in found.comparison.responses] == ["Ann?", "Bob"]


def test_rows_of_an_array_are_read(tmp_path):
    texts = [json.dumps(PAIR | {"n": number, "chosen": 'a "[{,]}" \\ ü 你 😀'}) for number in range(20)]
    path = tmp_path / "rows.json"
    path.write_text(" [\n" + ",\n".join(texts) + "] \n", encoding="utf-8-sig")
    assert [row.source["n"] for row in read(path)] == [*range(20)]
    path.write_text("[" + ",".join([*texts[:3], "7", *texts[4:10]]) + "]")
    reader = read(path, on_bad_row="skip")
    assert [row.source["n"] for row in reader] == [0, 1, 2, *range(4, 10)]
    assert reader.skipped.messages[0].startswith(f"{path}, row 4:")


def test_ids_are_unique(put):
    path = put("rows.jsonl", *(PAIR | {"id": identity} for identity in ("a", "b", "a")))
    with pytest.raises(DataError, match=r"line 3, field 'id'.*line 1"):
        list(read(path))
    reader = read(path, on_bad_row="skip")
    assert [row.comparison.id for row in reader] == ["a", "b"]
    assert reader.skipped.count == 1


def test_files_without_a_readable_row(put):
    with pytest.raises(DataError, match=r"rows\.jsonl"):
        read(put("rows.jsonl"))
    with pytest.raises(DataError, match=r"line 1.*text.*trl"):
        read(put("rows.jsonl", {"text": "a"}))
    with pytest.raises(DataError, match="line 1, field 'chosen'"):
        read(put("rows.jsonl", PAIR | {"chosen": ""}), on_bad_row="skip")


def test_rows_that_only_training_reads_name_their_objective(put):
    rows = {
        "sft": {"prompt": "a", "completion": "b"},
        "grpo": {"prompt": "a", "gold": "A", "order": [0, 1], "id": "x", "group": "g", "format": "pairwise"},
    }
    for objective, row in rows.items():
        with pytest.raises(DataError, match=f"line 1.* longrm train {objective}"):
            read(put("rows.jsonl", row))
    columns = rows["grpo"] | {"responses": ["b", "c"], "ranks": [1, 2]}
    (found,) = read(put("rows.jsonl", columns))
    assert found.comparison.metadata["gold"] == "A"
