import json
from dataclasses import replace

import pytest

from longrm.benchmarks import (
    BenchmarkSource,
    LoadedBenchmark,
    Probe,
    ProbeCell,
    load,
)
from longrm.data import write
from longrm.errors import ConfigError, DataError
from longrm.evaluation.evaluate import Evaluation, run_evaluation
from longrm.evaluation.judge import verdict
from longrm.evaluation.trials import JudgingSettings
from longrm.reward_models import RewardModel
from longrm.reward_models import load as load_model
from longrm.runs.judgments import Judgments
from longrm.runs.logs import Log
from longrm.runs.records import ExampleRecord
from longrm.types import Judgment, Outcome
from longrm.worlds import WorldPlan, generate, words_tokenizer


def rows(n=300, length=64, responses=2, seed=0):
    return list(
        generate(
            WorldPlan("records", length, responses=responses, per_group=3, seed=seed), n, words_tokenizer()
        )
    )


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
    """Scores by a hash of the response; lists its queries; can stop after some of them, or fail for some ids."""

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
    settings = Evaluation(model="x", bench="x", judging=JudgingSettings(resamples=200, **judging))
    return run_evaluation(settings, path, bench=LoadedBenchmark("test", comparisons), model=model).to_dict()


def logs(path):
    return tuple((path / f"{name}.jsonl").read_bytes() for name in ("judgments", "examples", "gold"))


@pytest.mark.parametrize("length", [64, 200])
def test_a_query_does_not_reveal_the_gold(tmp_path, length):
    """On best-first data the first position is always right; the random order must hide it."""
    data = best_first(rows(600, length, responses=2 if length == 64 else 4))
    first = judge(data, load_model("baseline:first"), tmp_path / "first", orders="one")
    accuracy = first["metrics"]["overall"]["pair_accuracy"]
    assert accuracy["low"] < 0.5 < accuracy["high"]
    gold = judge(data, Peeking(data), tmp_path / "gold")
    assert gold["metrics"]["overall"]["pair_accuracy"]["value"] == 1.0


class Peeking(RewardModel):
    """Negative control: it knows the gold."""

    name = "peeking"

    def __init__(self, data):
        self._key = {row.id: dict(zip(map(str, row.responses), row.ranks, strict=True)) for row in data}

    def judge(self, queries):
        return [
            Judgment(Outcome.ANSWERED, tuple(-float(self._key[query.id][str(r)]) for r in query.responses))
            for query in queries
        ]


@pytest.mark.parametrize("stop_after", [64, 130, 260])
def test_a_stopped_run_continues_without_repeating_queries_and_ends_equal(tmp_path, stop_after):
    data = rows()
    whole = judge(data, Counting(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        judge(data, Counting(stop_after), tmp_path / "cut")
    rest = Counting()
    assert judge(data, rest, tmp_path / "cut") == whole
    assert logs(tmp_path / "cut") == logs(tmp_path / "whole")
    assert 0 < len(rest.asked) < len(data)


def test_errors_leave_the_run_incomplete_and_are_retried(tmp_path):
    data = rows(30)
    broken = [data[3].id, data[20].id]
    summary = judge(data, Counting(broken=broken), tmp_path / "run")
    assert not summary["complete"]
    assert summary["counts"]["outcomes"]["error"] == 2
    again = judge(data, Counting(), tmp_path / "run")
    assert again == judge(data, Counting(), tmp_path / "clean")
    assert logs(tmp_path / "run") == logs(tmp_path / "clean")
    with pytest.raises(DataError, match=rf"'{data[0].id}': connection lost"):
        judge(data, Counting(broken=[row.id for row in data]), tmp_path / "nothing judged")


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


def test_a_resumed_run_swaps_the_same_contexts(tmp_path):
    data = rows()
    whole = judge(data, Counting(), tmp_path / "whole", context_check="swapped")
    with pytest.raises(KeyboardInterrupt):
        judge(data, Counting(stop_after=300), tmp_path / "cut", context_check="swapped")
    assert judge(data, Counting(), tmp_path / "cut", context_check="swapped") == whole
    assert logs(tmp_path / "cut") == logs(tmp_path / "whole")
    states = {record.context_check for record in Judgments(tmp_path / "whole")}
    assert states == {"same"}


def kept_in_full(path):
    return [record.id for record in Log(path / "examples.jsonl", ExampleRecord)]


def not_right(path):
    return {record.id for record in Judgments(path) if verdict(record) != "right"}


def test_all_misjudged_comparisons_are_kept_and_the_first_of_some_contexts_of_the_others(tmp_path):
    data = [*rows(30, 64), *rows(30, 100)]
    judge(data, Peeking(data), tmp_path / "right", examples=2)
    assert kept_in_full(tmp_path / "right") == [data[number].id for number in (0, 3, 30, 33)]
    judge(data, Counting(broken=[data[0].id, data[31].id]), tmp_path / "some", examples=2)
    missed, kept = not_right(tmp_path / "some"), kept_in_full(tmp_path / "some")
    assert {data[0].id, data[31].id} < missed < set(kept)
    assert kept == [row.id for row in data if row.id in set(kept)]
    right = [row for row in data if row.id in kept and row.id not in missed]
    for length in (64, 100):
        groups = [row.group for row in right if row.metadata["length"] == length]
        assert len(groups) == len(set(groups)) == 2
    judge(data, Counting(), tmp_path / "none", examples=0)
    assert kept_in_full(tmp_path / "none") == []


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (0, 3), (3, 0)])
def test_another_number_of_examples_repeats_no_judgment(tmp_path, before, after):
    data = rows(200)
    whole = judge(data, Counting(), tmp_path / "run", examples=before)
    again = Counting()
    assert judge(data, again, tmp_path / "run", examples=after) == whole
    assert again.asked == []
    judge(data, Counting(), tmp_path / "other", examples=after)
    assert logs(tmp_path / "run") == logs(tmp_path / "other")
    assert kept_in_full(tmp_path / "run") != [] or after == 0


def test_a_kill_between_two_logs_ends_equal(tmp_path):
    """An example is written before its judgment, so that a kill between the two leaves one too many."""
    data = rows(90)
    judge(data, Counting(), tmp_path / "run", examples=2)
    judgments, examples, gold = logs(tmp_path / "run")
    lines = judgments.splitlines(keepends=True)
    one = next(row for row in data if row.id not in kept_in_full(tmp_path / "run"))
    superfluous = ExampleRecord(one.id, one.prompt, one.responses)
    for count in (0, 10, 40):
        (tmp_path / "run/judgments.jsonl").write_bytes(b"".join(lines[:count]))
        with Log(tmp_path / "run/examples.jsonl", ExampleRecord) as log:
            log.append(superfluous)
        judge(data, Counting(), tmp_path / "run", examples=2)
        assert logs(tmp_path / "run") == (judgments, examples, gold)
    # A power cut may take the latest lines of any log.
    (tmp_path / "run/gold.jsonl").write_bytes(gold[:-200])
    (tmp_path / "run/examples.jsonl").write_bytes(examples[:-200])
    judge(data, Counting(), tmp_path / "run", examples=2)
    assert logs(tmp_path / "run") == (judgments, examples, gold)


def test_invalid_or_changed_data_are_errors(tmp_path):
    data = rows(6)
    judge(data, Counting(), tmp_path / "run")
    for comparisons, message in (
        ([*data[:5], replace(data[5], ranks=data[5].ranks[::-1])], f"gold order of '{data[5].id}'"),
        (data[:5], f"'{data[5].id}'"),
        ([*data, data[0]], f"'{data[0].id}'"),
        ([replace(data[0], role="judgment")], "judgments"),
    ):
        with pytest.raises(DataError, match=message):
            judge(comparisons, Counting(), tmp_path / "run")
    with pytest.raises(DataError, match="no row"):
        judge([], Counting(), tmp_path / "empty")


def test_a_file_and_a_probe_are_benchmarks_by_name(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, rows(6))
    settings = Evaluation(model="baseline:random", bench=f"file:{path}", source=BenchmarkSource(limit=4))
    summary = run_evaluation(settings, tmp_path / "file").to_dict()
    assert summary["counts"]["comparisons"] == 4
    probe = Probe(cells=(ProbeCell(lengths=(64, 128), groups=2, per_group=3),))
    summary = run_evaluation(
        Evaluation(model="baseline:random", bench="probe", probe=probe), tmp_path / "probe"
    ).to_dict()
    assert {n: m["pair_accuracy"]["n"] for n, m in summary["metrics"]["by_length"].items()} == {
        "64": 6,
        "128": 6,
    }
    assert json.loads((tmp_path / "probe/summary.json").read_text()) == summary
    for name in ("nothing", "file", "probe:x"):
        with pytest.raises(ConfigError, match="no benchmark"):
            load(name)


def test_progress_is_reported_from_the_start_and_within_a_batch(tmp_path):
    class Reporting(Counting):
        def judge(self, queries):
            judged = super().judge(queries)
            for share in (0.25, 0.5, 1.0):
                self.on_progress(share)
            return judged

    model, seen = Reporting(stop_after=64), []
    data = LoadedBenchmark("test", rows(100), 100)

    def judge_all():
        settings = Evaluation(model="x", bench="x", judging=JudgingSettings(resamples=100))
        progress = lambda *given: seen.append(given[:3])  # noqa: E731
        run_evaluation(settings, tmp_path / "run", bench=data, model=model, progress=progress)

    with pytest.raises(KeyboardInterrupt):
        judge_all()
    first = len(model.asked)
    steps = [0, int(0.25 * first), int(0.5 * first), first, first]
    assert seen == [("judging test", step, 100) for step in steps]
    seen.clear()
    model._stop_after = None
    judge_all()
    assert [done for _, done, _ in seen][:2] == [first, first]  # what was judged before is read first
    assert seen[-1] == ("judging test", 100, 100)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    model.on_progress(0.5)  # no longer reported
    assert seen[-1] == ("judging test", 100, 100)
