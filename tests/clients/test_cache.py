import json
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longrm.clients.cache import Cache
from longrm.clients.completions import Completion
from longrm.clients.openai import OpenAIClient
from longrm.clients.remote_settings import Remote
from longrm.errors import RunError
from longrm.types import Outcome

from .conftest import Reply, echo, requests, said

KEY = "sk-very-secret"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "below" / "answers.sqlite"


def client(server, file, model="tiny", **settings):
    return OpenAIClient(server.url, model, Remote(cache=str(file), retries=0, **settings))


def test_every_field_comes_back(file):
    kept = Completion(Outcome.TRUNCATED, "téxt \u2028", "thought", "detail", 3, None)
    with Cache(file) as cache:
        cache.put("key", kept)
    with Cache(file) as cache:
        assert cache.get("key") == kept
        assert cache.get("other") is None


def test_what_is_kept_is_not_asked_again(server, file):
    first = client(server, file).write(requests(4))
    again = client(server, file, max_requests=1)
    assert again.write(requests(4)) == first
    assert (again.requests, again.total_tokens, len(server.seen)) == (0, 0, 4)


def test_whatever_changes_the_request_is_asked_anew(server, file):
    client(server, file).write(requests(1))
    client(server, file, model="other").write(requests(1))
    client(server, file, extra={"top_p": 0.5}).write(requests(1))
    for seed in range(2):
        client(server, file).write(requests(2, temperature=1.0)[seed : seed + 1])
    assert len(server.seen) == 5
    client(server, file, concurrency=1, timeout=5).write(requests(1))
    assert len(server.seen) == 5


def test_two_servers_are_kept_apart(server, file):
    client(server, file).write(requests(1))
    other = OpenAIClient(server.url + "/other/v1", "tiny", Remote(cache=str(file)))
    other.write(requests(1))
    assert [seen.path for seen in server.seen] == ["/v1/chat/completions", "/other/v1/chat/completions"]


@pytest.mark.parametrize(
    ("reply", "outcome", "asked"),
    [
        (said("a", "length"), Outcome.TRUNCATED, 1),
        (said(None, refusal="I cannot"), Outcome.REFUSED, 1),
        (Reply({"error": {"message": "maximum context length is 10 tokens"}}, 400), Outcome.TOO_LONG, 1),
        (Reply({"error": {"message": "no such field"}}, 400), Outcome.ERROR, 2),
        (Reply({}, 500), Outcome.ERROR, 2),
    ],
)
def test_all_but_errors_are_kept(server, file, reply, outcome, asked):
    server.script = lambda seen, number: reply
    for _ in range(2):
        (answer,) = client(server, file).write(requests(1))
        assert answer.outcome is outcome
    assert len(server.seen) == asked


def test_without_a_file_nothing_is_kept(server):
    for _ in range(2):
        OpenAIClient(server.url, "tiny", Remote()).write(requests(1))
    assert len(server.seen) == 2


def test_the_key_is_not_kept(server, file, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.script = lambda seen, number: (
        echo(seen) if number > 1 else Reply({"error": f"limit of {KEY}"}, 413)
    )
    client(server, file, concurrency=1).write(requests(3))
    files = list(file.parent.iterdir())
    content = b"".join(path.read_bytes() for path in files)
    assert b"echo of question 2" in content, "the answers must be in what is searched"
    assert KEY.encode() not in content


def test_two_processes_share_a_file(file):
    script = """
import sys
from pathlib import Path
from longrm.clients.cache import Cache
from longrm.clients.completions import Completion
from longrm.types import Outcome
with Cache(Path(sys.argv[1])) as cache:
    for index in range(200):
        cache.put(f"{sys.argv[2]} {index}", Completion(Outcome.ANSWERED, sys.argv[2]))
        cache.put(f"both {index}", Completion(Outcome.ANSWERED, sys.argv[2]))
"""
    running = [subprocess.Popen([sys.executable, "-c", script, file, name]) for name in ("one", "two")]
    assert [process.wait(60) for process in running] == [0, 0]
    with Cache(file) as cache:
        for index in range(200):
            assert [cache.get(f"{name} {index}").text for name in ("one", "two")] == ["one", "two"]
            assert cache.get(f"both {index}").text in ("one", "two")


def test_a_cache_that_another_process_is_setting_up_is_waited_for(file):
    file.parent.mkdir()
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("CREATE TABLE completions (key TEXT PRIMARY KEY, completion TEXT NOT NULL)")
        other.execute(
            "BEGIN IMMEDIATE"
        )  # for which SQLite's own patience does not wait when the journal changes
        release = threading.Timer(0.3, other.execute, ["COMMIT"])
        release.start()
        with Cache(file) as cache:
            release.join()
            cache.put("key", Completion(Outcome.ANSWERED, "text"))
            assert cache.get("key").text == "text"


def rows(file):
    with closing(sqlite3.connect(file)) as database:
        database.text_factory = bytes
        return database.execute("SELECT key, completion FROM completions ORDER BY key").fetchall()


def spoil(file, value):
    """Puts something else in the place of the first of the answers."""
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("UPDATE completions SET completion = ? WHERE rowid = 1", (value,))


GOOD = {
    "outcome": "answered",
    "text": "t",
    "thinking": "",
    "detail": "",
    "prompt_tokens": 1,
    "completion_tokens": 2,
}


@pytest.mark.parametrize(
    "row",
    [
        "",
        "null",
        "[]",
        "{}",
        "no json",
        "[" * 200_000,
        '{"outcome": "answered", "text": "half',
        b"\xff\xfe",
        b"{}",
        5,
        2.5,
        json.dumps(GOOD | {"outcome": "imagined"}),
        json.dumps(GOOD | {"outcome": 1}),
        json.dumps(GOOD | {"outcome": "error"}),
        json.dumps(GOOD | {"text": None}),
        json.dumps(GOOD | {"text": 5}),
        json.dumps(GOOD | {"detail": ["a"]}),
        json.dumps(GOOD | {"prompt_tokens": "many"}),
        json.dumps(GOOD | {"prompt_tokens": 1.5}),
        json.dumps(GOOD | {"text": "\ud83d"}),
    ],
)
def test_a_bad_row_is_asked_again_and_said(server, file, caplog, row):
    first = client(server, file, concurrency=1).write(requests(3))
    kept = rows(file)
    spoil(file, row)
    caplog.clear()
    assert client(server, file).write(requests(3)) == first
    assert len(server.seen) == 4
    assert [record.getMessage() for record in caplog.records if record.name == "longrm.clients.cache"] == [
        f"{file}: answers that could not be read, and were asked for again: 1"
    ]
    assert rows(file) == kept
    caplog.clear()
    client(server, file).write(requests(3))
    assert len(server.seen) == 4
    assert "could not be read" not in caplog.text


def test_counts_that_cannot_be_are_not_believed_in_a_row_either(file):
    with Cache(file) as cache:
        cache.put("key", Completion(Outcome.ANSWERED, "t", prompt_tokens=-5, completion_tokens=10**300))
        assert cache.get("key") == Completion(Outcome.ANSWERED, "t")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(), st.binary(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)))
def test_whatever_a_row_holds_it_is_a_completion_or_none(file, value):
    with Cache(file) as cache:
        cache.put("key", Completion(Outcome.ANSWERED, "text"))
        spoil(file, value)
        assert cache.get("key") is None
        cache.put("key", Completion(Outcome.ANSWERED, "text"))
        assert cache.get("key").text == "text"
        cache._unread = 0


def test_a_damaged_file_is_refused_in_one_line(server, file):
    """Wherever it is damaged: in its header, or in its pages."""
    client(server, file).write(requests(20))
    whole = file.read_bytes()
    refused = 0
    for start in range(0, len(whole), 1024):
        for path in file.parent.iterdir():
            path.unlink()
        file.write_bytes(whole[:start] + bytes([0x5A]) * 1024 + whole[start + 1024 :])
        try:
            client(server, file).write(requests(20))
        except RunError as error:
            refused += 1
            assert "\n" not in str(error)  # noqa: PT017  # some damage goes unseen, and all of it must not crash
            assert "move it away" in str(error)  # noqa: PT017
    assert refused


def _foreign(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE bookmarks (url TEXT)")


def _other_columns(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE completions (id INTEGER, text TEXT)")


def _loop(path):
    path.symlink_to(path)


KINDS = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a loop": _loop,
    "a database of something else": _foreign,
    "a table of something else": _other_columns,
    "a cut database": lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(50)),
    "text": lambda path: path.write_text("my notes\n" * 1000),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_cache_is_refused_and_left_alone(server, tmp_path, kind):
    path = tmp_path / "answers.sqlite"
    KINDS[kind](path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(
        RunError, match=r"cannot use .*answers\.sqlite as a cache of answers: .*; move it away"
    ) as caught:
        client(server, path).write(requests(1))
    assert "\n" not in str(caught.value)
    assert before is None or path.read_bytes() == before
    assert server.seen == []


@pytest.mark.parametrize(
    "path", ["a\0b", "~nobody-of-this-name/x", "x" * 300, "/proc/answers", "/dev/null/x", "\udcff/\0"]
)
def test_a_path_that_cannot_be_is_refused_in_one_line(server, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="cannot use .* as a cache of answers") as caught:
        client(server, path).write(requests(1))
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_told_and_what_was_kept_stays(server, file):
    """A bound on the size of files stands for a full disk: SQLite hears of both in the same call."""
    server.script = lambda seen, number: said("x" * 5000)
    script = f"""
import resource, signal, sys
from pathlib import Path
from longrm.clients.openai import OpenAIClient
from longrm.clients.remote_settings import Remote
from longrm.errors import RunError
from tests.clients.conftest import requests
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    OpenAIClient({server.url!r}, "tiny", Remote(cache={str(file)!r}, concurrency=1)).write(requests(60))
except RunError as error:
    print(error)
"""
    root = Path(__file__).parents[2]
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stderr == ""
    assert told.stdout.count("\n") == 1
    assert "as a cache of answers" in told.stdout
    assert "make room and run the same command again" in told.stdout
    asked = len(server.seen)
    assert asked < 60
    client(server, file, concurrency=1).write(requests(60))
    assert len(server.seen) <= 61  # the answer that found no room is asked for once more


def test_a_file_that_is_no_cache_is_refused_in_one_line(server, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("my notes, longer than a page of a database would be short\n" * 100)
    with pytest.raises(RunError, match=r"cannot use .*notes\.txt as a cache.*move it away") as caught:
        client(server, file).write(requests(1))
    assert "\n" not in str(caught.value)
    assert file.read_text().startswith("my notes")
    with pytest.raises(RunError, match="cannot use"):
        client(server, file / "below").write(requests(1))
    assert server.seen == []
