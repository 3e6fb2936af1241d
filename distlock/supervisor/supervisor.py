"""Runs a program under a lock, through a watchdog process, and reports how both ended."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import distlock
from distlock.concurrency.clock import clock
from distlock.exceptions import BodyEnded, LockLost, LockNotHeld
from distlock.locking.base_lock import BaseLock
from distlock.supervisor import processes
from distlock.supervisor.processes import ProgramSignals, bring_to_front
from distlock.supervisor.watchdog_process import KILL_LIMIT, POLL_INTERVAL, Channel

#: Makes the package known to the watchdog without its ``__init__``, which would import Django.
_WATCHDOG = """
import sys, types
package = types.ModuleType("distlock")
package.__path__ = [sys.argv.pop(1)]
sys.modules["distlock"] = package
from distlock.supervisor.watchdog_process import main
main()
"""
#: Seconds between two looks at the lock, at most; and as a part of the lease.
_LONGEST_PAUSE, _PAUSE = 0.2, 0.05


@dataclass(frozen=True, slots=True)
class ShutdownTiming:
    """How a program is ended, in seconds.

    ``grace``: from TERM to KILL. ``margin``: from KILL to the end of the lease.
    """

    lease: float
    grace: float

    #: The greatest grace, and the margin, as parts of the lease. Together they leave time for the
    #: first renewal, which is due after a third of the lease.
    MOST = 0.4
    _MARGIN, _LONGEST_MARGIN = 0.1, 1.0
    #: The grace if none was asked for: a part of the lease, and a maximum in seconds.
    _USUAL, _LONGEST_USUAL = 0.3, 10.0

    @classmethod
    def of(cls, lease: float, grace: float | None) -> ShutdownTiming:
        """Return the times for a lease; ValueError if the grace is too long for it."""
        if grace is None:
            grace = min(lease * cls._USUAL, cls._LONGEST_USUAL)
        if grace > lease * cls.MOST:
            raise ValueError(
                f"grace {grace:g}: with a lease of {lease:g} s it may be at most"
                f" {lease * cls.MOST:g} s, so that a program has ended before its lock does"
            )
        return cls(lease, grace)

    @property
    def margin(self) -> float:
        return min(self.lease * self._MARGIN, self._LONGEST_MARGIN)


@dataclass(slots=True)
class Outcome:
    """How a program ended: ``code`` as a shell has it; ``lost`` says why it was ended."""

    code: int = 1
    problem: str = ""  # why it could not be started
    lost: str = ""


class Terminal:
    """The controlling terminal of this process. Without one, nothing of this does anything."""

    def __init__(self) -> None:
        self.descriptor: int | None = None
        self._modes: list[Any] | None = None
        with suppress(OSError, termios.error):
            self.descriptor = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
            self._modes = termios.tcgetattr(self.descriptor)

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def shows(self, group: int) -> bool:
        """Return whether a process group is in the foreground."""
        try:
            return self.descriptor is not None and os.tcgetpgrp(self.descriptor) == group
        except OSError:
            return False

    def move(self, from_group: int, to_group: int) -> None:
        """Hand the foreground from one group to another, if the first has it."""
        if self.descriptor is not None and self.shows(from_group):
            bring_to_front(self.descriptor, to_group)

    def reset_modes(self) -> None:
        """Undo what a program that was killed may have done to the terminal."""
        if self.descriptor is not None and self._modes and self.shows(os.getpgrp()):
            with suppress(termios.error):
                termios.tcsetattr(self.descriptor, termios.TCSADRAIN, self._modes)

    def stop_with(self, signum: int) -> None:
        """Stop this process and the others of its group, as the terminal would.

        Returns when they go on; at once where nobody could let them go on.
        """
        if signum == signal.SIGSTOP:
            signum = signal.SIGTSTP
        before = signal.signal(signum, signal.SIG_IGN)
        with suppress(PermissionError):
            os.killpg(os.getpgrp(), signum)  # the rest of a pipeline, the script around this
        signal.signal(signum, before if before is not None else signal.SIG_DFL)
        signal.raise_signal(signum)


class ProgramSupervisor:
    """One program, from its start until all that it started has ended."""

    def __init__(
        self, lock: BaseLock, timing: ShutdownTiming, signals: ProgramSignals, *, alone: bool
    ) -> None:
        """``alone``: nothing else is run by this process, so all below it is the program's."""
        self._lock = lock
        self._timing = timing
        self._signals = signals
        self._alone = alone and processes.LINUX
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._program = 0
        self._outcome = Outcome()
        self._sent_deadline = 0.0
        self._terminal = Terminal()

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> Outcome:
        """Run a program; the lock must be held when this begins."""
        mine, self._watchdogs_end = socket.socketpair()
        self._channel = Channel(mine)
        own = os.getpgrp()
        if self._alone:
            processes.adopt_orphans()
        self._signals.forward = self._pass_on
        try:
            self._or_end(partial(self._supervise, command, environment))
        finally:
            self._signals.forward = lambda signum: None  # there is no program any more
            self._channel.close()
            self._terminal.move(self._program, own)
            if self._outcome.code > 128:
                self._terminal.reset_modes()
            self._terminal.close()
            if self._alone:
                processes.adopt_orphans(False)
        return self._outcome

    def _supervise(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        try:
            self._start_watchdog(command, environment)
        except OSError as error:  # say too many arguments
            self._handle("failed", error.strerror, processes.NOT_EXECUTABLE)
        self._watchdogs_end.close()
        self._follow()

    def _or_end(self, step: Callable[[], object]) -> None:
        """Make a step; an error of it is raised when nothing of the program runs any more."""
        try:
            step()
        except BaseException:  # also the loss of a lock around this one, which is left next
            is_over = False
            try:
                self._end()
                is_over = True
            finally:
                if not is_over:  # there may be several such locks
                    self._or_end(self._end)
            raise

    def _end(self) -> None:
        """End the program, and return when nothing of it runs any more."""
        self._watchdogs_end.close()  # the channel is closed when the watchdog's own copy is
        self._channel.send("end")
        self._follow()

    def _follow(self) -> None:
        """Handle what the watchdog tells, and tell it of renewals, until it ends."""
        pause = min(self._timing.lease * _PAUSE, _LONGEST_PAUSE)
        while not self._channel.closed:
            select.select([self._channel], [], [], pause)
            for kind, *values in self._channel.receive():
                self._handle(kind, *values)
            self._send_deadline()
        if self._watchdog is not None and self._watchdog.wait() != 0:
            self._end_without_watchdog()

    def _start_watchdog(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        in_front = self._terminal.shows(os.getpgrp())
        terminal = self._terminal.descriptor if in_front else None
        self._sent_deadline = clock() + self._lock.remaining
        grace, margin = self._timing.grace, self._timing.margin
        channel = self._watchdogs_end.fileno()
        setup = {
            "channel": channel,
            "terminal": terminal,
            "ignored": self._signals.ignored,
            "times": {"deadline": self._sent_deadline, "grace": grace, "margin": margin},
        }
        package = str(Path(distlock.__file__).parent)
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCHDOG, package, json.dumps(setup), *command],
            pass_fds=[channel, *([] if terminal is None else [terminal])],
            env=dict(environment),
            process_group=0,  # signals to our own group are not for the watchdog
        )

    def _handle(self, kind: str, *values: Any) -> None:
        """Handle a message of the watchdog."""
        if kind == "started":
            self._program = values[0]
        elif kind == "failed":
            self._outcome.problem, self._outcome.code = values
        elif kind == "stopped":
            self._stop(values[0])
        elif kind == "overdue":
            self._lose("its lease could not be renewed and was about to end")
        elif kind == "ended":
            self._outcome.code = values[0]

    def _pass_on(self, signum: int) -> None:
        if self._channel.closed:
            return  # the program has ended, and its lock may have been left
        if signum == signal.SIGCONT:
            self._continue()
        else:
            self._channel.send("signal", signum)

    def _send_deadline(self) -> None:
        try:
            self._lock.check()
            deadline = clock() + self._lock.remaining
        except BodyEnded:  # of a lock around this one
            raise
        except (LockLost, LockNotHeld) as error:
            self._lose(str(error))
            return
        if abs(deadline - self._sent_deadline) > 0.001:
            self._sent_deadline = deadline
            self._channel.send("deadline", deadline)

    def _lose(self, reason: str) -> None:
        if not self._outcome.lost:
            self._outcome.lost = reason
            self._channel.send("end")

    # The terminal

    def _stop(self, signum: int) -> None:
        """The program was stopped, by Ctrl-Z perhaps: stop this process, too, for the shell."""
        if self._terminal.descriptor is None:
            return
        self._terminal.move(self._program, os.getpgrp())
        self._terminal.stop_with(signum)
        self._continue()

    def _continue(self) -> None:
        # While this process was stopped nobody renewed the lease.
        self._send_deadline()
        if not self._outcome.lost:
            self._terminal.move(os.getpgrp(), self._program)
            self._channel.send("continue")

    def _end_without_watchdog(self) -> None:
        """Kill what is left after the watchdog was killed; the program was killed with it."""
        self._outcome.problem = self._outcome.problem or "the watchdog of the command was killed"
        until = clock() + KILL_LIMIT
        send = processes.send_to_descendants if self._alone else processes.send_to_group
        while self._program and send(signal.SIGKILL, self._program) and clock() < until:
            time.sleep(POLL_INTERVAL)
