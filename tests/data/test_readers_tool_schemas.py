"""A column of tools becomes the tools that a prompt offers, and is written back."""

import json

import pytest

from longrm.data import read, read_demonstrations, write
from longrm.data.training_rows import open_rows, tokenize_rows
from tests.data.trajectories import ANSWERED, PLAIN, PROMPT, TOOLS, WRITTEN_HERE, pair_of_tokenizers

PAIR = {"prompt": [*PROMPT], "chosen": [*ANSWERED], "rejected": [*PLAIN], "id": "a"}
CANDIDATES = {"prompt": [*PROMPT], "candidates": [[*ANSWERED], [*PLAIN]], "id": "a"}
NATIVE = {"prompt": [*PROMPT], "responses": [[*ANSWERED], [*PLAIN]], "ranks": [1, 2], "id": "a", "group": "g"}
FUNCTIONS = [tool["function"] for tool in TOOLS]


@pytest.mark.parametrize("row", [PAIR, CANDIDATES, NATIVE], ids=["trl", "candidates", "native"])
@pytest.mark.parametrize(
    "given", [[*TOOLS], FUNCTIONS, json.dumps(FUNCTIONS)], ids=["schemas", "functions", "json"]
)
def test_every_format_reads_tools_and_rows_are_written_without_loss(row, given, put, tmp_path):
    (read_row,) = read(put("rows.jsonl", row | {"tools": given}))
    comparison = read_row.comparison
    assert comparison.tools == TOOLS
    assert comparison.responses == (ANSWERED, PLAIN)
    assert "tools" not in comparison.metadata
    for name in ("again.jsonl", "again.parquet"):
        write(tmp_path / name, [comparison])
        assert [one.comparison for one in read(tmp_path / name)] == [comparison]


@pytest.mark.parametrize("given", [None, "", " ", [], "[]"])
def test_no_tools(given, put):
    (read_row,) = read(put("rows.jsonl", PAIR | {"tools": given}))
    assert read_row.comparison.tools == ()


def test_a_shared_prompt_ends_before_a_turn_of_the_assistant(put):
    failed = (*ANSWERED[:1], {**ANSWERED[1], "content": "no answer"}, PLAIN[0])
    row = {"chosen": [*PROMPT, *ANSWERED], "rejected": [*PROMPT, *failed], "id": "a"}
    (read_row,) = read(put("rows.jsonl", row))
    assert read_row.comparison.prompt == PROMPT, "and not behind the call, whose results differ"
    assert read_row.comparison.responses == (ANSWERED, failed)


@pytest.mark.parametrize("kind", ["comparison", "demonstration"])
def test_training_reads_the_tools_and_counts_no_results(kind, put):
    ours, theirs = pair_of_tokenizers(WRITTEN_HERE["hermes"])
    row = PAIR if kind == "comparison" else {"prompt": [*PROMPT], "completion": [*ANSWERED], "id": "a"}
    whole = theirs.apply_chat_template([*PROMPT, *ANSWERED], tools=[*TOOLS])["input_ids"]
    found = {}
    for name, tools in (("with", [*TOOLS]), ("without", None)):
        rows = open_rows(put("rows.jsonl", row | {"tools": tools}), kind)
        found[name] = next(tokenize_rows(rows, ours)).tokens
        assert "degrees: 21" not in ours.decode(
            [found[name].responses[0][place] for place in found[name].completion_tokens[0]]
        )
    assert [*found["with"].prompt, *found["with"].responses[0]] == whole
    assert [*found["without"].prompt, *found["without"].responses[0]] != whole


def test_demonstrations_have_tools(put):
    (row,) = read_demonstrations(
        put("rows.jsonl", {"prompt": "Is it warm?", "completion": [*ANSWERED], "tools": FUNCTIONS})
    )
    assert row.demonstration.tools == TOOLS
