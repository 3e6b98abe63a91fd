import re

import pytest

from longrm.errors import DataError
from longrm.types import Criterion, text_of


def edge(better: int, worse: int) -> dict:
    sides = ({"response_id": name, "response": f"answer {name}", "label": []} for name in (better, worse))
    return dict(zip(("chosen", "rejected"), sides, strict=True))


# Response 0 follows both parts, 1 and 2 one each, 3 none: a diamond, in which 1 and 2 are not compared.
LABELS = ([1, 1], [1, 0], [0, 1], [0, 0])
EDGES = ((0, 1), (0, 2), (0, 3), (1, 3), (2, 3))
ITEM = {
    "id": 679,
    "response_generation_model": "M",
    "instruction_type": "Multi_Turn",
    "messages": [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Two words, in capitals."},
    ],
    "checklist": ["Two words ", "In capitals"],
    "constraint_type": [{"item_id": 0, "item": "Two words", "constraint_categories": ["Format"]}],
    "responses": [
        {"response_id": name, "response": f"answer {name}", "labels": labels}
        for name, labels in enumerate(LABELS)
    ],
    "preference_graph": [{"pair_id": number, **edge(*ends)} for number, ends in enumerate(EDGES)],
}


def test_every_edge_is_a_pair_of_the_items_group(put, bench):
    loaded = bench(f"if-rewardbench:{put('rows.jsonl', ITEM)}")
    pairs = list(loaded.comparisons)
    assert loaded.rule == "if-rewardbench"
    assert [pair.id for pair in pairs] == ["679#0>1", "679#0>2", "679#0>3", "679#1>3", "679#2>3"]
    assert {(pair.group, pair.ranks) for pair in pairs} == {("679", (1, 2))}
    assert [text_of(response) for response in pairs[3].responses] == ["answer 1", "answer 3"]
    assert len(pairs[3].prompt) == 3
    assert pairs[3].metadata == {
        "task": "Multi_Turn",
        "instruction_type": "Multi_Turn",
        "response_generation_model": "M",
        "constraint_type": ITEM["constraint_type"],
        "labels": [[1, 0], [0, 0]],
        "length": 16,
    }
    assert pairs[3].rubrics == (Criterion("Two words"), Criterion("In capitals"))


def test_edges_are_as_the_file_has_them_and_none_is_added(put, bench):
    chain = {**ITEM, "preference_graph": [edge(0, 1), edge(1, 3)]}
    found = bench(f"if-rewardbench:{put('rows.jsonl', chain)}").comparisons
    assert [pair.id for pair in found] == ["679#0>1", "679#1>3"]  # 0 > 3 follows, but is no edge


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"preference_graph": [edge(0, 1), edge(1, 2), edge(2, 0)]}, "preference_graph"),
        ({"preference_graph": [edge(0, 9)]}, "preference_graph[0]"),
        ({"preference_graph": []}, "preference_graph"),
        ({"preference_graph": [edge(0, 1), edge(0, 1)]}, "id"),
        ({"responses": [*ITEM["responses"], ITEM["responses"][0]]}, "responses"),
        ({"responses": [{"response": "x"}]}, "responses[0].response_id"),
        ({"checklist": ["x", ""]}, "checklist[1].criterion"),
        ({"instruction_type": "Twisted"}, "instruction_type"),
    ],
)
def test_an_invalid_field_is_named(change, field, put, bench):
    with pytest.raises(DataError, match=re.escape(f"line 1, field '{field}'")):
        bench(f"if-rewardbench:{put('rows.jsonl', {**ITEM, **change})}")


def test_a_circular_item_is_skipped_as_a_whole_and_counted_once(put, bench, counts):
    circular = {**ITEM, "id": 1, "preference_graph": [edge(0, 3), edge(3, 0)]}
    path = put("rows.jsonl", circular, ITEM)
    loaded = bench(f"if-rewardbench:{path}", on_bad_row="skip")
    assert [pair.group for pair in loaded.comparisons] == ["679"] * 5
    assert counts(loaded) == {"unreadable_rows": 1}


def test_only_the_edges_of_an_empty_response_are_left_out(put, bench, counts):
    responses = [*ITEM["responses"][:3], {**ITEM["responses"][3], "response": ""}]
    loaded = bench(f"if-rewardbench:{put('rows.jsonl', {**ITEM, 'responses': responses})}")
    assert [pair.id for pair in loaded.comparisons] == ["679#0>1", "679#0>2"]
    assert counts(loaded) == {"empty_responses": 3}
