import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from longrm.clients.cache import Cache
from longrm.clients.completions import Completion
from longrm.clients.openai import OpenAIClient
from longrm.clients.settings import Remote
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
        other.execute("CREATE TABLE other (key TEXT)")
        other.execute(
            "BEGIN IMMEDIATE"
        )  # for which SQLite's own patience does not wait when the journal changes
        release = threading.Timer(0.3, other.execute, ["COMMIT"])
        release.start()
        with Cache(file) as cache:
            release.join()
            cache.put("key", Completion(Outcome.ANSWERED, "text"))
            assert cache.get("key").text == "text"


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
