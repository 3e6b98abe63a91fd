"""`longrm audit`: text, JSON and page."""

import json
import random

import pytest
from click.testing import CliRunner

from longrm.cli.commands import cli
from longrm.errors import LongRMError

pytest.importorskip("datasketch")


def longrm(*arguments, columns=80):
    """Runs the command in this process."""
    given = ["audit", *map(str, arguments)]
    return CliRunner().invoke(cli, given, prog_name="longrm", env={"COLUMNS": str(columns)})


def text(seed, count=60):
    random_ = random.Random(seed)
    return " ".join(f"w{random_.randrange(10_000)}" for _ in range(count))


def row(number, **more):
    return {
        "id": f"row {number}",
        "prompt": f"{text(number)}\n\nWhat is {text(-number, 9)}?",
        "responses": [f"yes {number}", f"no {number}"],
        "ranks": [1, 2],
        **more,
    }


@pytest.mark.parametrize("columns", [60, 80])
def test_text_fits_the_terminal_and_lists_what_is_wrong(put, columns):
    path = put("rows.jsonl", *map(row, range(12)), row(3) | {"id": "again"})
    done = longrm(path, "--html", path.parent / "audit.html", columns=columns)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert "! exact duplicates: 1" in lines
    assert "  - again repeats row 3" in lines
    assert max(len(line) for line in lines if str(path.parent) not in line) <= columns
    page = (path.parent / "audit.html").read_text()
    assert "again repeats row 3" in page
    assert "default-src 'none'" in page
    assert not any(mark in page for mark in ("<script", "src=", "@import", "url("))
    assert page.rstrip().endswith("</html>")
    assert "rows: " in done.stderr


def test_json_is_one_object_and_flags_change_settings(put):
    path = put("rows.jsonl", *map(row, range(3)))
    bench = put("bench.jsonl", row(1))
    config = path.parent / "audit.toml"
    config.write_text("similarity_threshold = 0.7\n")
    flags = ["--json", "--tokenizer", "words", "--against", f"file:{bench}"]
    done = longrm(path, *flags, "--config", config, "--set", "similarity_threshold=0.9")
    found = json.loads(done.stdout)
    assert done.exit_code == 0
    assert (found["settings"]["similarity_threshold"], found["settings"]["tokenizers"]) == (0.9, ["words"])
    assert [*found["lengths"]] == ["words"]
    assert found["findings"]["leaked_contexts"]["count"] == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["nowhere.jsonl"], "nowhere.jsonl"), (["{row}", "--html", "{row}/audit.html"], "good.jsonl")],
)
def test_an_error_names_the_file(put, arguments, named):
    row_file = put("good.jsonl", row(1))
    error = longrm(*(argument.format(row=row_file) for argument in arguments)).exception
    assert isinstance(error, LongRMError), error
    assert named in str(error)
