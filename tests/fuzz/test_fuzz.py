"""Bad input of every kind through the real command line: one line that names the file, or it is read.

No traceback, no hang, no memory beyond the limit. `python -m tests.fuzz KIND COUNT` tries more of them.
"""

import re

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .driver import KINDS, Result, Tally, Worker, attempt, corpus_of, empty_folder, fault_in, worker_for

PLAIN, FULL = 300 // len(KINDS), 5000 // len(KINDS)


def tried(kind, count, record_property, *, large=False):
    tally = Tally(kind)
    with worker_for(kind) as worker:

        def once(seed):
            with empty_folder() as folder:
                attempt(worker, kind, seed, folder, tally)

        for name in corpus_of(kind, large=large):
            once(name)
        # What is shrunk is a number that stands for an input: a smaller one means nothing.
        rules = settings(
            max_examples=count,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        rules(given(seed=st.integers(0, 2**48))(once))()
    record_property("fuzz", tally.line())
    assert not tally.faults, f"{len(tally.faults)} faults, first:\n" + "\n".join(tally.faults[:5])


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_is_read_or_refused_in_one_line(kind, record_property):
    tried(kind, PLAIN, record_property)


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_much_bad_input_is_read_or_refused_in_one_line(kind, record_property):
    tried(kind, FULL, record_property, large=True)


@pytest.fixture(scope="module")
def worker():
    made = Worker()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("control", "fault"),
    [
        ("raise", "a traceback"),
        ("wait", "waited without end"),
        ("spin", "it worked too long"),
        ("eat", "held 2,.* bytes"),
        ("reach", "a traceback"),
    ],
)
def test_the_driver_notices_a_command_that_fails(control, fault, worker, tmp_path):
    seconds, wait = 1 if control == "spin" else 20, 1 if control == "wait" else 60
    result = worker.run([], tmp_path, control=control, seconds=seconds, wait=wait)
    assert re.search(fault, fault_in(result, set()))


def refused(*lines, status=1, peak=0):
    return Result(status, False, peak, "", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (refused("longrm: error: a.jsonl, line 3, field 'id': empty"), ""),
        (refused("reading a.jsonl", "longrm: error: a.jsonl, line 3: not valid JSON"), ""),
        (refused("longrm: error: a.jsonl, line 3: 'dict' object"), "no field"),
        (refused("longrm: error: no such thing"), "names no file"),
        (refused("longrm: error: a.jsonl", "longrm: error: a.jsonl"), "2 lines"),
        (refused("longrm: interrupted"), "1 lines of"),
        (refused("longrm: error: a.jsonl", "and more"), "after the refusal"),
        (refused("Killed", status=-9), "ended by signal 9"),
        (refused("", status=0, peak=3 << 30), "held"),
        (refused("longrm: error: a.jsonl: too large to be held in memory"), "asked for more memory"),
        (refused("longrm: error: a.jsonl", status=130), "exit status 130"),
    ],
)
def test_the_driver_tells_a_good_refusal_from_a_bad_one(result, fault):
    found = fault_in(result, {"a.jsonl"})
    assert fault in found if fault else not found
