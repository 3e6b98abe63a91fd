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


def test_a_length_that_is_not_stated_is_measured(put, bench):
    (pair,) = bench(f"memrewardbench:{put('rows.jsonl', {**PAIR, 'ctx_length': None})}").comparisons
    assert pair.metadata["length"] == 32  # 17 words and marks


def test_a_missing_column_is_named(put, bench):
    row = {name: value for name, value in PAIR.items() if name != "chosen"}
    with pytest.raises(DataError, match="line 1, field 'chosen'"):
        bench(f"memrewardbench:{put('rows.jsonl', row)}")
