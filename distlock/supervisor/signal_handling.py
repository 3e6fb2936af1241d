"""What signals do to a command: end it by an exception, stop its loop, or go on to a program."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Self

from distlock.concurrency.pending import Latch
from distlock.supervisor.processes import shell_exit_code

Handler = Callable[[int, FrameType | None], None]

#: What is passed on to a program.
PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)


class Interrupted(SystemExit):
    """A signal ends the process by this exception; the exit code is as in a shell, 128 + N."""

    def __init__(self, signum: int) -> None:
        super().__init__(shell_exit_code(-signum))


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise Interrupted where SIGTERM or SIGHUP would end the process at once, with its locks held.

    Signals that are ignored or handled by somebody else stay as they are. In another thread than
    the main one nothing changes, because Python calls handlers in the main thread only.
    """

    def end(signum: int, frame: FrameType | None) -> None:
        raise Interrupted(signum)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    with _handled(end, [each for each in numbers if signal.getsignal(each) == signal.SIG_DFL]):
        yield


@contextmanager
def stopped_by_signals() -> Iterator[Latch]:
    """Yield a latch that SIGTERM or SIGINT sets; the second of them has its usual effect.

    A signal that is ignored stays so: a shell ignores Ctrl-C for what runs in the background.
    """
    stop = Latch()
    numbers = (signal.SIGTERM, signal.SIGINT)
    usual = {each: signal.getsignal(each) for each in numbers}

    def end(signum: int, frame: FrameType | None) -> None:
        stop.set()
        for each in handled:
            _restore(each, usual[each])

    handled = [each for each in numbers if usual[each] != signal.SIG_IGN]
    with _handled(end, handled):
        yield stop


@contextmanager
def _handled(handler: Handler, numbers: Sequence[int]) -> Iterator[None]:
    """Handle signals on the main thread; afterwards the handlers are the former ones again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.signal(signum, handler) for signum in numbers}
    try:
        yield
    finally:
        for signum, former in before.items():
            if signal.getsignal(signum) is handler:
                _restore(signum, former)


def _restore(signum: int, handler: Any) -> None:
    # None stands for a handler that was not installed from Python.
    signal.signal(signum, handler if handler is not None else signal.SIG_DFL)


class SignalQueue:
    """Handles signals while it is entered, on the main thread. What was ignored stays ignored.

    Until queue_them() a signal raises Interrupted. After that signals are kept for pop_all().
    """

    def __init__(self) -> None:
        self.ignored = [each for each in PASSED_ON if signal.getsignal(each) == signal.SIG_IGN]
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1
        self._queued: list[int] = []
        self._raises = True

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        for signum in (*PASSED_ON, signal.SIGCONT):
            if signum not in self.ignored:
                self._before[signum] = signal.signal(signum, self._handle)
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for signum, handler in self._before.items():
            _restore(signum, handler)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        """Return what can be read from when a signal has come, or after wake()."""
        return self._reader.fileno()

    def queue_them(self) -> None:
        """From now on keep signals for pop_all(), instead of raising Interrupted."""
        self._raises = False

    def wake(self) -> None:
        """Wake whoever waits for a signal; from any thread."""
        with suppress(OSError):
            self._writer.send(b"\0")

    def pop_all(self) -> list[int]:
        """Return the signals that have come since the last call, in order."""
        with suppress(BlockingIOError):
            os.read(self._reader.fileno(), 4096)
        queued, self._queued = self._queued, []
        return queued

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if not self._raises:
            self._queued.append(signum)
        elif signum != signal.SIGCONT:
            raise Interrupted(signum)
