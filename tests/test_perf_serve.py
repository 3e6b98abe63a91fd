"""`perf/serve.py` asks `longrm serve` and a plain server the same, over loopback."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "perf" / "serve.py"


def measured(*flags):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--short", "40", "--threads", "1", "--json", *flags],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
def test_both_servers_are_asked_the_same_and_agree():
    flags = ["--prompt", "200", "--response", "8", "--candidates", "3", "--singles", "3", "--repeats", "1"]
    found = measured(*flags)
    assert found["largest_score_difference"] < 1e-4
    assert set(found["speedup_one_request"]) == set(found["speedup_separate_requests"]) == {"3"}
    seconds = found["seconds"]
    plain = min(seconds[f"{way}, 3"]["plain"] for way in ("one request", "separate requests"))
    assert found["speedup_one_request_least"]["3"] == pytest.approx(
        plain / seconds["one request, 3"]["longrm"], rel=0.01
    )
    for server in found["latency_ms"].values():
        for times in server.values():
            assert 0 < times["p50"] <= times["p95"] <= times["p99"]


@pytest.mark.full
def test_memory_is_watched_over_all_requests():
    found = measured("--requests", "40")
    assert found["requests"] >= 40
    assert list(found["resident_mib"]) == ["4", "8", "16", "24", "32", "40"]
    assert all(value > 50 for value in found["resident_mib"].values())
