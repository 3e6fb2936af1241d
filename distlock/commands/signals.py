"""Lets the signals that end a process end a command as an exception, so that its lock is freed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from distlock.supervisor.interrupted import Interrupted

#: SIGINT raises KeyboardInterrupt already.
_ENDING = (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise Interrupted, a SystemExit, where such a signal would end the process without a word.

    Signals that somebody else handles or that are ignored stay as they are, and so does all where
    this is not the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is _end:
                signal.signal(number, signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)
