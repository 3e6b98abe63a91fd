import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from longrm.clients import Completion
from longrm.clients.cache import open_cache
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
    kept = Completion(
        Outcome.TRUNCATED, "téxt \u2028", "thought", "detail", 3, None, (("A", -0.5), ("B", -1.0))
    )
    with open_cache(file) as cache:
        cache.put("key", kept)
    with open_cache(file) as cache:
        assert cache.get("key") == kept
        assert cache.get("other") is None


def test_cached_answers_are_not_requested_again(server, file):
    first = client(server, file).generate(requests(4))
    again = client(server, file, max_requests=1)
    assert again.generate(requests(4)) == first
    assert (again.endpoint.requests, again.endpoint.tokens, len(server.seen)) == (0, 0, 4)


def test_the_key_depends_on_the_server_and_on_all_of_the_request(server, file):
    client(server, file).generate(requests(1))
    client(server, file, model="other").generate(requests(1))
    client(server, file, extra={"top_p": 0.5}).generate(requests(1))
    for seed in range(2):
        client(server, file).generate(requests(2, temperature=1.0)[seed : seed + 1])
    OpenAIClient(server.url + "/other/v1", "tiny", Remote(cache=str(file))).generate(requests(1))
    assert len(server.seen) == 6
    client(server, file, concurrency=1, timeout=5).generate(requests(1))
    assert len(server.seen) == 6


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
def test_all_but_errors_are_cached(server, file, reply, outcome, asked):
    server.script = lambda seen, number: reply
    for _ in range(2):
        (answer,) = client(server, file).generate(requests(1))
        assert answer.outcome is outcome
    assert len(server.seen) == asked


def test_the_api_key_is_not_cached(server, file, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.script = lambda seen, number: (
        echo(seen) if number > 1 else Reply({"error": f"limit of {KEY}"}, 413)
    )
    client(server, file, concurrency=1).generate(requests(3))
    content = b"".join(path.read_bytes() for path in file.parent.iterdir())
    assert b"echo of question 2" in content, "the answers must be in what is searched"
    assert KEY.encode() not in content


def test_two_processes_share_a_file(file):
    script = """
import sys
from pathlib import Path
from longrm.clients import Completion
from longrm.clients.cache import open_cache
from longrm.types import Outcome
with open_cache(Path(sys.argv[1])) as cache:
    for index in range(200):
        cache.put(f"{sys.argv[2]} {index}", Completion(Outcome.ANSWERED, sys.argv[2]))
        cache.put(f"both {index}", Completion(Outcome.ANSWERED, sys.argv[2]))
"""
    running = [subprocess.Popen([sys.executable, "-c", script, file, name]) for name in ("one", "two")]
    assert [process.wait(60) for process in running] == [0, 0]
    with open_cache(file) as cache:
        for index in range(200):
            assert [cache.get(f"{name} {index}").text for name in ("one", "two")] == ["one", "two"]
            assert cache.get(f"both {index}").text in ("one", "two")


def test_opening_waits_for_a_process_that_is_creating_the_file(file):
    file.parent.mkdir()
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("CREATE TABLE completions (key TEXT PRIMARY KEY, completion TEXT NOT NULL)")
        other.execute("BEGIN IMMEDIATE")  # SQLite's own timeout does not apply when the journal mode changes
        release = threading.Timer(0.3, other.execute, ["COMMIT"])
        release.start()
        with open_cache(file) as cache:
            release.join()
            cache.put("key", Completion(Outcome.ANSWERED, "text"))
            assert cache.get("key").text == "text"


def test_a_file_that_is_not_a_cache_is_refused_and_not_changed(server, tmp_path):
    notes, folder = tmp_path / "notes.txt", tmp_path / "folder"
    notes.write_text("my notes\n" * 1000)
    folder.mkdir()
    for path in (notes, folder, notes / "below"):
        with pytest.raises(RunError, match=str(path)):
            client(server, path).generate(requests(1))
    assert notes.read_text() == "my notes\n" * 1000
    assert server.seen == []
