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
    lines = [f"{row['prompt']},a,b,bad,{n}" for n, row in enumerate(ROWS)]
    Path("pairs.csv").write_text("\n".join(["question,good,bad,best,id", *lines]))
    held = {}
    exec(compile(example, "data.md", "exec"), held)
    assert [message_text(row.comparison.prompt[0]) for row in held["rows"]] == [row["prompt"] for row in ROWS]
    assert {row.comparison.ranks for row in held["rows"]} == {(2, 1)}


# --- Rows that cannot be read: the error names file, row and field, or the row is counted as skipped ---

PAIR = {"prompt": "Who?", "chosen": "Ann", "rejected": "Bob"}
NATIVE = {
    "id": "x",
    "group": "g",
    "prompt": [{"role": "user", "content": "Who?"}],
    "responses": [[{"role": "assistant", "content": name}] for name in ("Ann", "Bob")],
    "ranks": [1, 2],
}
TURN = {"role": "assistant", "content": ""}
CANDIDATES = {"prompt": "Who?", "candidates": ["Ann", "Bob"]}
JUDGMENTS = {"chat_template": "Judge.", "chosen": "8", "rejects": ["2"]}


def without(row, *names):
    return {name: value for name, value in row.items() if name not in names}


BAD_ROWS = [
    (without(PAIR, "rejected"), "rejected"),
    (without(PAIR, "prompt"), "prompt"),
    # The prompt is in another column, and the responses begin alike.
    ({"question": "Who?", "chosen": "It was Ann.", "rejected": "It was Bob."}, "prompt"),
    (PAIR | {"chosen": " "}, "chosen"),
    (PAIR | {"chosen": [{**TURN, "tool_calls": [{"id": "1"}]}]}, "chosen[0].tool_calls[0].name"),
    (PAIR | {"chosen": [{"content": "Ann"}]}, "chosen[0].role"),
    (PAIR | {"chosen": [{**TURN, "content": 3}]}, "chosen[0].content"),
    (
        PAIR | {"chosen": [{**TURN, "content": [{"type": "image", "text": "a"}]}]},
        "chosen[0].content[0].type",
    ),
    (PAIR | {"rejected": ["Bob", ""]}, "rejected[1]"),
    (PAIR | {"rejected": []}, "rejected"),
    (PAIR | {"rejected": "Ann"}, "rejected"),  # identical to the chosen one
    (PAIR | {"prompt": ["Who?"]}, "prompt[0]"),
    (PAIR | {"context": "  "}, "context"),
    (PAIR | {"context": "Whom?"}, "context"),  # not in the prompt
    (PAIR | {"id": [1]}, "id"),
    (PAIR | {"uuid": 0.5}, "uuid"),
    (PAIR | {"margin": float("nan")}, "margin"),
    (PAIR | {"tools": "look"}, "tools"),
    (PAIR | {"tools": ["look"]}, "tools[0]"),
    (NATIVE | {"responses": "Ann"}, "responses"),
    (NATIVE | {"ranks": [1]}, "ranks"),
    (NATIVE | {"ranks": [0, 1]}, "ranks"),
    (NATIVE | {"role": "judge"}, "role"),
    (NATIVE | {"metadata": [1]}, "metadata"),
    (NATIVE | {"context": [{"message": 0, "start": 2, "end": 2}]}, "context"),
    (NATIVE | {"context": [{"message": 0, "start": 0, "end": 9}]}, "context"),
    (NATIVE | {"evidence": [{"message": 1, "start": 0, "end": 1}]}, "evidence"),
    (CANDIDATES | {"candidates": ["Ann"]}, "candidates"),
    (CANDIDATES | {"candidates_score": [0.1, 0.2]}, "candidates_score"),  # best first, but rising
    (CANDIDATES | {"candidates_score": [True, False]}, "candidates_score"),
    ({"chat_template": "Judge.", "golden": "8"}, "golden"),  # a demonstration
    (without(JUDGMENTS, "rejects"), "rejected"),
]


@pytest.mark.parametrize(("row", "field"), BAD_ROWS)
def test_an_error_names_file_row_and_field_in_one_line(row, field, put):
    path = put("rows.jsonl", row)
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}, line 1, field '{field}': ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", [json.dumps(PAIR)[:-4].encode(), b"[1, 2]", b'{"prompt": "\xff"}'])
def test_a_line_that_is_not_a_json_object_is_an_error(line, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(PAIR).encode() + b"\n" + line)
    with pytest.raises(DataError, match=r"rows\.jsonl, line 2"):
        list(read(path))


def test_skipped_rows_are_counted_at_every_iteration_and_the_first_messages_kept(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "\n".join(["{", json.dumps(PAIR), json.dumps(PAIR | {"chosen": ""}), *["{"] * 8, json.dumps(PAIR)])
    )
    reader = read(path, on_bad_row="skip")
    for _ in range(2):
        assert [row.number for row in reader] == [2, 12]
        assert reader.skipped.count == 10
        places = [message.removeprefix(f"{path}, ")[:6] for message in reader.skipped.messages]
        assert places == ["line 1", "line 3", "line 4", "line 5", "line 6"]


def test_lone_surrogates_become_question_marks_and_text_parts_are_read(put):
    parts = [{"type": "text", "text": "Bo"}, {"text": "b", "image": None}]
    row = PAIR | {"chosen": "Ann\ud83d", "rejected": [{"role": "assistant", "content": parts}]}
    (found,) = read(put("rows.jsonl", row))
    assert [message_text(one[0]) for one in found.comparison.responses] == ["Ann?", "Bob"]


def test_rows_of_an_array_are_read(tmp_path):
    texts = [json.dumps(PAIR | {"n": number, "chosen": 'a "[{,]}" \\ ü 你 😀'}) for number in range(20)]
    path = tmp_path / "rows.json"
    path.write_text(" [\n" + ",\n".join(texts) + "] \n", encoding="utf-8-sig")
    assert [row.source["n"] for row in read(path)] == [*range(20)]
    path.write_text("[" + ",".join([*texts[:3], "7", *texts[4:10]]) + "]")
    reader = read(path, on_bad_row="skip")
    assert [row.source["n"] for row in reader] == [0, 1, 2, *range(4, 10)]
    assert reader.skipped.messages[0].startswith(f"{path}, row 4:")


def test_ids_are_unique(put):
    path = put("rows.jsonl", *(PAIR | {"id": identity} for identity in ("a", "b", "a")))
    with pytest.raises(DataError, match=r"line 3, field 'id'.*line 1"):
        list(read(path))
    reader = read(path, on_bad_row="skip")
    assert [row.comparison.id for row in reader] == ["a", "b"]
    assert reader.skipped.count == 1


def test_files_without_a_readable_row(put):
    with pytest.raises(DataError, match=r"rows\.jsonl"):
        read(put("rows.jsonl"))
    with pytest.raises(DataError, match=r"line 1.*text.*--columns"):
        read(put("rows.jsonl", {"text": "a"}))
    with pytest.raises(DataError, match="line 1, field 'chosen'"):
        read(put("rows.jsonl", PAIR | {"chosen": ""}), on_bad_row="skip")


def test_rows_that_only_training_reads_name_their_objective(put):
    rows = {
        "sft": {"prompt": "a", "completion": "b"},
        "grpo": {"prompt": "a", "gold": "A", "order": [0, 1], "id": "x", "group": "g", "format": "pairwise"},
    }
    for objective, row in rows.items():
        with pytest.raises(DataError, match=f"line 1.* longrm train {objective}"):
            read(put("rows.jsonl", row))
    columns = rows["grpo"] | {"responses": ["b", "c"], "ranks": [1, 2]}
    (found,) = read(put("rows.jsonl", columns))
    assert found.comparison.metadata["gold"] == "A"
