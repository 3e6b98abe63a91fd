import pytest

from longrm.errors import DataError
from longrm.types import text_of

BEST = {
    "prompt": "Write about whales.",
    "chosen": ["Whales sing. " * 50],
    "rejected": ["Whales bark. " * 30, "Whales fly. " * 90, "No."],
    "subset": "writing",
    "id": 4,
    "num_correct": 1,
}
NEEDLE = {
    "word_count": 2000,
    "tagged_position": 0.25,
    "prompt": "Tell a story.",
    "chosen": ["Once. " * 40],
    "rejected": ["Once. " * 10 + "Nonce. " + "Once. " * 29],
}


def test_the_best_of_four(put, bench):
    loaded = bench(f"long-form-rewardbench:{put('rows.jsonl', BEST)}")
    (four,) = loaded.comparisons
    assert loaded.rule == "long-form-rewardbench"
    assert (four.id, four.ranks) == ("writing/4", (1, 2, 2, 2))
    assert [text_of(response) for response in four.responses] == BEST["chosen"] + BEST["rejected"]
    # The prompt has 4 tokens and the longest response 270: the response makes the length.
    assert four.metadata == {"task": "writing", "num_correct": 1, "length": 512}


def test_the_place_of_the_error_is_the_depth(put, bench):
    older = {**NEEDLE, "tagged_position": None, "tag_position": 1, "subset": "chat", "id": "x"}
    first, second = bench(f"long-form-rewardbench:{put('rows.jsonl', NEEDLE, older)}").comparisons
    assert (first.id, first.metadata["task"], first.metadata["depth"]) == ("needle/1", "needle", 0.25)
    assert first.metadata["word_count"] == 2000
    assert (second.id, second.metadata["task"], second.metadata["depth"]) == ("chat/x", "chat", 1)
    (without,) = bench(f"long-form-rewardbench:{put('rows.jsonl', BEST)}").comparisons
    assert "depth" not in without.metadata


def test_a_single_response_may_be_a_text(put, bench):
    rows = [BEST, {**BEST, "chosen": BEST["chosen"][0]}]
    listed, text = bench(f"long-form-rewardbench:{put('rows.jsonl', *rows)}").comparisons
    assert (listed.responses, listed.ranks) == (text.responses, text.ranks)


def test_repeated_ids_are_numbered(put, bench):
    rows = [BEST, {**BEST, "prompt": "Again."}, {**BEST, "subset": "chat"}]
    found = bench(f"long-form-rewardbench:{put('rows.jsonl', *rows)}").comparisons
    assert [item.id for item in found] == ["writing/4", "writing/4#2", "chat/4"]


@pytest.mark.parametrize(
    ("change", "field"),
    [({"subset": None}, "subset"), ({"chosen": 3}, "chosen"), ({"tagged_position": 25}, "depth")],
)
def test_an_invalid_field_is_named(change, field, put, bench):
    with pytest.raises(DataError, match=f"line 1, field '{field}'"):
        bench(f"long-form-rewardbench:{put('rows.jsonl', {**BEST, **change}, NEEDLE)}")
