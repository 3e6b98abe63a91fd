"""The entry point of `longrm`. It imports nothing slow, so that a signal during start-up ends in one line too."""

import atexit
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line.

    Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted (Ctrl-C), 143 terminated (SIGTERM).
    """
    # Rows of different lengths fragment a GPU's memory unless segments can grow. torch reads the variable, and its old
    # name, when it is imported.
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    terminated = False

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        # SIGTERM does what Ctrl-C does, which an event loop may handle by ending its tasks in order.
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # background jobs of a script ignore Ctrl-C
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, on_sigterm)
    advice = ""
    try:
        from longrm.cli import commands

        advice = commands.advice_after_interrupt(sys.argv[1:])
        commands.run_command_line()
    except KeyboardInterrupt as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from longrm.runs.workers import print_error

        word, status = ("terminated", 143) if terminated else ("interrupted", 130)
        print_error("; ".join(filter(None, (word, str(error) or advice))), error)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends a shutdown that hangs
        # Not sys.exit: freeing all of torch takes seconds, a daemon thread in native code would abort the process, and
        # Python would end by SIGINT, whatever the status, if the interrupt came while text was executed (dataclasses
        # and named tuples do that).
        atexit._run_exitfuncs()  # trackers and Ray
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
