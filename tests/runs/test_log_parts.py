from dataclasses import dataclass

import pytest

from longrm.errors import RunError
from longrm.runs.logs import Log, join_parts, part_of, parts_of


@dataclass(frozen=True)
class Line:
    number: int


def put(path, *numbers):
    with Log(path, Line) as log:
        log.append(*map(Line, numbers))


def test_the_first_process_writes_the_log_and_the_others_parts_that_join_it(tmp_path):
    path = tmp_path / "scores.jsonl"
    for rank in range(3):
        put(part_of(path, rank), rank, rank + 10)
    put(tmp_path / "other.part-1.jsonl", 99)
    assert part_of(path, 0) == path
    assert len(parts_of(path)) == 2
    join_parts(path, Line)
    assert [line.number for line in Log(path, Line)] == [0, 10, 1, 11, 2, 12]
    assert not parts_of(path)
    assert (tmp_path / "other.part-1.jsonl").exists()


def test_a_half_written_line_of_a_part_is_left_out_and_a_damaged_one_refused(tmp_path):
    path = tmp_path / "scores.jsonl"
    put(part_of(path, 1), 1)
    with part_of(path, 1).open("ab") as file:
        file.write(b'{"numb')
    join_parts(path, Line)
    assert [line.number for line in Log(path, Line)] == [1]
    part_of(path, 2).write_bytes(b'{"numb\n')
    with pytest.raises(RunError, match=r"part-2.jsonl, line 1: "):
        join_parts(path, Line)


def test_joining_that_was_killed_is_done_again(tmp_path):
    path = tmp_path / "scores.jsonl"
    put(part_of(path, 1), 1, 2)
    put(path, 0, 1)  # as one that was killed left it
    join_parts(path, Line)
    assert {line.number for line in Log(path, Line)} == {0, 1, 2}
