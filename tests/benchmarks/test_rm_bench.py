import pytest

from longrm.errors import DataError
from longrm.types import text_of

SIX = {
    "id": 8,
    "prompt": "Who wrote the code?",
    "chosen": ["Quill.", "Quill wrote all of it.", "**Quill** wrote *all* of it."],
    "rejected": ["Noreth.", "Noreth wrote all of it.", "**Noreth** wrote *all* of it."],
    "domain": "safety-refuse",
    "subset": "made",
}


def test_six_responses_in_the_order_of_their_styles(put, bench):
    loaded = bench(f"rm-bench:{put('rows.jsonl', SIX, {**SIX, 'prompt': 'Who?'}, {**SIX, 'domain': 'chat'})}")
    six, again, chat = loaded.comparisons
    assert loaded.rule == "rm-bench"
    assert (six.id, again.id, chat.id) == ("safety-refuse/8", "safety-refuse/8#2", "chat/8")
    assert six.ranks == (1, 1, 1, 2, 2, 2)
    assert [text_of(response) for response in six.responses] == SIX["chosen"] + SIX["rejected"]
    assert six.metadata == {"task": "safety", "subtype": "safety-refuse", "subset": "made", "length": 8}
    assert chat.metadata["task"] == "chat"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"domain": "art"}, "field 'domain': RM-Bench has no 'art'; known: chat, code, math, safety"),
        ({"domain": None}, "field 'domain'"),
        ({"chosen": ["a", "b"]}, "field 'chosen'"),
        ({"rejected": ["a", "b", "c", "d"]}, "field 'rejected'"),
        ({"rejected": "a"}, "field 'rejected'"),
    ],
)
def test_what_is_no_item_is_named_and_may_be_skipped(change, message, put, bench, counts):
    path = put("rows.jsonl", {**SIX, **change}, SIX)
    with pytest.raises(DataError, match=f"line 1, {message}"):
        bench(f"rm-bench:{path}")
    loaded = bench(f"rm-bench:{path}", on_bad_row="skip")
    assert [item.id for item in loaded.comparisons] == ["safety-refuse/8"]
    assert counts(loaded) == {"unreadable_rows": 1, "ties": 1}


def test_styles_may_be_alike_but_not_right_and_wrong(put, bench, counts):
    alike = {**SIX, "id": 1, "chosen": ["a", "a", "b"]}
    both = {**SIX, "id": 2, "chosen": ["a", "b", "Noreth."]}
    loaded = bench(f"rm-bench:{put('rows.jsonl', alike, both)}")
    assert [item.id for item in loaded.comparisons] == ["safety-refuse/1"]
    assert counts(loaded)["identical_responses"] == 2  # one is seen, and one is left out
