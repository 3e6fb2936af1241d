"""Runs a program under a lock, through a guard, and says what became of both."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import distlock
from distlock.clock import clock
from distlock.exceptions import LockLost, LockNotHeld
from distlock.supervisor import process_tree
from distlock.supervisor.messages import Line
from distlock.supervisor.signals import Signals
from distlock.supervisor.terminal import Terminal
from distlock.supervisor.watchdog_process import DEADLINE, LEFT

#: Makes the package known to the guard without its ``__init__``, which would import Django.
_GUARD = """
import sys, types
package = types.ModuleType("distlock")
package.__path__ = [sys.argv.pop(1)]
sys.modules["distlock"] = package
from distlock.supervisor.watchdog_process import main
main()
"""
#: How often the guard is told of the lease: this many times in its length, and in a second.
_TICKS, _LEAST_TICKS = 20, 1.0
#: Seconds between two looks at processes that were killed, and until none of them is waited for.
_PAUSE, _LONGEST = 0.02, 3.0


class Held(Protocol):
    """A lock that is held; see Lock."""

    @property
    def remaining(self) -> float: ...
    def check(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Times:
    """How a program is ended, in seconds.

    ``grace``: from TERM to KILL. ``margin``: from KILL to the end of the lease.
    """

    lease: float
    grace: float

    #: The greatest grace, and the margin, as parts of the lease. Together they leave time for the
    #: first renewal, which is due after a third of the lease.
    MOST = 0.4
    _MARGIN, _LONGEST_MARGIN = 0.1, 1.0
    #: The grace if none was asked for: a part of the lease, at most so many seconds.
    _USUAL, _LONGEST_USUAL = 0.3, 10.0

    @classmethod
    def of(cls, lease: float, grace: float | None) -> Times:
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
    """What became of a program: ``code`` as a shell has it; ``lost`` says why it was ended."""

    code: int = 1
    problem: str = ""  # why it could not be started
    lost: str = ""
    left: bool = False  # whether it left processes behind, which were ended


class Run:
    """One program, from its start until all that it started has ended."""

    def __init__(self, lock: Held, times: Times, signals: Signals, *, alone: bool) -> None:
        """``alone``: nothing else is run by this process, so all below it is the program's."""
        self._lock = lock
        self._times = times
        self._signals = signals
        self._alone = alone and process_tree.LINUX
        self._program = 0
        self._outcome = Outcome()
        self._told_deadline = 0.0
        self._terminal = Terminal()

    def __call__(self, command: Sequence[str], environment: Mapping[str, str]) -> Outcome:
        """Run a program; the lock must be held when this begins."""
        mine, theirs = socket.socketpair()
        self._line = Line(mine)
        own = os.getpgrp()
        if self._alone:
            process_tree.adopt_orphans()
        self._signals.queue()
        try:
            with theirs:
                guard = self._start_guard(theirs, command, environment)
            done = False
            while not (done or self._line.over):
                self._wait()
                done = self._listen()
                self._pass_signals_on()
                self._tell_of_the_lease()
            if not done:
                self._end_without_guard()
            self._line.close()
            guard.wait()
        finally:
            self._line.close()
            self._terminal.move(self._program, own)
            if self._outcome.code > 128:
                self._terminal.tidy_up()
            self._terminal.close()
            if self._alone:
                process_tree.adopt_orphans(False)
        return self._outcome

    def _start_guard(
        self, line: socket.socket, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        in_front = self._terminal.shows(os.getpgrp())
        terminal = self._terminal.descriptor if in_front else None
        self._told_deadline = clock() + self._lock.remaining
        how = {
            "line": line.fileno(),
            "terminal": terminal,
            "ignored": self._signals.ignored,
            "times": {
                "deadline": self._told_deadline,
                "grace": self._times.grace,
                "margin": self._times.margin,
            },
        }
        package = str(Path(distlock.__file__).parent)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, package, json.dumps(how), *command],
            pass_fds=[line.fileno(), *([] if terminal is None else [terminal])],
            env=dict(environment),
            process_group=0,  # what is sent to our own is not for the guard
        )

    def _wait(self) -> None:
        limit = min(self._times.lease / _TICKS, _LEAST_TICKS)
        listening: list[Line | Signals] = [self._line, self._signals]
        select.select(listening, [], [], limit)

    def _listen(self) -> bool:
        """Hear the guard; True when all is over."""
        for word, *values in self._line.hear():
            if word == "started":
                self._program = values[0]
            elif word == "failed":
                self._outcome.problem, self._outcome.code = values
            elif word == "stopped":
                self._stop(values[0])
            elif word == "ending":
                self._outcome.left = self._outcome.left or values[0] == LEFT
                if values[0] == DEADLINE:
                    self._lose("its lease could not be renewed and was about to end")
            elif word == "ended":
                code = values[0]
                self._outcome.code = code if code >= 0 else 128 - code
            elif word == "done":
                return True
        return False

    def _pass_signals_on(self) -> None:
        for signum in self._signals.come():
            if signum == signal.SIGCONT:
                self._continue()
            else:
                self._line.say("signal", signum)

    def _tell_of_the_lease(self) -> None:
        try:
            self._lock.check()
            deadline = clock() + self._lock.remaining
        except (LockLost, LockNotHeld) as error:
            self._lose(str(error))
            return
        if abs(deadline - self._told_deadline) > 0.001:
            self._told_deadline = deadline
            self._line.say("deadline", deadline)

    def _lose(self, reason: str) -> None:
        if not self._outcome.lost:
            self._outcome.lost = reason
            self._line.say("end")

    # The terminal

    def _stop(self, signum: int) -> None:
        """The program was stopped, by Ctrl-Z perhaps: stop, too, so that the shell sees it."""
        if self._terminal.descriptor is None:
            return
        self._terminal.move(self._program, os.getpgrp())
        self._terminal.stop_with(signum)
        self._continue()

    def _continue(self) -> None:
        # While this process was stopped nobody renewed the lease.
        self._tell_of_the_lease()
        if not self._outcome.lost:
            self._terminal.move(os.getpgrp(), self._program)
            self._line.say("continue")

    def _end_without_guard(self) -> None:
        """The guard was killed, and the program with it; see to the rest."""
        self._outcome.problem = self._outcome.problem or "the guard of the command was killed"
        until = clock() + _LONGEST
        while self._program and clock() < until:
            if self._alone:
                if not process_tree.send(signal.SIGKILL, self._program):
                    return
            else:
                try:
                    os.killpg(self._program, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    return
            time.sleep(_PAUSE)
