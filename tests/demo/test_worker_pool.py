import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longrm.demo.worker_pool import DemoTask, WorkerPool
from longrm.errors import TrainingError


def note(path, text, *, progress):
    progress("noting", 1, 2)
    path.write_text(f"{text} {os.getpid()}")
    progress("noting", 2, 2)


def fail(*, progress):
    raise TrainingError("the loss of step 3 is nan")


def test_tasks_run_in_other_processes_and_report(tmp_path):
    told, finished = [], []
    with WorkerPool(2, "all", lambda *message: told.append(message)) as workers:
        tasks = [DemoTask(name, note, (tmp_path / name, name)) for name in ("a", "b", "c")]
        seconds = workers.run(tasks, finished.append)
    assert sorted(seconds) == ["a", "b", "c"]
    assert all(value >= 0 for value in seconds.values())
    pids = {int((tmp_path / name).read_text().split()[1]) for name in ("a", "b", "c")}
    assert os.getpid() not in pids
    assert sorted(finished) == ["a", "b", "c"]
    assert {(label, total) for label, _, total, _ in told} == {("all", 100)}
    percents = [done for _, done, _, _ in told]
    assert percents == sorted(percents)
    assert percents[-1] == 100


def halfway(start, *, progress):
    progress("some work", 1, 2)
    while not start.exists():
        time.sleep(0.05)


def test_progress_is_the_share_of_all_work_and_names_what_runs(tmp_path):
    told = []

    def tell(*message):
        told.append(message)
        if "1/2" in message[3]:
            (tmp_path / "go").write_text("")

    with WorkerPool(1, "all", tell) as workers:
        small = DemoTask("small", need, (tmp_path,), work=20)
        workers.run([small, DemoTask("large", halfway, (tmp_path / "go",), ("small",), work=60)])
    assert ("all", 62, 100, "large 1/2") in told
    assert told[-1] == ("all", 100, 100, "")


def need(path, *, progress):
    assert path.exists()


def test_a_part_waits_for_those_before_it(tmp_path):
    last = DemoTask("last", need, (tmp_path / "first",), ("first",))
    with WorkerPool(2, "all", lambda *_: None) as workers:
        assert list(workers.run([last, DemoTask("first", note, (tmp_path / "first", "x"))])) == [
            "first",
            "last",
        ]
        with pytest.raises(AssertionError, match="wait for each other"):
            workers.run([DemoTask("a", note, (), ("b",)), DemoTask("b", note, (), ("a",))])


def after(path, before, *, progress):
    assert before is None or before.exists()
    path.write_text("")


def test_a_free_worker_takes_the_first_part_that_can_be_done(tmp_path):
    """The way that is listed first goes on before what has waited longer."""
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    tasks = [
        DemoTask("first", after, (first, None)),
        DemoTask("second", after, (second, first), ("first",)),
        DemoTask("other", after, (other, second)),  # which fails where it is done before
    ]
    with WorkerPool(1, "all", lambda *_: None) as workers:
        assert list(workers.run(tasks)) == ["first", "second", "other"]
        first.unlink(), second.unlink()
        with pytest.raises(AssertionError):
            workers.run([tasks[0], tasks[2], tasks[1]])


def test_what_a_part_raises_is_raised_here():
    with (
        WorkerPool(1, "all", lambda *_: None) as workers,
        pytest.raises(TrainingError, match="step 3 is nan"),
    ):
        workers.run([DemoTask("fails", fail, ())])


WAITING = """
import sys, time
from pathlib import Path
from longrm.demo.worker_pool import DemoTask, WorkerPool

def wait(path, *, progress):
    path.write_text(str(__import__('os').getpid()))
    time.sleep(600)

if __name__ == "__main__":
    with WorkerPool(1, "all", lambda *_: None) as workers:
        workers.run([DemoTask("waits", wait, (Path(sys.argv[1]),))])
"""


def running(pid):
    """Whether a process lives; one that has ended and was not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    except OSError:
        return False


def main_and_worker(tmp_path):
    """A main process of its own group, and the id of its worker, which waits for long."""
    script, pid_file = tmp_path / "main.py", tmp_path / "pid"
    script.write_text(WAITING)
    main = subprocess.Popen(
        [sys.executable, str(script), str(pid_file)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not (pid_file.exists() and pid_file.read_text()):
        assert time.monotonic() < deadline
        os.sched_yield()
    worker = int(pid_file.read_text())
    assert running(worker)
    return main, worker


def ends(worker):
    deadline = time.monotonic() + 60
    while running(worker):
        assert time.monotonic() < deadline, "the worker outlived its main process"
        os.sched_yield()


def test_a_worker_ends_when_the_main_process_is_killed(tmp_path):
    main, worker = main_and_worker(tmp_path)
    main.kill()
    main.communicate()
    ends(worker)


def test_ctrl_c_ends_workers_at_once_and_the_main_process_alone_speaks(tmp_path):
    """A terminal sends it to all of them; the part itself would take ten minutes more."""
    main, worker = main_and_worker(tmp_path)
    os.killpg(main.pid, signal.SIGINT)
    _, errors = main.communicate(timeout=60)
    ends(worker)
    assert (errors.count("Traceback"), errors.splitlines()[-1]) == (1, "KeyboardInterrupt"), errors
