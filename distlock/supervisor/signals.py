"""Signals to the process that runs a program: first they end it, later they are passed on."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from distlock.supervisor.interrupted import Interrupted

#: What is passed on to a program.
PASSED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)


class Signals:
    """Handles signals while it is entered, on the main thread. What was ignored stays so."""

    def __init__(self) -> None:
        self.ignored = [number for number in PASSED if signal.getsignal(number) == signal.SIG_IGN]
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1
        self._queued: list[int] = []
        self._raises = True

    def __enter__(self) -> Self:
        self._alarm, self._bell = socket.socketpair()
        self._alarm.setblocking(False)
        self._bell.setblocking(False)
        for signum in (*PASSED, signal.SIGCONT):
            if signum not in self.ignored:
                self._before[signum] = signal.signal(signum, self._handle)
        self._wakeup_before = signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for signum, handler in self._before.items():
            signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
        self._alarm.close()
        self._bell.close()

    def fileno(self) -> int:
        """Return what can be read from when a signal has come."""
        return self._alarm.fileno()

    def queue(self) -> None:
        """From now on keep signals for :meth:`come`, instead of ending with Interrupted."""
        self._raises = False

    def ring(self) -> None:
        """Wake whoever waits for a signal; from any thread."""
        with suppress(OSError):
            self._bell.send(b"\0")

    def come(self) -> list[int]:
        """Return the signals that have come, in order."""
        with suppress(BlockingIOError):
            os.read(self._alarm.fileno(), 4096)
        queued, self._queued = self._queued, []
        return queued

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if not self._raises:
            self._queued.append(signum)
        elif signum != signal.SIGCONT:
            raise Interrupted(signum)
