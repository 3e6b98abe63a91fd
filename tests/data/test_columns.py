"""Columns under other names, and prompts that are a context and a question."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from longrm.cli.commands import cli
from longrm.data import read, read_demonstrations, write_rows
from longrm.errors import ConfigError, DataError
from longrm.types import message_text

NAMED = {"prompt": "instruction", "chosen": "good", "rejected": "bad"}
ROWS = [
    {
        "prompt": f"Who holds key {n}?",
        "chosen": f"Ann holds key {n}.",
        "rejected": f"bucket {n}",
        "id": str(n),
    }
    for n in range(40)
]
THEIRS = [{NAMED.get(name, name): value for name, value in row.items()} for row in ROWS]
FLAG = "prompt=instruction,chosen=good,rejected=bad"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, rows in (("ours", ROWS), ("theirs", THEIRS)):
        write_rows(f"{name}.jsonl", rows)
    write_rows("theirs.parquet", THEIRS)
    import pandas

    pandas.DataFrame(THEIRS).to_csv("theirs.csv", index=False)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(cli, arguments, catch_exceptions=False, standalone_mode=False)


@pytest.mark.parametrize("name", ["theirs.jsonl", "theirs.parquet", "theirs.csv"])
def test_renamed_rows_are_the_rows_that_have_our_names(name, files):
    reading = read(name, columns=NAMED)
    assert reading.format == "trl"
    assert [row.comparison for row in reading] == [row.comparison for row in read("ours.jsonl")]
    assert [row.source for row in reading] == ROWS
    with pytest.raises(DataError, match="instruction, good, bad, id"):
        read(name)


def test_columns_can_change_places(files):
    swapped = read("ours.jsonl", columns={"chosen": "rejected", "rejected": "chosen"})
    assert [message_text(row.comparison.responses[0][0]) for row in swapped] == [r["rejected"] for r in ROWS]


@pytest.mark.parametrize(
    ("columns", "error", "named"),
    [
        ({"promt": "instruction"}, ConfigError, "'promt'.*'prompt'"),
        ({"chosen": "good", "rejected": "good"}, ConfigError, "'good'"),
        ({"chosen": ""}, ConfigError, "'chosen'"),
        (NAMED | {"length": "size"}, DataError, "line 1, field 'size'"),
        ({"prompt": "good", "id": "bad"}, DataError, "line 1, field 'id'"),
    ],
)
def test_columns_that_cannot_be_renamed_are_named(columns, error, named, files):
    with pytest.raises(error, match=named):
        list(read("theirs.jsonl", columns=columns))


@pytest.mark.parametrize("flag", ["prompt", "=instruction", "prompt=a,prompt=b", "prompt=a,chosen=a"])
def test_an_invalid_flag_is_an_error(flag, files):
    with pytest.raises(ConfigError, match="columns"):
        run("audit", "theirs.jsonl", "--columns", flag)


def test_every_command_of_rows_takes_them(files):
    judged = ("--model", "baseline:longest", "--columns", FLAG)
    run("score", *judged, "--data", "theirs.csv", "--out", "scored.jsonl")
    run("score", "--model", "baseline:longest", "--data", "ours.jsonl", "--out", "expected.jsonl")
    assert (files / "scored.jsonl").read_bytes() == (files / "expected.jsonl").read_bytes()
    run("rank", "--data", "scored.jsonl", "--pairs", "--out", "ranked.jsonl")  # under our names from here on
    run("rank", *judged, "--data", "theirs.jsonl", "--pairs", "--out", "again.jsonl")
    assert (files / "ranked.jsonl").read_bytes() == (files / "again.jsonl").read_bytes()
    run("filter", *judged, "--data", "theirs.parquet", "--min-margin", "1", "--out", "kept.jsonl")
    assert len((files / "kept.jsonl").read_text().splitlines()) == 40
    for name, flags in (("theirs.csv", ("--columns", FLAG)), ("ours.jsonl", ())):
        done = run("evaluate", "--model", "baseline:longest", "--bench", f"file:{name}", "--out", f"run-{name}",
                   *flags, "--json", "--set", "judging.resamples=100")  # fmt: skip
        summary = json.loads(done.stdout)
        assert summary["metrics"]["overall"]["pair_accuracy"]["value"] == 1.0
    with pytest.raises(ConfigError, match="--columns.*probe"):
        run("evaluate", "--model", "baseline:longest", "--bench", "probe", "--out", "p", "--columns", FLAG)


def test_training_reads_them_as_a_setting(files):
    from longrm.data.training_rows import digest_of, open_rows, tokenize_rows
    from longrm.training.settings import DataSettings
    from longrm.worlds.words_tokenizer import words_tokenizer

    data, tokenizer = (
        DataSettings.resolve(None, {"sources": [{"path": "theirs.csv", "columns": NAMED}]}),
        words_tokenizer(),
    )
    (file,) = data.files()
    theirs = open_rows(file.path, "comparison", columns=file.columns)
    ours = open_rows("ours.jsonl", "comparison")
    assert [row.tokens for row in tokenize_rows(theirs, tokenizer)] == [
        row.tokens for row in tokenize_rows(ours, tokenizer)
    ]
    flipped = NAMED | {"chosen": "bad", "rejected": "good"}
    other = open_rows(file.path, "comparison", columns=flipped)
    assert digest_of(other, tokenizer) != digest_of(theirs, tokenizer)


CONTEXT, QUESTION = "Ann holds key a. Who?", "Who?"


@pytest.mark.parametrize(
    "row",
    [
        {"chosen": "Ann", "rejected": "Bob"},
        {"chosen": [{"role": "assistant", "content": "Ann"}], "rejected": "Bob"},
        {"candidates": ["Ann", "Bob", "Cid"]},
        {"responses": ["Bob", "Ann"], "ranks": [2, 1]},
    ],
)
def test_context_and_question_make_a_prompt_with_known_parts(row, put):
    path = put("rows.jsonl", {"context": CONTEXT, "question": QUESTION, **row})
    (one,) = (row.comparison for row in read(path))
    text = message_text(one.prompt[0])
    assert [message["role"] for message in one.prompt] == ["user"]
    assert text == f"{CONTEXT}\n\n{QUESTION}"
    (context,), question = one.context, one.question
    assert (context.message, text[context.start : context.end]) == (0, CONTEXT)
    assert (question.start, question.end) == (len(CONTEXT) + 2, len(text))
    assert context.start == 0  # and not where its last occurrence is


def test_a_question_that_contains_the_context_is_not_mixed_up_with_it(put):
    row = {"context": "Who?", "query": "Who? Who?", "chosen": "Ann", "rejected": "Bob"}
    (one,) = (row.comparison for row in read(put("rows.jsonl", row)))
    assert (one.context[0].start, one.context[0].end) == (0, 4)
    assert (one.question.start, one.question.end) == (6, 15)


def test_a_prompt_in_the_row_is_used_in_place_of_context_and_question(put):
    text = f"Read: {CONTEXT} {QUESTION}"
    asked = {"role": "user", "content": text}
    good, bad = ([asked, {"role": "assistant", "content": name}] for name in ("Ann", "Bob"))
    rows = [
        {"prompt": text, "chosen": "Ann", "rejected": "Bob"},
        {"chosen": good, "rejected": bad},
        {"chosen": f"{text} Ann", "rejected": f"{text} Bob"},
    ]
    for row in read(put("rows.jsonl", *({**row, "context": CONTEXT, "question": QUESTION} for row in rows))):
        assert message_text(row.comparison.prompt[0]) == text
        assert [message_text(one[-1]) for one in row.comparison.responses] == ["Ann", "Bob"]


@pytest.mark.parametrize("part", [{"context": ""}, {"question": None}])
def test_a_context_or_a_question_alone_is_no_prompt(part, put):
    row = {"context": CONTEXT, "question": QUESTION, "candidates": ["Ann", "Bob"]} | part
    with pytest.raises(DataError, match="field 'prompt'"):
        read(put("rows.jsonl", row))


def test_demonstrations_are_joined_alike(put):
    row = {"context": CONTEXT, "question": QUESTION, "completion": "Ann"}
    (found,) = read_demonstrations(put("rows.jsonl", row))
    assert message_text(found.demonstration.prompt[0]) == f"{CONTEXT}\n\n{QUESTION}"


def test_the_example_of_the_page_reads_such_a_file(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/data.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    lines = [f"{row['prompt']},a,b,{n}" for n, row in enumerate(ROWS)]
    Path("pairs.csv").write_text("\n".join(["question,good,bad,id", *lines]))
    held = {}
    exec(compile(example, "data.md", "exec"), held)
    assert [message_text(row.comparison.prompt[0]) for row in held["rows"]] == [row["prompt"] for row in ROWS]
