"""The way into `longrm`. It imports nothing of weight before it can end in one line, however early a signal comes."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line.

    Exit status: 0 done, 1 it could not be done, 2 wrong usage, 130 interrupted (Ctrl-C), 143 terminated (SIGTERM).
    """
    next_time = " before it began"
    with _terminable() as signals:
        try:
            from longrm.cli import commands

            next_time = commands.next_time(sys.argv[1:])
            commands.run_command_line()
        except KeyboardInterrupt as error:
            _end(error, signals, next_time)


@contextmanager
def _terminable() -> Iterator[list[int]]:
    """Has SIGTERM do what Ctrl-C does, and keeps that it came."""
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        # Of Ctrl-C others may take care, as an event loop does, which ends its tasks in order.
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # a script's command in the background ignores it
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, interrupt)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _end(error: KeyboardInterrupt, signals: list[int], next_time: str) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from longrm.runs.workers import print_error

    word, status = ("terminated", 143) if signals else ("interrupted", 130)
    print_error(f"{word}{next_time}", error)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # should something hold up the end
    # Python ends by a signal of its own, whatever the status, if the interrupt passed through an exec of text, by which
    # dataclasses are made, and forgets that with the next one.
    exec("")
    if any(thread.daemon for thread in threading.enumerate()):
        # It may be in the midst of native code, which aborts the process when Python takes its threads down.
        with suppress(OSError):  # nobody may read any more
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
