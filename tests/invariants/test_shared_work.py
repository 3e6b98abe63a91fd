"""Processes (threads here) that share an evaluation or a file of scores write what one process would have written."""

import json

import pytest

from longrm import reward_models
from longrm.data import write
from longrm.errors import ConfigError, DataError
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.reward_models.baselines import Baseline
from longrm.runs.judgments import Judgments
from longrm.runs.resumable import ResumableRun
from longrm.runs.workers import WorkerGroup
from longrm.scoring.scored_file import ScoreSettings, score_file
from longrm.worlds import WorldPlan, generate, words_tokenizer
from tests.workers import together

COUNT = 3
LOGS = ("judgments.jsonl", "gold.jsonl", "examples.jsonl", "results.csv", "items.parquet", "summary.json")


# A killed thread leaves its generators to the garbage collector, which complains about them.
KILLED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Killed(Exception):
    pass


class Mortal(Baseline):
    """A baseline that lists its queries and raises `Killed` after some number of them, counted over all threads."""

    asked: list[str]
    last: int | None

    def judge(self, queries):
        if self.last is not None and len(self.asked) >= self.last:
            raise Killed
        self.asked += [query.id for query in queries]
        return super().judge(queries)


@pytest.fixture
def mortal(monkeypatch):
    """Makes `reward_models.load` return `Mortal` baselines."""

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
    reports = []

    def score(place):
        progress = lambda *report: reports.append(report)  # noqa: E731
        return score_file(settings, tmp_path / "all.jsonl", workers=place, progress=progress)

    results = together(score)
    assert results == [one, None, None]
    assert (tmp_path / "all.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert reports[-1] == ("scoring", 230, 230)
    assert not (tmp_path / "all.jsonl.partial").exists()


@KILLED
@pytest.mark.parametrize("then", ["alone", "together"])
@pytest.mark.parametrize("last", [20, 100, 200])
def test_a_killed_scoring_is_continued_by_any_number_of_processes(tmp_path, data, mortal, last, then):
    settings, out = ScoreSettings(model="baseline:overlap", data=str(data)), tmp_path / "scored.jsonl"
    score_file(settings, tmp_path / "one.jsonl")
    first = mortal(last)
    alone = lambda: score_file(settings, out)  # noqa: E731
    several = lambda: together(lambda place: score_file(settings, out, workers=place))  # noqa: E731
    with pytest.raises(Killed):
        several() if then == "alone" else alone()
    rest = mortal(None)
    alone() if then == "alone" else several()
    assert out.read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    ids = [json.loads(line)["id"] for line in data.open()]
    assert sorted(first + rest) == sorted(ids), "every row is scored exactly once"


def test_a_lost_part_is_an_error(tmp_path, data, monkeypatch):
    """Negative control: without joining the parts, the rows of other processes are missing."""
    monkeypatch.setattr(ResumableRun, "_join", lambda run: None)
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
    results = together(lambda place: run_evaluation(evaluation, tmp_path / "all", workers=place).to_dict())
    assert results == [one] * COUNT
    assert files(tmp_path / "all") == files(tmp_path / "one")
    assert not list((tmp_path / "all").glob("*part*"))


@KILLED
@pytest.mark.parametrize("then", ["alone", "together"])
def test_a_killed_evaluation_is_continued_by_any_number_of_processes(tmp_path, evaluation, mortal, then):
    run_evaluation(evaluation, tmp_path / "one")
    first = mortal(100)
    alone = lambda: run_evaluation(evaluation, tmp_path / "cut")  # noqa: E731
    several = lambda: together(lambda place: run_evaluation(evaluation, tmp_path / "cut", workers=place))  # noqa: E731
    with pytest.raises(Killed):
        several() if then == "alone" else alone()
    logged = {record.id for record in Judgments(tmp_path / "cut")}
    assert 0 < len(logged) < 230
    rest = mortal(None)
    alone() if then == "alone" else several()
    assert files(tmp_path / "cut") == files(tmp_path / "one")
    assert logged <= set(first)
    assert not logged & set(rest), "logged judgments are not repeated"


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"model": "compress:openai:http://127.0.0.1:9/v1#x"}, WorkerGroup(1, 2)),
        ({"model": "compress:openai:http://127.0.0.1:9/v1#x", "engine": "ray"}, WorkerGroup()),
        ({"model": "baseline:overlap", "engine": "ray"}, WorkerGroup(0, 2)),
        ({"model": "baseline:overlap", "workers": 2}, WorkerGroup()),
    ],
    ids=["server in two processes", "server and ray", "ray in two processes", "workers without ray"],
)
def test_ways_to_share_work_that_cannot_be_combined_are_errors(tmp_path, data, settings, place):
    with pytest.raises(ConfigError):
        score_file(
            ScoreSettings.resolve(None, {"data": str(data), **settings}), tmp_path / "x.jsonl", workers=place
        )


def test_only_one_process_evaluates_with_a_server(tmp_path, data):
    settings = Evaluation(model="openai:http://127.0.0.1:9/v1#x", bench=f"file:{data}")
    with pytest.raises(ConfigError):
        run_evaluation(settings, tmp_path / "x", workers=WorkerGroup(1, 2))
