"""Columns under other names, and prompts that are a context and a question."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from longrm.cli.commands import cli
from longrm.column_names import COLUMNS
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
    with pytest.raises(DataError, match=r"the columns \(instruction, good, bad, id\) match no known format"):
        read(name)


def test_columns_can_change_places(files):
    swapped = read("ours.jsonl", columns={"chosen": "rejected", "rejected": "chosen"})
    assert [message_text(row.comparison.responses[0][0]) for row in swapped] == [r["rejected"] for r in ROWS]


@pytest.mark.parametrize(
    ("columns", "error", "said"),
    [
        ({"promt": "instruction"}, ConfigError, "reads no column 'promt'; did you mean 'prompt'"),
        ({"chosen": "good", "rejected": "good"}, ConfigError, "'good' cannot be both 'chosen' and 'rejected'"),
        ({"chosen": ""}, ConfigError, "'chosen' has no name"),
        (
            NAMED | {"length": "size"},
            DataError,
            "theirs.jsonl, line 1, field 'size': no such column",
        ),
        ({"prompt": "good", "id": "bad"}, DataError, "line 1, field 'id': already exists"),
    ],
)  # fmt: skip
def test_what_cannot_be_renamed_is_one_line(columns, error, said, files):
    with pytest.raises(error, match=said) as caught:
        list(read("theirs.jsonl", columns=columns))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "flag", ["prompt", "=instruction", "prompt=a,prompt=b", "prompt=a,", "prompt=a,chosen=a"]
)
def test_a_flag_that_names_nothing_or_twice_is_refused(flag, files):
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
    from longrm.data.token_cache import open_tokenized
    from longrm.training.settings import DataSettings
    from longrm.worlds.words_tokenizer import words_tokenizer

    data = DataSettings.resolve(None, {"sources": [{"path": "theirs.csv", "columns": NAMED}]})
    (file,) = data.files()
    told = {"kind": "comparison", "cache": files / "cache"}
    theirs = open_tokenized(file.path, words_tokenizer(), columns=file.columns, **told)
    ours = open_tokenized("ours.jsonl", words_tokenizer(), **told)
    assert [row.tokens for row in theirs] == [row.tokens for row in ours]
    flipped = NAMED | {"chosen": "bad", "rejected": "good"}
    other = open_tokenized(file.path, words_tokenizer(), columns=flipped, **told)
    assert other.digest != theirs.digest


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
def test_context_and_question_make_a_prompt_whose_parts_are_known(row, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"context": CONTEXT, "question": QUESTION, **row}) + "\n")
    (one,) = (row.comparison for row in read(path))
    text = message_text(one.prompt[0])
    assert [message["role"] for message in one.prompt] == ["user"]
    assert text == f"{CONTEXT}\n\n{QUESTION}"
    (context,), question = one.context, one.question
    assert (context.message, text[context.start : context.end]) == (0, CONTEXT)
    assert (question.start, question.end) == (len(CONTEXT) + 2, len(text))
    assert context.start == 0  # where the context stands, not where its last occurrence does


def test_texts_that_stand_in_each_other_are_not_mixed_up(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        json.dumps({"context": "Who?", "query": "Who? Who?", "chosen": "Ann", "rejected": "Bob"}) + "\n"
    )
    (one,) = (row.comparison for row in read(path))
    assert (one.context[0].start, one.context[0].end) == (0, 4)
    assert (one.question.start, one.question.end) == (6, 15)


def test_a_prompt_of_its_own_comes_first(tmp_path):
    def said(text):
        return {"role": "assistant", "content": text}

    spoken = [{"role": "user", "content": f"Read: {CONTEXT} {QUESTION}"}]
    rows = [
        {"prompt": f"Read: {CONTEXT} {QUESTION}", "chosen": "Ann", "rejected": "Bob"},
        {"chosen": [*spoken, said("Ann")], "rejected": [*spoken, said("Bob")]},
        {"chosen": f"Read: {CONTEXT} {QUESTION} Ann", "rejected": f"Read: {CONTEXT} {QUESTION} Bob"},
    ]  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({**row, "context": CONTEXT, "question": QUESTION}) + "\n" for row in rows)
    )
    for row in read(path):
        assert message_text(row.comparison.prompt[0]) == f"Read: {CONTEXT} {QUESTION}"
        assert [message_text(one[-1]) for one in row.comparison.responses] == ["Ann", "Bob"]


@pytest.mark.parametrize("part", [{"context": ""}, {"question": " "}, {"context": None}, {"question": None}])
def test_half_of_it_makes_no_prompt(part, tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {"context": CONTEXT, "question": QUESTION, "candidates": ["Ann", "Bob"]} | part
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match="field 'prompt'"):
        read(path)


def test_demonstrations_are_joined_alike(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"context": CONTEXT, "question": QUESTION, "completion": "Ann"}) + "\n")
    (row,) = read_demonstrations(path)
    assert message_text(row.demonstration.prompt[0]) == f"{CONTEXT}\n\n{QUESTION}"


def test_what_can_be_named_is_what_formats_say():
    from longrm.data import FORMATS

    said = {name for known in FORMATS.values() for name in known.columns.split(", ")}
    assert said <= set(COLUMNS)


def test_the_example_of_the_page_reads_such_a_file(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/data.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    lines = [f"{row['prompt']},a,b,{n}" for n, row in enumerate(ROWS)]
    Path("pairs.csv").write_text("\n".join(["question,good,bad,id", *lines]))
    held = {}
    exec(compile(example, "data.md", "exec"), held)
    assert [message_text(row.comparison.prompt[0]) for row in held["rows"]] == [row["prompt"] for row in ROWS]
