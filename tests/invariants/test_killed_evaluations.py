"""Evaluations of every kind, killed at random moments: what the same commands end with is what nobody killed.

`LONGRM_KILLS` says how many kills there are in all (`LONGRM_KILLS=200 make test-full`).
"""

import itertools
import json
import os
import random
import shutil
import time
from collections import Counter

import pytest

from longrm.data import write
from longrm.evaluation.evaluation_run import Evaluation, run_evaluation
from longrm.runs.folder import CACHE
from longrm.runs.logs import JUDGMENTS
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.clients.faults import FaultyServer, serving
from tests.invariants.killed_runs import CONCURRENCY, Killer, contents, differences, finish, key
from tests.reward_models.tiny_models import make_scorer

KILLS = int(os.environ.get("LONGRM_KILLS", "12"))
PARTS = {
    "whole": [],
    "limited": ["--limit", "150"],
    "one": ["--shard", "1/3"],
    "two": ["--shard", "2/3"],
    "three": ["--shard", "3/3"],
}
SHARDS = ("one", "two", "three")


@pytest.fixture
def server():
    with serving(FaultyServer(rate=0.0)) as server:
        yield server


def local(place, server):
    model = make_scorer(place / "scorer")
    return ["probe", model, "--lengths", "64,128", "--n", "256"]


def remote(place, server):
    return [
        *("probe", f"openai:{server.url}#tiny", "--tasks", "records", "--tokenizer", "words"),
        *("--lengths", "64,128", "--n", "128", "--set", f"remote.concurrency={CONCURRENCY}"),
        *("--set", "remote.timeout=1.0"),
    ]


def recorded(place, server):
    pairs, record = place / "pairs.jsonl", place / "record"
    write(pairs, generate(WorldPlan("records", 64, per_group=1), 1000, words_tokenizer()))
    run_evaluation(Evaluation(model="simulated:0.2", bench=f"file:{pairs}"), record)
    return ["evaluate", "--recorded", record, "--bench", f"file:{pairs}"]


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kind", "rate"),
    [(local, 0.0), (remote, 0.0), (remote, 0.3), (recorded, 0.0)],
    ids=["local", "remote", "faulty", "recorded"],
)
def test_killed_limited_sharded_and_merged_runs_end_equal(tmp_path, server, kind, rate):
    common = kind(tmp_path, server)
    draw = random.Random(f"{kind.__name__} {rate}")
    (tmp_path / "tmp").mkdir()
    runs, moments, again = tmp_path / "runs", Counter(), 0
    runs.mkdir()
    jobs = {name: (tmp_path / f"never-{name}", [*common, *more]) for name, more in PARTS.items()}
    jobs["merged"] = (tmp_path / "never-merged", ["runs", "merge", *(runs / name for name in SHARDS)])
    (runs / "tmp").mkdir()
    turns = Counter(name for name, _ in zip(itertools.cycle(jobs), range(KILLS // 4), strict=False))
    begun = time.monotonic()
    for name, (reference, arguments) in jobs.items():
        server.forget(rate=0.0)
        seconds = finish(arguments, reference)
        expected = contents(reference)
        server.forget(rate=rate, seed=len(moments))
        asking = server if kind is remote and name != "merged" else None
        killer = Killer(arguments, runs / name, expected, seconds, draw, asking)
        killer.kill(turns[name])
        moments.update({f"{stage}, {name}": count for stage, count in killer.moments.items()})
        again += killer.asked_again
        if name == "merged":
            answers = {key: value for key, value in contents(jobs["whole"][0]).items() if key != CACHE}
            assert differences(runs / name, answers) == []
    print(f"{sum(moments.values()) // 2} kills in {time.monotonic() - begun:.0f} s; asked twice: {again}")
    print(json.dumps(dict(sorted(moments.items())), indent=1))


def test_what_a_kill_could_spoil_is_seen(tmp_path):
    """The comparison above fails where a block is lost, a line is there twice, or something is left behind."""
    _, _, record, _, bench = recorded(tmp_path, None)
    run_evaluation(Evaluation(recorded=str(record), bench=bench), tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    for name, spoil in {
        JUDGMENTS: lambda lines: lines[:-64],
        "gold.jsonl": lambda lines: [*lines, lines[-1]],
        "items.csv": lambda lines: [*lines[:-1], lines[-1][:-1]],
    }.items():
        spoiled = shutil.copytree(tmp_path / "whole", tmp_path / name)
        assert differences(spoiled, expected) == []
        (spoiled / name).write_bytes(b"".join(spoil((spoiled / name).read_bytes().splitlines(keepends=True))))
        (spoiled / ".summary.json.0123abcd.part").touch()
        assert differences(spoiled, expected) == [".summary.json.0123abcd.part", name]


def test_an_answer_that_is_asked_for_again_is_seen(tmp_path):
    """What `_known` told before the kill is held against what the server was asked after it."""
    server = FaultyServer(url="http://127.0.0.1:1", asked=Counter({b"one": 1, b"two": 1}))
    killer = Killer([], tmp_path / "run", {}, 0.0, random.Random(0), server)
    before = {key(server, b"one")}, Counter(server.asked)
    server.asked[b"two"] += 1  # it was under way when the kill came
    killer._check_asked(before)
    server.asked[b"one"] += 1
    with pytest.raises(AssertionError):
        killer._check_asked(before)
