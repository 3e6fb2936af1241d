"""What signals do to a command: they end it by an exception, or go on to a program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

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


class ProgramSignals:
    """The signals that ``locks run`` gets; see program_signals()."""

    def __init__(self) -> None:
        #: What is ignored stays ignored, also by the program.
        self.ignored = [each for each in PASSED_ON if signal.getsignal(each) == signal.SIG_IGN]
        #: Called with the number of a signal, on the main thread; None while no program runs.
        self.forward: Callable[[int], object] | None = None

    def handle(self, signum: int, frame: FrameType | None) -> None:
        if self.forward is not None:
            self.forward(signum)
        elif signum != signal.SIGCONT:
            raise Interrupted(signum)


@contextmanager
def program_signals() -> Iterator[ProgramSignals]:
    """Give signals to ``forward`` of what is yielded; without that they raise Interrupted."""
    signals = ProgramSignals()
    numbers = [each for each in PASSED_ON if each not in signals.ignored]
    with _handled(signals.handle, [*numbers, signal.SIGCONT]):
        yield signals


@contextmanager
def _handled(handler: Handler, numbers: Sequence[int]) -> Iterator[None]:
    """Handle signals on the main thread; afterwards the handlers are the former ones again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}
    try:
        for signum in numbers:
            before[signum] = signal.getsignal(signum)
            signal.signal(signum, handler)
        yield
    finally:
        for signum, former in before.items():
            if signal.getsignal(signum) is handler:
                # None stands for a handler that was not installed from Python.
                signal.signal(signum, signal.SIG_DFL if former is None else former)
