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
    assert loaded.rule == "memrewardbench"
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


@pytest.mark.parametrize("name", ["{}.jsonl", "{}/train.jsonl"])
def test_rows_are_grouped_by_file_and_then_by_task(name, put, bench):
    row = {**PAIR, "task": "S-Drop", "subtask": "en"}
    del row["ctx_length"]
    file = put(name.format("Long-form_Generation"), row, {**row, "task": "S-Noise"})
    found = list(bench(f"memrewardbench:{file}").comparisons)
    assert [(pair.metadata["task"], pair.metadata["subtype"]) for pair in found] == [
        ("Long-form_Generation", "S-Drop"),
        ("Long-form_Generation", "S-Noise"),
    ]
    assert [pair.id for pair in found] == ["Long-form_Generation/1", "Long-form_Generation/2"]
    assert found[0].metadata["subtask"] == "en"
    assert found[0].metadata["length"] == 32  # measured


def test_one_task_in_two_files_is_two_settings(put, bench, tmp_path):
    for name in ("Long-form_Generation", "Long-context_Reasoning"):
        put(f"data/{name}.jsonl", {**PAIR, "task": "S-Drop"})
    found = bench(f"memrewardbench:{tmp_path}/data").comparisons
    assert [(pair.metadata["task"], pair.metadata["subtype"]) for pair in found] == [
        ("Long-context_Reasoning", "S-Drop"),
        ("Long-form_Generation", "S-Drop"),
    ]


def test_the_short_name_of_the_dialogues_is_their_configuration(put, bench):
    row = {**PAIR, "task": "Multi-turn_Dialogue", "subtask": "Mem0-Out"}
    (pair,) = bench(f"memrewardbench:{put('Multi-turn_Dialogue_Understanding.jsonl', row)}").comparisons
    assert (pair.metadata["task"], pair.metadata["subtype"]) == (
        "Multi-turn_Dialogue_Understanding",
        "Mem0-Out",
    )


def test_a_length_that_is_not_stated_is_measured(put, bench):
    (pair,) = bench(f"memrewardbench:{put('rows.jsonl', {**PAIR, 'ctx_length': None})}").comparisons
    assert pair.metadata["length"] == 32  # 17 words and marks


def test_a_missing_column_is_named(put, bench):
    row = {name: value for name, value in PAIR.items() if name != "chosen"}
    with pytest.raises(DataError, match="line 1, field 'chosen': missing; found only .*rejected"):
        bench(f"memrewardbench:{put('rows.jsonl', row)}")
