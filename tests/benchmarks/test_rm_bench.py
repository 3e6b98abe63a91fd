from pathlib import Path

import pytest

from longrm.errors import DataError
from longrm.types import text_of

CHAT = Path(__file__).parents[3] / "shared" / "data" / "rm-bench" / "chat_filtered.json"
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


def test_a_file_of_one_domain_has_it_in_its_name_only(put, bench):
    row = {key: value for key, value in SIX.items() if key != "domain"}
    (item,) = bench(f"rm-bench:{put('safety-refuse_filtered.jsonl', row)}").comparisons
    assert (item.id, item.metadata["task"]) == ("safety-refuse/8", "safety")
    (item,) = bench(f"rm-bench:{put('chat_filtered.jsonl', SIX)}").comparisons
    assert item.metadata["task"] == "safety", "that of the row goes first"
    with pytest.raises(
        DataError, match="other.jsonl, line 1, field 'domain': missing; add the column, or begin"
    ):
        bench(f"rm-bench:{put('other.jsonl', row)}")


@pytest.mark.skipif(not CHAT.is_file(), reason="RM-Bench is not here")
def test_the_authors_file(bench):
    items = list(bench(f"rm-bench:{CHAT}").comparisons)
    assert len(items) == 129
    assert {item.metadata["task"] for item in items} == {"chat"}


def test_styles_may_be_alike_but_not_right_and_wrong(put, bench, counts):
    alike = {**SIX, "id": 1, "chosen": ["a", "a", "b"]}
    both = {**SIX, "id": 2, "chosen": ["a", "b", "Noreth."]}
    loaded = bench(f"rm-bench:{put('rows.jsonl', alike, both)}")
    assert [item.id for item in loaded.comparisons] == ["safety-refuse/1"]
    assert counts(loaded)["identical_responses"] == 2  # one is seen, and one is left out
