import pytest

from longrm.errors import DataError
from longrm.types import text_of

PAIR = {  # the columns of its README, by hand
    "task": "Long-context_Reasoning",
    "subtask": "Sequential-Drop",
    "ctx_length": "16k",
    "question": "John took the milk. John left the milk. How many objects does John carry?",
    "chosen": "<memory>He left it.</memory> None.",
    "rejected": "<memory>He took it.</memory> One.",
}


def test_a_pair_has_its_task_setting_and_length(put, bench):
    loaded = bench(f"memrewardbench:{put('rows.jsonl', PAIR, {**PAIR, 'ctx_length': 8192})}")
    pair, other = loaded.comparisons
    assert loaded.rule == ""
    assert (pair.id, pair.ranks) == ("Long-context_Reasoning/1", (1, 2))
    assert [text_of(response) for response in pair.responses] == [PAIR["chosen"], PAIR["rejected"]]
    assert pair.metadata == {
        "task": "Long-context_Reasoning",
        "subtype": "Sequential-Drop",
        "length": 16384,
    }
    assert other.metadata["length"] == 8192
    assert (pair.context, pair.question) == ((), None)  # one text holds both
    assert pair.group == other.group


@pytest.mark.parametrize("name", ["data/{}.jsonl", "data/{}/train.jsonl"])
def test_a_folder_of_the_three_configurations_is_one_benchmark(name, put, bench, tmp_path):
    for task in ("Long-context_Reasoning", "Long-form_Generation", "Multi-turn_Dialogue_Understanding"):
        put(name.format(task), {**PAIR, "task": task}, {**PAIR, "task": task, "subtask": "Parallel"})
    found = list(bench(f"memrewardbench:{tmp_path}/data").comparisons)
    assert [pair.id.split("/")[1] for pair in found] == ["1", "2", "3", "4", "5", "6"]
    assert len({pair.metadata["task"] for pair in found}) == 3


def test_a_length_that_is_not_told_is_measured(put, bench):
    (pair,) = bench(f"memrewardbench:{put('rows.jsonl', {**PAIR, 'ctx_length': None})}").comparisons
    assert pair.metadata["length"] == 32  # 17 words and marks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": None}, "field 'question'"),
        ({"task": None}, "field 'task'"),
        ({"subtask": None}, "field 'subtask'"),
        ({"ctx_length": "long"}, "field 'ctx_length'"),
        ({"chosen": 3}, "field 'chosen'"),
        ({"chosen": ...}, "field 'chosen'"),
    ],
)
def test_what_is_no_row_is_named_and_may_be_skipped(change, message, put, bench, counts):
    changed = {name: value for name, value in {**PAIR, **change}.items() if value is not ...}
    path = put("rows.jsonl", changed, PAIR)
    with pytest.raises(DataError, match=f"line 1, {message}"):
        bench(f"memrewardbench:{path}")
    loaded = bench(f"memrewardbench:{path}", on_bad_row="skip")
    assert [pair.id for pair in loaded.comparisons] == ["Long-context_Reasoning/2"]
    assert counts(loaded) == {"unreadable_rows": 1}


def test_pairs_that_nobody_can_rate_are_counted(put, bench, counts):
    rows = [{**PAIR, "chosen": " "}, {**PAIR, "rejected": PAIR["chosen"]}, PAIR]
    loaded = bench(f"memrewardbench:{put('rows.jsonl', *rows)}")
    assert [pair.id for pair in loaded.comparisons] == ["Long-context_Reasoning/3"]
    assert counts(loaded) == {"empty_responses": 1, "identical_responses": 1}
