import json
from dataclasses import replace

import pytest

from longrm.benchmarks import Benchmark, Cell, Leval, Probe, Source, load
from longrm.data import write
from longrm.errors import ConfigError, DataError
from longrm.evaluation.asking import Judging
from longrm.evaluation.run import Evaluation, run
from longrm.evaluation.runner import evaluate
from longrm.reward_models import RewardModel
from longrm.reward_models import load as load_model
from longrm.runs.folder import RunFolder
from longrm.runs.logs import Log
from longrm.runs.records import ExampleRecord
from longrm.types import Comparison, Judgment, Outcome
from longrm.worlds import Plan, generate, words


def rows(n=300, length=64, responses=2, seed=0):
    return list(generate(Plan("records", length, responses=responses, per_group=3, seed=seed), n, words()))


def best_first(comparisons):
    """The same data with the best response always listed first, as published benchmarks have it."""
    return [
        replace(
            row,
            responses=tuple(row.responses[index] for index in row.best_first()),
            ranks=tuple(sorted(row.ranks)),
        )
        for row in comparisons
    ]


class Counting(RewardModel):
    """Scores by a hash of the response; counts what it is asked, and can fail."""

    name = "counting"

    def __init__(self, stop_after=None, broken=()):
        self.asked = []
        self._stop_after = stop_after
        self._broken = set(broken)
        self._inner = load_model("baseline:random")

    def judge(self, queries):
        if self._stop_after is not None and len(self.asked) >= self._stop_after:
            raise KeyboardInterrupt
        self.asked += [query.id for query in queries]
        judged = self._inner.judge(queries)
        return [
            Judgment(Outcome.ERROR, detail="connection lost") if query.id in self._broken else judgment
            for query, judgment in zip(queries, judged, strict=True)
        ]


def judge(comparisons, model, path, **judging):
    with RunFolder(path, "evaluation", Evaluation(model="x", bench="x")) as folder:
        return evaluate(
            Benchmark("test", comparisons), model, folder, judging=Judging(resamples=200, **judging)
        )


def logs(path):
    return tuple((path / f"{name}.jsonl").read_bytes() for name in ("judgments", "examples", "gold"))


@pytest.mark.parametrize("length", [64, 200])
def test_a_query_tells_nothing_of_the_gold(tmp_path, length):
    """On best-first data the first position is right always; the drawn order must hide it."""
    data = best_first(rows(600, length, responses=2 if length == 64 else 4))
    first = judge(data, load_model("baseline:first"), tmp_path / "first", orders="one")
    accuracy = first["metrics"]["overall"]["pair_accuracy"]
    assert accuracy["low"] < 0.5 < accuracy["high"]
    gold = judge(data, Peeking(data), tmp_path / "gold")
    assert gold["metrics"]["overall"]["pair_accuracy"]["value"] == 1.0


class Peeking(RewardModel):
    """Negative control: is given the key by its constructor."""

    name = "peeking"

    def __init__(self, data):
        self._key = {row.id: dict(zip(map(str, row.responses), row.ranks, strict=True)) for row in data}

    def judge(self, queries):
        return [
            Judgment(Outcome.ANSWERED, tuple(-float(self._key[query.id][str(r)]) for r in query.responses))
            for query in queries
        ]


@pytest.mark.parametrize("stop_after", [64, 130, 260])
def test_a_stopped_run_continues_without_asking_again_and_ends_equal(tmp_path, stop_after):
    data = rows()
    whole = judge(data, Counting(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        judge(data, Counting(stop_after), tmp_path / "cut")
    rest = Counting()
    assert judge(data, rest, tmp_path / "cut") == whole
    assert logs(tmp_path / "cut") == logs(tmp_path / "whole")
    assert 0 < len(rest.asked) < len(data)


def test_a_log_cut_anywhere_in_its_last_records_ends_equal(tmp_path):
    data = rows(90)
    whole = judge(data, Counting(), tmp_path / "run")
    judgments, examples, gold = logs(tmp_path / "run")
    for cut in range(1, 400, 7):
        (tmp_path / "run/judgments.jsonl").write_bytes(judgments[:-cut])
        assert judge(data, Counting(), tmp_path / "run") == whole
        assert logs(tmp_path / "run") == (judgments, examples, gold)


def test_errors_leave_the_run_incomplete_and_are_tried_again(tmp_path):
    data = rows(30)
    broken = [data[3].id, data[20].id]
    summary = judge(data, Counting(broken=broken), tmp_path / "run")
    assert not summary["complete"]
    assert summary["counts"]["outcomes"]["error"] == 2
    again = judge(data, Counting(), tmp_path / "run")
    assert again == judge(data, Counting(), tmp_path / "clean")


def test_a_run_in_which_nothing_could_be_judged_says_why(tmp_path):
    data = rows(6)
    with pytest.raises(
        DataError,
        match=rf"no comparison of 'test' could be judged; the first, '{data[0].id}': connection lost",
    ):
        judge(data, Counting(broken=[row.id for row in data]), tmp_path / "run")


def test_data_that_changed_under_a_run_is_refused(tmp_path):
    data = rows(6)
    judge(data, Counting(), tmp_path / "run")
    with pytest.raises(DataError, match=r"holds 3 judgments, such as .* no longer has; the data has changed"):
        judge(data[:3], Counting(), tmp_path / "run")


def test_permuting_the_gold_leaves_the_judgments_unchanged(tmp_path):
    data = rows(60)
    swapped = [replace(row, ranks=row.ranks[::-1]) for row in data]
    one = judge(data, Counting(), tmp_path / "one")
    other = judge(swapped, Counting(), tmp_path / "other")
    (left, *_, left_gold), (right, *_, right_gold) = (logs(tmp_path / name) for name in ("one", "other"))
    assert left == right
    assert left_gold != right_gold
    accuracies = [s["metrics"]["overall"]["pair_accuracy"]["value"] for s in (one, other)]
    assert sum(accuracies) == pytest.approx(1.0)


def test_gold_that_changed_under_a_run_is_refused(tmp_path):
    data = rows(6)
    judge(data, Counting(), tmp_path / "run")
    changed = [*data[:5], replace(data[5], ranks=data[5].ranks[::-1])]
    with pytest.raises(DataError, match=f"the gold order of '{data[5].id}' has changed"):
        judge(changed, Counting(), tmp_path / "run")


def test_examples_are_the_first_of_different_contexts(tmp_path):
    data = [*rows(30, 64), *rows(30, 100)]
    judge(data, Counting(), tmp_path / "run", examples=2)
    kept = [record.id for record in Log(tmp_path / "run/examples.jsonl", ExampleRecord)]
    assert kept == [data[0].id, data[3].id, data[30].id, data[33].id]


def test_a_repeated_id_an_empty_benchmark_and_judgments_are_refused(tmp_path):
    data = rows(3)
    with pytest.raises(DataError, match="two comparisons have the id"):
        judge([*data, data[0]], Counting(), tmp_path / "a")
    with pytest.raises(DataError, match="holds no comparison"):
        judge([], Counting(), tmp_path / "b")
    with pytest.raises(DataError, match="are judgments"):
        judge([replace(data[0], role="judgment")], Counting(), tmp_path / "c")


def test_measured_tokens_make_the_bucket_where_the_data_names_no_length(tmp_path):
    class Measured(Counting):
        def judge(self, queries):
            return [replace(judgment, prompt_tokens=1025) for judgment in super().judge(queries)]

    data: list[Comparison] = [replace(row, metadata={}) for row in rows(4)]
    summary = judge(data, Measured(), tmp_path / "run")
    assert list(summary["metrics"]["by_length"]) == ["2048"]


def test_a_file_and_a_probe_are_benchmarks_by_name(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, rows(6))
    settings = Evaluation(model="baseline:random", bench=f"file:{path}", source=Source(limit=4))
    summary = run(settings, tmp_path / "file")
    assert summary["counts"]["comparisons"] == 4
    probe = Probe(cells=(Cell(lengths=(64, 128), groups=2, per_group=3),))
    summary = run(Evaluation(model="baseline:random", bench="probe", probe=probe), tmp_path / "probe")
    assert {n: m["pair_accuracy"]["n"] for n, m in summary["metrics"]["by_length"].items()} == {
        "64": 6,
        "128": 6,
    }
    assert json.loads((tmp_path / "probe/summary.json").read_text()) == summary
    for name in ("nothing", "file", "probe:x"):
        with pytest.raises(ConfigError, match="no benchmark"):
            load(name, source=Source(), probe=Probe(), leval=Leval())
