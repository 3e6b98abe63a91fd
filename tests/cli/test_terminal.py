"""What is printed may come from files of others; nothing in it may steer the terminal."""

import json
import logging
import re
import sys
import time
from pathlib import Path

import pytest

from longrm.cli import commands, main, summary_text, terminal
from longrm.cli.progress_bar import progress
from longrm.errors import DataError
from longrm.evaluation.summarize import summarize
from longrm.evaluation.summary_schema import parse_evaluation
from longrm.reading import visible
from longrm.runs.records import JudgmentRecord
from longrm.types import Outcome

HOSTILE = "a\x1b[2Jb\rc\x07d\x9be\u202ef\u2066g\x7fh\x00i\udcffj"
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text):
    """Whether a text would leave a terminal as it is, and still shows what was there."""
    return not CONTROL_CHARACTERS.search(text) and "\\x1b[2J" in text


def test_every_steering_character_is_written_as_its_escape():
    shown = visible(HOSTILE)
    assert shown == r"a\x1b[2Jb\x0dc\x07d\x9be\u202ef\u2066g\x7fh\x00i\udcffj"
    assert visible("tabs\tand lines\n–é漢 stay") == "tabs\tand lines\n–é漢 stay"


def test_texts_tables_and_lines_go_out_with_escapes(capsys):
    terminal.echo(HOSTILE)
    terminal.print_lines([HOSTILE])
    terminal.print_table(("task", "%"), [(HOSTILE, "1")], title="title")
    terminal.print_facts([("name", HOSTILE)])
    shown = capsys.readouterr().out
    assert plain(shown)
    assert shown.count("\\x1b[2J") == 4


def test_json_stays_json_and_says_the_same(capsys):
    value = {HOSTILE: [HOSTILE, 0.5]}
    terminal.print_json(value)
    shown = capsys.readouterr().out
    assert not CONTROL_CHARACTERS.search(shown)
    assert json.loads(shown) == value


def test_tasks_models_and_benchmarks_of_a_summary_are_shown_with_escapes(capsys):
    text = HOSTILE.replace("\udcff", "")  # with half of a surrogate pair settings and data are refused
    records = [
        JudgmentRecord(
            id=f"{number}",
            group=f"{number}",
            outcome=Outcome.ANSWERED,
            ranks=(1, 2),
            order=(0, 1),
            scores=(1.0, 0.0),
            length=128,
            task=task,
        )
        for number, task in enumerate((text, "[b]ok"))
    ]
    summary = summarize(records, model=text, bench=text, scale="logit", resamples=100)
    summary_text.print_evaluation(parse_evaluation(summary))
    shown = capsys.readouterr().out
    assert plain(shown)
    assert "[b]ok" in shown


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
        "rows: 11, 1 a second", "rows: 21, 1 a second", "rows: 24, 0.958 a second"
    ]  # fmt: skip
    assert [line.partition(",")[0] for line in told if line.startswith("judging")] == [
        "judging: 2/50", "judging: 22/50", "judging: 42/50", "judging: 48/50"
    ]  # fmt: skip
    assert told[-1].startswith("judging")


def test_a_bar_shows_a_label_as_it_is(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    with progress() as report:
        report(f"judging [/x] {HOSTILE}", 1, 2, "[/note]")
        report(f"judging [/x] {HOSTILE}", 2, 2, "[/note]")
    shown = capsys.readouterr().err
    assert "judging [/x] a\\x1b[2J" in shown
    assert "\x9b" not in shown


def test_an_error_goes_out_in_one_line_with_escapes(capsys, monkeypatch):
    def fail(**_):
        raise DataError(f"{HOSTILE}\nsecond")

    monkeypatch.setattr(commands.cli, "main", fail)
    with pytest.raises(SystemExit):
        main.main()
    shown = capsys.readouterr().err
    assert plain(shown)
    assert shown.count("\n") == 1


def test_nothing_else_prints():
    """A negative control of the rule that all goes through one place."""
    prints = re.compile(r"click\.echo\(|(?<!\w)print\(|\.print\(|Console\(\)")
    found = {
        file.name: len(prints.findall(file.read_text(encoding="utf-8")))
        for file in Path(main.__file__).parent.glob("*.py")
    }
    assert found.pop("terminal.py") > 0
    assert {name for name, count in found.items() if count} == set()
