"""An evaluation over a server that fails in every known way ends as one over a server that never does."""

import json
from pathlib import Path

import pytest

from longrm.clients.openai import OpenAIClient
from longrm.clients.remote_settings import Remote
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.reward_models import JudgeSettings
from longrm.reward_models.generative import GenerativeRewardModel
from longrm.runs.folder import CACHE
from longrm.runs.logs import EXAMPLES, GOLD, JUDGMENTS

from ..clients.faults import FAULTS, HANGING, LIES, ODD, FaultyServer, serving

RESULTS = (JUDGMENTS, GOLD, EXAMPLES, "summary.json", "results.csv", "items.parquet", "config.toml")
# Each takes as long as the time-out; one of them is enough here.
WAITED_FOR = HANGING - {"a byte at a time"}


@pytest.fixture
def server():
    with serving(FaultyServer()) as server:
        yield server


def pairs(tmp_path, count):
    path = tmp_path / f"{count}.jsonl"
    if not path.exists():
        rows = [
            {"prompt": f"Question {n} of {n % 5}?", "chosen": f"It is {n}.", "rejected": f"It is {n + 1}."}
            for n in range(count)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(autouse=True)
def _no_pauses_and_small_answers(monkeypatch):
    async def sleep(seconds):
        pass

    monkeypatch.setattr("anyio.sleep", sleep)
    monkeypatch.setattr("longrm.clients.endpoint.MAX_ANSWER_BYTES", 200_000)


def evaluated(server, data: Path, out: Path, **remote) -> dict:
    """One call of the command, by a process that knows nothing of the calls before."""
    settings = Evaluation.resolve(None, {"bench": f"file:{data}", "model": f"openai:{server.url}#tiny"})
    client = OpenAIClient(server.url, "tiny", Remote(**{"timeout": 2.0, "cache": str(out / CACHE)} | remote))
    return run_evaluation(settings, out, model=GenerativeRewardModel(client, JudgeSettings())).to_dict()


def read(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in RESULTS}


def fault_free(server, data, tmp_path) -> tuple[dict[str, bytes], set[bytes]]:
    server.forget(rate=0.0)
    evaluated(server, data, tmp_path / "fault-free")
    return read(tmp_path / "fault-free"), set(server.asked)


def until_no_error_is_left(server, data, out) -> int:
    """Runs the same command again until it ends well; what is answered is never asked for again."""
    for calls in range(1, 20):
        finished = dict(server.answered)
        before = {body: server.asked[body] for body in finished}
        summary = evaluated(server, data, out)
        assert {body: server.asked[body] for body in finished} == before
        if not summary["counts"]["outcomes"]["error"]:
            return calls
    raise AssertionError("errors are left after 20 calls")


def check(server, tmp_path, count, seed, kinds):
    data, out = pairs(tmp_path, count), tmp_path / f"faulty-{seed}"
    expected, asked = fault_free(server, data, tmp_path)
    assert len(asked) == 2 * count  # in both orders
    server.forget(rate=0.3, seed=seed, kinds=kinds)
    calls = until_no_error_is_left(server, data, out)
    assert read(out) == expected
    assert set(server.answered) == asked
    assert set(server.answered.values()) == {1}
    seen = set(server.failed)
    evaluated(server, data, out)
    assert sum(server.answered.values()) == 2 * count
    return calls, seen


def test_what_a_faulty_server_answers_is_judged_as_if_it_never_failed(server, tmp_path):
    quick = {name: kind for name, kind in (FAULTS | ODD).items() if name not in WAITED_FOR}
    _, seen = check(server, tmp_path, 40, 1, quick)
    assert len(seen & set(FAULTS)) >= 17


def test_a_difference_would_be_seen(server, tmp_path):
    """The comparisons above fail where an answer is another's, and where errors are left."""
    data = pairs(tmp_path, 20)
    expected, _ = fault_free(server, data, tmp_path)
    server.forget(rate=0.2, kinds=LIES)
    evaluated(server, data, tmp_path / "other answers")
    assert read(tmp_path / "other answers")[JUDGMENTS] != expected[JUDGMENTS]
    server.forget(rate=0.3, kinds={"500": FAULTS["500"]})
    evaluated(server, data, tmp_path / "errors", retries=0)
    assert read(tmp_path / "errors") != expected
