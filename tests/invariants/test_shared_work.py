"""Several processes that share an evaluation or a file of scores, played by threads: what one would have written."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from longrm import reward_models
from longrm.data import write
from longrm.errors import ConfigError, DataError
from longrm.evaluation.evaluation_run import Evaluation, run_evaluation
from longrm.reward_models.baselines import Baseline
from longrm.runs.logs import read_judgments
from longrm.runs.workers import WorkerGroup
from longrm.scoring import scored_file
from longrm.scoring.scored_file import ScoreSettings, score_file
from longrm.worlds import WorldPlan, generate, words_tokenizer

COUNT = 3
LOGS = ("judgments.jsonl", "gold.jsonl", "examples.jsonl", "results.csv", "items.parquet", "summary.json")


# A killed process leaves its files to the system, and a thread its generators to the collector.
KILLED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Thread(WorkerGroup):
    """A process of several, played by a thread; all of a group share one dictionary."""

    def __init__(self, rank, group):
        super().__init__(rank, COUNT)
        self._group = group
        self._piece = -1

    def wait(self):
        self._group["barrier"].wait(timeout=60)

    def takes(self, piece):
        with self._group["lock"]:
            while self._piece < piece:
                self._piece = self._group["pieces"]
                self._group["pieces"] += 1
        return self._piece == piece

    def add_done(self, count):
        with self._group["lock"]:
            self._group["done"] += count
            return self._group["done"]


def together(work):
    """Runs some work as a group of processes; returns what each did, and raises what one raised."""
    group = {"barrier": threading.Barrier(COUNT), "lock": threading.Lock(), "pieces": 0, "done": 0}

    def one(rank):
        try:
            return work(Thread(rank, group))
        except BaseException:
            group["barrier"].abort()
            raise

    with ThreadPoolExecutor(COUNT) as pool:
        futures = [pool.submit(one, rank) for rank in range(COUNT)]
    errors = [future.exception() for future in futures if future.exception()]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]


class Killed(Exception):
    pass


class Mortal(Baseline):
    """A baseline that counts what it is asked, and is killed after some questions of any thread."""

    asked: list[str]
    last: int | None

    def judge(self, queries):
        if self.last is not None and len(self.asked) >= self.last:
            raise Killed
        self.asked += [query.id for query in queries]
        return super().judge(queries)


@pytest.fixture
def mortal(monkeypatch):
    """Loads baselines that are killed after so many questions."""

    def set_last(last):
        asked: list[str] = []

        def load(model, **_):
            loaded = Mortal(model.partition(":")[2])
            loaded.asked, loaded.last = asked, last
            return loaded

        monkeypatch.setattr(reward_models, "load", load)
        return asked

    return set_last


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    write(path, generate(WorldPlan("records", 64, per_group=2), 230, words_tokenizer()))
    return path


def test_a_file_scored_by_several_is_that_of_one(tmp_path, data):
    settings = ScoreSettings(model="baseline:overlap", data=str(data))
    one = score_file(settings, tmp_path / "one.jsonl")
    told = []
    results = together(
        lambda place: score_file(
            settings, tmp_path / "all.jsonl", workers=place, progress=lambda *said: told.append(said)
        )
    )
    assert results == [one, None, None]
    assert (tmp_path / "all.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert told[-1] == ("scoring", 230, 230)
    assert not (tmp_path / "all.jsonl.partial").exists()


@KILLED
@pytest.mark.parametrize("then", ["alone", "together"])
@pytest.mark.parametrize("last", [20, 100, 200])
def test_a_killed_scoring_is_continued_by_any_number_of_processes(tmp_path, data, mortal, last, then):
    settings, out = ScoreSettings(model="baseline:overlap", data=str(data)), tmp_path / "scored.jsonl"
    score_file(settings, tmp_path / "one.jsonl")
    first = mortal(last)
    ways = {
        "alone": lambda: score_file(settings, out),
        "together": lambda: together(lambda place: score_file(settings, out, workers=place)),
    }
    then, before = ways.pop(then), *ways.values()
    with pytest.raises(Killed):
        before()
    rest = mortal(None)
    then()
    assert out.read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert sorted(first + rest) == sorted(json.loads(line)["id"] for line in data.open()), (
        "nothing is lost or asked twice"
    )


def test_a_part_that_is_lost_is_not_passed_over(tmp_path, data, monkeypatch):
    """Negative control: the rows of others are missing where nobody joins what they wrote."""
    monkeypatch.setattr(scored_file, "join_parts", lambda *_: None)
    settings = ScoreSettings(model="baseline:overlap", data=str(data))
    with pytest.raises(DataError, match=r"data.jsonl, line \d+"):
        together(lambda place: score_file(settings, tmp_path / "all.jsonl", workers=place))


@pytest.fixture
def evaluation(data):
    judging = {"resamples": 100, "context_check": "swapped", "examples": 2}
    return Evaluation.model_validate(
        {"model": "baseline:overlap", "bench": f"file:{data}", "judging": judging}
    )


def files(folder):
    return {name: (folder / name).read_bytes() for name in LOGS}


def test_an_evaluation_by_several_is_that_of_one(tmp_path, evaluation):
    one = run_evaluation(evaluation, tmp_path / "one").to_dict()
    results = together(lambda place: run_evaluation(evaluation, tmp_path / "all", place=place).to_dict())
    assert results == [one] * COUNT
    assert files(tmp_path / "all") == files(tmp_path / "one")
    assert not list((tmp_path / "all").glob("*part*"))


@KILLED
@pytest.mark.parametrize("then", ["alone", "together"])
def test_a_killed_evaluation_is_continued_by_any_number_of_processes(tmp_path, evaluation, mortal, then):
    run_evaluation(evaluation, tmp_path / "one")
    first = mortal(100)
    out = tmp_path / "cut"
    ways = {
        "alone": lambda: run_evaluation(evaluation, out).to_dict(),
        "together": lambda: together(lambda place: run_evaluation(evaluation, out, place=place).to_dict()),
    }
    then, before = ways.pop(then), *ways.values()
    with pytest.raises(Killed):
        before()
    logged = {record.id for record in read_judgments(tmp_path / "cut")}
    assert 0 < len(logged) < 230
    rest = mortal(None)
    then()
    assert files(tmp_path / "cut") == files(tmp_path / "one")
    assert logged <= set(first)
    assert not logged & set(rest), "what was logged is not asked again"


def test_a_server_is_asked_by_one_process(tmp_path, data):
    model = "compress:openai:http://127.0.0.1:9/v1#x"
    with pytest.raises(ConfigError, match="torchrun"):
        score_file(
            ScoreSettings(model=model, data=str(data)), tmp_path / "x.jsonl", workers=WorkerGroup(1, 2)
        )
    with pytest.raises(ConfigError, match="torchrun"):
        run_evaluation(Evaluation(model=model, bench=f"file:{data}"), tmp_path / "x", place=WorkerGroup(1, 2))
    with pytest.raises(ConfigError, match="ray"):
        score_file(ScoreSettings(model=model, data=str(data), engine="ray"), tmp_path / "x.jsonl")


def test_engines_that_cannot_be_combined_are_refused(tmp_path, data):
    ray = ScoreSettings(model="baseline:overlap", data=str(data), engine="ray")
    with pytest.raises(ConfigError, match="torchrun"):
        score_file(ray, tmp_path / "x.jsonl", workers=WorkerGroup(0, 2))
    with pytest.raises(ConfigError, match="--workers"):
        ScoreSettings.resolve(None, {"model": "baseline:overlap", "data": str(data), "workers": 2})
