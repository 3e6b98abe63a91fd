"""A run killed at any moment, by any number of processes, ends with the records of one that was never killed."""

import json
from dataclasses import dataclass
from unittest.mock import patch

import pytest

from longrm.errors import ConfigError, DataError, RunError
from longrm.runs.logs import Log
from longrm.runs.resumable import ResumableRun, Shard, merged, unique
from tests.kills import Killed, killed_everywhere
from tests.workers import together

NAMES = [f"n{number}" for number in range(11)]
SIZE = 3  # inputs of a batch


@dataclass(frozen=True)
class Input:
    id: str


@dataclass(frozen=True)
class Result:
    id: str
    value: int
    failed: bool = False


@dataclass(frozen=True)
class Note:
    id: str


KINDS = {"notes.jsonl": Note, "results.jsonl": Result}
LOGS = tuple(KINDS)


def batches():
    inputs = [Input(name) for name in NAMES]
    return [inputs[at : at + SIZE] for at in range(0, len(inputs), SIZE)]


class Work:
    """Notes every second input; lists what it worked on; fails for some inputs; dies at one of them."""

    def __init__(self, failing=(), dies_at=None):
        self.seen, self.failing, self.dies_at = [], failing, dies_at

    def __call__(self, batch):
        names = [one.id for one in batch]
        if self.dies_at in names:
            raise Killed
        self.seen += names
        # The batch is part of the value, as rounding and shared prefixes would be.
        results = [Result(name, len("".join(names)), failed=name in self.failing) for name in names]
        return {"notes.jsonl": [Note(name) for name in names[::2]], "results.jsonl": results}


def perform(folder, work, workers=None, progress=lambda done: None):
    folder.mkdir(exist_ok=True)
    run = ResumableRun(folder, KINDS, workers)
    done = {
        "notes.jsonl": {note.id for note in run.read("notes.jsonl")},
        "results.jsonl": {result.id for result in run.read("results.jsonl") if not result.failed},
    }
    count = run.run(batches(), work, done, progress=progress)
    if workers is None or workers.is_main_process:
        for name in LOGS:
            run.arrange(name, NAMES)
    return count


def logs(folder):
    return [(folder / name).read_bytes() for name in LOGS]


@pytest.fixture
def whole(tmp_path):
    perform(tmp_path / "whole", Work())
    return logs(tmp_path / "whole")


def perform_again(folder, count):
    """Continues a run alone or with others; returns what they worked on, in no order."""
    works = [Work() for _ in range(count)]
    if count == 1:
        perform(folder, works[0])
    else:
        together(lambda worker: perform(folder, works[worker.rank], worker), count)
    return [name for work in works for name in work.seen]


def test_it_works_on_every_input_once_and_reports_what_is_done(tmp_path):
    work, reports = Work(), []
    assert perform(tmp_path / "run", work, progress=reports.append) == len(NAMES)
    assert work.seen == NAMES
    assert reports == [0, 3, 6, 9, 11]
    assert [json.loads(line)["id"] for line in logs(tmp_path / "run")[1].splitlines()] == NAMES
    again = Work()
    assert perform(tmp_path / "run", again) == 0
    assert again.seen == []


@pytest.mark.parametrize("at", NAMES)
@pytest.mark.parametrize("then", [1, 2])
def test_killed_in_any_batch_it_continues_alone_or_with_others(tmp_path, whole, at, then):
    with pytest.raises(Killed):
        perform(tmp_path / "cut", Work(dies_at=at))
    rest = perform_again(tmp_path / "cut", then)
    assert logs(tmp_path / "cut") == whole
    number = NAMES.index(at)
    assert sorted(rest) == sorted(NAMES[number - number % SIZE :])


@pytest.mark.parametrize("at", NAMES)
@pytest.mark.parametrize("then", [1, 2])
def test_several_of_which_one_is_killed_in_any_batch_are_continued_by_any_number(tmp_path, whole, at, then):
    (tmp_path / "cut").mkdir()
    with pytest.raises(Killed):
        together(lambda worker: perform(tmp_path / "cut", Work(dies_at=at), worker))
    perform_again(tmp_path / "cut", then)
    assert logs(tmp_path / "cut") == whole
    assert not list((tmp_path / "cut").glob("*part*"))


@pytest.mark.parametrize("cut_notes", [False, True])
def test_cut_at_any_byte_the_logs_end_equal(tmp_path, whole, cut_notes):
    """A kill in the middle of a write; the last log never has more batches than the others."""
    notes, results = whole
    folder = tmp_path / "cut"
    for end in range(0, len(results), 5):
        folder.mkdir(exist_ok=True)
        left = results[:end]
        batches_left = left.count(b"\n") // SIZE
        lines = notes.splitlines(keepends=True)
        (folder / LOGS[0]).write_bytes(b"".join(lines[: 2 * batches_left]) if cut_notes else notes)
        (folder / LOGS[1]).write_bytes(left)
        perform(folder, Work())
        assert logs(folder) == whole, end


def test_killed_at_any_change_of_the_folder_it_ends_equal(tmp_path, whole):
    def check(place):
        assert logs(place / "run") == whole

    def work(place):
        folder = place / "run"
        folder.mkdir(exist_ok=True)
        for rank in (1, 2):  # parts of killed processes
            records = Work()(batches()[rank])
            for name, kind in KINDS.items():
                with Log(folder / name.replace(".", f".part-{rank}."), kind) as part:
                    part.append(*records[name])
        perform(folder, Work())

    (tmp_path / "kills").mkdir()
    assert killed_everywhere(work, check, tmp_path / "kills") > 8


@pytest.mark.parametrize("count", [1, 3])
def test_inputs_that_failed_are_tried_again_and_take_their_place(tmp_path, whole, count):
    folder = tmp_path / "run"
    perform(folder, Work(failing=("n1", "n9")))
    assert logs(folder) != whole
    rest = perform_again(folder, count)
    assert logs(folder) == whole
    # The whole batch is worked on again, and what was done before is dropped.
    assert sorted(rest) == sorted(NAMES[:3] + NAMES[9:])


def test_without_the_parts_of_the_others_records_are_missing(tmp_path, whole):
    """Negative control."""
    with patch.object(ResumableRun, "_join", lambda run: None):
        (tmp_path / "run").mkdir()
        together(lambda worker: perform(tmp_path / "run", Work(), worker))
    assert logs(tmp_path / "run") != whole
    perform(tmp_path / "run", Work())
    assert logs(tmp_path / "run") == whole


@pytest.mark.parametrize(("first", "second"), [LOGS, LOGS[::-1]])
def test_a_kill_between_two_logs_ends_equal(tmp_path, whole, first, second):
    """Negative control: with the deciding log first, the records of the other one are lost."""
    append, killed = Log.append, []

    def append_or_die(log, *records):
        if log.path.name == second and log.path.stat().st_size and not killed:
            killed.append(second)
            raise Killed
        append(log, *records)

    (tmp_path / "run").mkdir()
    run = ResumableRun(tmp_path / "run", {first: KINDS[first], second: KINDS[second]})
    with patch.object(Log, "append", append_or_die), pytest.raises(Killed):
        run.run(batches(), Work(), dict.fromkeys(LOGS, ()))
    perform(tmp_path / "run", Work())
    assert (logs(tmp_path / "run") == whole) is (second == "results.jsonl")


def test_ctrl_c_in_a_batch_keeps_the_batches_before_it(tmp_path):
    work = Work()

    def interrupted(batch):
        if work.seen:
            raise KeyboardInterrupt
        return work(batch)

    with pytest.raises(KeyboardInterrupt):
        perform(tmp_path / "run", interrupted)
    assert logs(tmp_path / "run")[1].count(b"\n") == SIZE


def test_batches_that_are_skipped_are_seen_in_order(tmp_path):
    (tmp_path / "run").mkdir()
    run = ResumableRun(tmp_path / "run", {"results.jsonl": Result})
    seen = []

    def work(batch):
        seen.append(("work", batch[0].id))
        return {"results.jsonl": [Result(one.id, 1) for one in batch]}

    def skip(batch):
        seen.append(("skip", batch[0].id))
        return {}

    run.run(batches(), work, {"results.jsonl": {"n3", "n4", "n5"}}, skip=skip)
    assert seen == [("work", "n0"), ("skip", "n3"), ("work", "n6"), ("work", "n9")]
    assert [result.id for result in run.read("results.jsonl")] == NAMES[:3] + NAMES[6:]


def test_progress_within_a_batch(tmp_path):
    reports = []
    tmp_path.mkdir(exist_ok=True)
    run = ResumableRun(tmp_path, {"results.jsonl": Result})

    def work(batch):
        run.report(0.5)
        return {"results.jsonl": [Result(one.id, 1) for one in batch]}

    run.run(batches()[:2], work, {"results.jsonl": ()}, progress=reports.append)
    assert reports == [0, 1, 3, 4, 6]


def test_a_damaged_part_is_named(tmp_path):
    (tmp_path / "results.part-2.jsonl").write_bytes(b'{"numb\n')
    with pytest.raises(RunError, match=r"part-2.jsonl, line 1: "):
        ResumableRun(tmp_path, {"results.jsonl": Result})


def test_a_process_that_does_not_see_the_folder_is_an_error(tmp_path):
    with pytest.raises(RunError, match="nowhere"):
        ResumableRun(tmp_path / "nowhere", {"results.jsonl": Result})


def test_two_inputs_with_one_id_are_an_error():
    assert [one.id for one in unique(map(Input, NAMES))] == NAMES
    with pytest.raises(DataError, match="'n0'"):
        list(unique(map(Input, [*NAMES, "n0"])))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_merged_shards_are_the_whole(count):
    dealt = [
        [one.id for number, batch in enumerate(batches()) if number in Shard(at, count) for one in batch]
        for at in range(1, count + 1)
    ]
    sizes = [len(batch) for batch in batches()]
    assert [*merged(dealt, sizes)] == NAMES
    dealt[0].append("surplus")
    assert [*merged(dealt, sizes)] == [*NAMES, "surplus"]


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2"])
def test_what_is_not_a_shard_is_an_error(text):
    with pytest.raises(ConfigError):
        Shard.parse(text)
