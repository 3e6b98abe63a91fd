import pytest

from longrm.benchmarks.rewardbench import SECTIONS
from longrm.errors import DataError
from longrm.types import text_of

PAIR = {
    "prompt": "Say hi.",
    "chosen": "Hi!",
    "chosen_model": "one",
    "rejected": "No.",
    "rejected_model": "two",
    "subset": "mt-bench-easy",
    "id": 7,
}
FOUR = {
    "id": "12",
    "prompt": "When?",
    "chosen": ["Today."],
    "rejected": ["Never.", "Yesterday.", "Soon."],
    "num_correct": 1,
    "num_incorrect": 3,
    "total_completions": 4,
    "models": ["a", "b", "c", "d"],
    "subset": "Factuality",
}
REF = {"id": "ref:3", "prompt": "One?", "chosen": ["red"], "rejected": ["cow", "two"], "subset": "Ties"}
TIED = {**REF, "id": "tied:3", "prompt": "A color?", "chosen": ["red", "blue"]}


def test_a_pair_has_its_section_and_subset(put, bench):
    loaded = bench(f"rewardbench:{put('rb.jsonl', PAIR)}")
    (pair,) = loaded.comparisons
    assert loaded.rule == "rewardbench"
    assert (pair.id, pair.ranks) == ("mt-bench-easy/7", (1, 2))
    assert [text_of(response) for response in pair.responses] == ["Hi!", "No."]
    assert pair.metadata == {
        "task": "Chat",
        "subtype": "mt-bench-easy",
        "chosen_model": "one",
        "rejected_model": "two",
        "length": 4,
    }


def test_the_sections_hold_the_published_subsets():
    # Lambert et al. 2024, table 1: 23 subsets, of which five each make Chat and Safety.
    assert {section: len(subsets) for section, subsets in SECTIONS.items()} == {
        "Chat": 5,
        "Chat Hard": 6,
        "Safety": 5,
        "Reasoning": 7,
    }
    assert len({subset for subsets in SECTIONS.values() for subset in subsets}) == 23


def test_a_repeated_id_is_numbered(put, bench):
    loaded = bench(f"rewardbench:{put('rb.jsonl', PAIR, {**PAIR, 'prompt': 'Again.'})}")
    # Numbered from the start again at every iteration.
    assert [pair.id for pair in loaded.comparisons] == ["mt-bench-easy/7", "mt-bench-easy/7#2"]


def test_unrateable_pairs_are_left_out_and_counted(put, bench, counts):
    rows = [{**PAIR, "id": 1, "chosen": " "}, {**PAIR, "id": 2, "rejected": "Hi!"}, {**PAIR, "id": 3}]
    loaded = bench(f"rewardbench:{put('rb.jsonl', *rows)}")
    assert [pair.id for pair in loaded.comparisons] == ["mt-bench-easy/3"]
    assert counts(loaded) == {"empty_responses": 1, "identical_responses": 1}
    assert loaded.audit.findings["empty_responses"].examples[0].endswith("rb.jsonl, line 1")


@pytest.mark.parametrize(
    ("name", "row", "field"),
    [
        ("rewardbench", PAIR | {"subset": "hep-cobol"}, "subset"),
        ("rewardbench-2", FOUR | {"subset": "Chat"}, "subset"),
        ("rewardbench-2", FOUR | {"subset": "Ties"}, "id"),
        ("rewardbench-2", FOUR | {"rejected": []}, "rejected"),
        ("rewardbench-2", FOUR | {"chosen": "Today."}, "chosen"),
    ],
)
def test_an_invalid_field_is_named(name, row, field, put, bench):
    with pytest.raises(DataError, match=f"line 1, field '{field}'"):
        bench(f"{name}:{put('rb.jsonl', row)}")


def test_the_best_of_four(put, bench):
    loaded = bench(f"rewardbench-2:{put('rb2.jsonl', FOUR)}")
    (four,) = loaded.comparisons
    assert loaded.rule == "rewardbench-2"
    assert (four.id, four.ranks, four.metadata["task"]) == ("12", (1, 2, 2, 2), "Factuality")
    assert text_of(four.responses[0]) == "Today."


def test_ties_keep_their_ids_and_share_a_group(put, bench):
    ref, tied = bench(f"rewardbench-2:{put('rb2.jsonl', REF, TIED)}").comparisons
    assert (ref.id, ref.ranks, ref.metadata["subtype"]) == ("ref:3", (1, 2, 2), "ref")
    assert (tied.id, tied.ranks, tied.metadata["subtype"]) == ("tied:3", (1, 1, 2, 2), "tied")
    assert ref.group == tied.group == "Ties/3"


def test_a_repeated_item_is_named_and_may_be_skipped(put, bench, counts):
    path = put("rb2.jsonl", FOUR, REF, FOUR)
    with pytest.raises(DataError, match="line 3, field 'id': '12' is also at .*line 1"):
        list(bench(f"rewardbench-2:{path}").comparisons)
    loaded = bench(f"rewardbench-2:{path}", on_bad_row="skip")
    assert [item.id for item in loaded.comparisons] == ["12", "ref:3"]
    assert counts(loaded)["unreadable_rows"] == 1
