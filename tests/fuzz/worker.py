"""A process that imports longrm once, and runs every command line it is sent in a child of its own.

A script, started by `driver.Worker`; requests and answers are lines of JSON. A child cannot harm the next one: it has
its own limits of memory and time, and what it does not survive is told.
"""

import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path


def _raise():
    print("longrm: error: one line, and then", file=sys.stderr)
    raise KeyError("an error that nobody turned into a line")


def _wait():
    time.sleep(3600)


def _spin():
    while True:
        pass


def _eat():
    held = b"x" * (2200 << 20)
    assert held


def _reach():
    bytearray(64 << 30)


CONTROLS = {"raise": _raise, "wait": _wait, "spin": _spin, "eat": _eat, "reach": _reach}
"""What the driver must notice, if a command line did it."""


def run(request):
    """Runs one command line, or a control, in this process; returns its exit status."""
    from longrm.cli.main import main

    sys.argv = ["longrm", *request["args"]]
    try:
        control = request.get("control")
        CONTROLS[control]() if control else main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _limit(request):
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + request["bytes"],) * 2)
    # A busy machine stretches the time that passes, and not the time that is worked.
    resource.setrlimit(resource.RLIMIT_CPU, (request["seconds"], request["seconds"] + 1))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _child(request):
    os.setsid()
    os.chdir(request["folder"])
    for descriptor, name, mode in (
        (0, os.devnull, "rb"),
        (1, request["stdout"], "wb"),
        (2, request["stderr"], "wb"),
    ):
        with open(name, mode) as file:
            os.dup2(file.fileno(), descriptor)
    _limit(request)
    status = run(request)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _wait_for(child, limit):
    """Waits for a child at most so many seconds, then ends it and all that it started."""
    end = time.monotonic() + limit
    late = False
    pause = 0.001
    while True:
        found, status, usage = os.wait4(child, os.WNOHANG)
        if found:
            return {"status": os.waitstatus_to_exitcode(status), "late": late, "peak": usage.ru_maxrss * 1024}
        if time.monotonic() > end and not late:
            late = True
            os.killpg(child, signal.SIGKILL)
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)


def main():
    """Imports what it is told to, then serves until its standard input ends."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _child(request)
        print(json.dumps(_wait_for(child, request["wait"])), file=answers, flush=True)


if __name__ == "__main__":
    main()
