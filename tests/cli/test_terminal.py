"""Control characters in anything that is printed are escaped, and progress is reported."""

import json
import logging
import re
import time

import pytest

from longrm.cli import commands, main, terminal
from longrm.cli.terminal import progress
from longrm.errors import DataError

HOSTILE = "a\x1b[2Jb\rc\x07d\x9be\u202ef\u2066g\x7fh\x00i\udcffj"
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text):
    """Whether control characters are escaped, as `\\x1b[2J` is."""
    return not STEERING.search(text) and "\\x1b[2J" in text


def test_texts_tables_and_lines_go_out_with_escapes(capsys):
    terminal.echo(HOSTILE)
    terminal.print_lines(HOSTILE)
    terminal.print_table(("task", "%"), [(HOSTILE, "1")])
    terminal.print_facts([("name", HOSTILE)])
    shown = capsys.readouterr().out
    assert plain(shown)
    assert shown.count("\\x1b[2J") == 4


def test_json_stays_json_with_the_same_values(capsys):
    value = {HOSTILE: [HOSTILE, 0.5]}
    terminal.print_json(value)
    shown = capsys.readouterr().out
    assert not STEERING.search(shown)
    assert json.loads(shown) == value


def test_messages_and_progress_go_out_with_escapes(capsys, monkeypatch):
    handler = terminal.MessageHandler()
    handler.emit(logging.LogRecord("longrm", logging.INFO, "", 0, "reading %s", (HOSTILE,), None))
    with progress() as report:
        report(f"judging {HOSTILE}", 1, 1, HOSTILE)
    shown = capsys.readouterr().err
    assert plain(shown)
    assert shown.count("\\x1b[2J") == 3


def test_lines_of_progress_end_with_the_last_report(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with progress() as report:
        for done in range(1, 25):
            report("rows", done, 0)
            report("judging", 2 * done, 50)
            clock[0] += 1
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if line.startswith("rows")] == [
        "rows: 11, 1 per second", "rows: 21, 1 per second", "rows: 24, 0.958 per second"
    ]  # fmt: skip
    assert [line.partition(",")[0] for line in told if line.startswith("judging")] == [
        "judging: 2/50", "judging: 22/50", "judging: 42/50", "judging: 48/50"
    ]  # fmt: skip
    assert told[-1].startswith("judging")


def test_a_line_without_news_is_not_repeated(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with progress() as report:
        for seconds in range(100):
            clock[0] += 1
            report("judging", seconds // 95, 0)
    assert capsys.readouterr().err.splitlines() == ["judging: 0", "judging: 1, 0.2 per second"]


def test_an_error_goes_out_in_one_line_with_escapes(capsys, monkeypatch):
    def fail(**_):
        raise DataError(f"{HOSTILE}\nsecond")

    monkeypatch.setattr(commands.cli, "main", fail)
    with pytest.raises(SystemExit):
        main.main()
    shown = capsys.readouterr().err
    assert plain(shown)
    assert shown.count("\n") == 1
