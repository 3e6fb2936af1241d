"""The guard of a program: ends it, and all that it started, in time before a lease ends.

It is a process between the one that holds the lock and the program. It is told how long the lease
lasts, and does not depend on being told anything else: when the time has come, or when the holder
has gone, whatever the reason, the guard begins to end the program.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress

from distlock.clock import clock
from distlock.supervisor import process_tree
from distlock.supervisor.messages import Line
from distlock.supervisor.program import CannotStart, start

#: Signals that the holder passes on, or that are about the terminal: none is for the guard.
SIGNALS = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGWINCH,
}

#: Seconds between two looks at who is still there, and until it is given up to kill somebody
#: (who belongs to another user, or is stuck in the kernel).
_PAUSE, _LONGEST = 0.02, 3.0

#: Why the guard ends a program.
DEADLINE, GONE, LEFT = "deadline", "gone", "left"


class Guard:
    """A program and the time it has. Times are of ``clock()``, which all processes share."""

    def __init__(
        self, line: Line, alarm: int, *, deadline: float, grace: float, margin: float
    ) -> None:
        self.line = line
        self._alarm = alarm
        self._deadline = deadline
        self._grace = grace
        self._margin = margin
        self._program = 0
        self._ended = False  # the program itself
        self._kill_at: float | None = None
        self._done = False

    def run(self, command: list[str], ignored: list[int], terminal: int | None) -> None:
        """Start the program, and stay until it and all that it started have ended."""
        process_tree.adopt_orphans()
        try:
            self._program = start(command, ignored=ignored, terminal=terminal, signals=SIGNALS)
        except CannotStart as failed:
            self.line.say("failed", str(failed), failed.code)
            return
        self.line.say("started", self._program)
        while not self._done:
            self._wait()
            for word, *values in self.line.hear():
                self._obey(word, *values)
            if self.line.over:
                self._end(GONE)
            self._reap()
            self._look()

    def _wait(self) -> None:
        ending = self._kill_at is not None or self._ended
        limit = _PAUSE if ending else max(self._end_at - clock(), 0.0)
        listening: list[Line | int] = [self._alarm]
        if not self.line.over:
            listening.append(self.line)
        ready, _, _ = select.select(listening, [], [], limit)
        if self._alarm in ready:
            with suppress(BlockingIOError):
                os.read(self._alarm, 4096)

    def _obey(self, word: str, *values: float) -> None:
        if word == "deadline":
            self._deadline = values[0]
        elif word == "signal":
            self._signal(int(values[0]))
        elif word == "continue":
            self._signal_group(signal.SIGCONT)
        elif word == "end":
            self._end("told")

    @property
    def _end_at(self) -> float:
        return self._deadline - self._margin - self._grace

    def _look(self) -> None:
        """Do what is due by now."""
        now = clock()
        if self._kill_at is None:
            if self._ended and not process_tree.send(0, self._program):
                self._done = True
            elif self._ended:
                self._end(LEFT)
            elif now >= self._end_at:
                self._end(DEADLINE)
            return
        if now < self._kill_at:
            self._done = self._ended and not process_tree.send(0, self._program)
            return
        killed = process_tree.send(signal.SIGKILL, self._program)
        self._done = self._ended and (not killed or now >= self._kill_at + _LONGEST)

    def _end(self, why: str) -> None:
        """Begin to end all that is there: first kindly, and after the grace for certain."""
        if self._kill_at is not None:
            return
        self._kill_at = min(clock() + self._grace, self._deadline - self._margin)
        self.line.say("ending", why)
        if clock() < self._kill_at:
            process_tree.send(signal.SIGTERM, self._program)
            process_tree.send(signal.SIGCONT, self._program)  # one that is stopped cannot end

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid != self._program:
                continue
            if os.WIFSTOPPED(status):
                self.line.say("stopped", os.WSTOPSIG(status))
            else:
                self._ended = True
                self.line.say("ended", os.waitstatus_to_exitcode(status))

    def _signal(self, signum: int) -> None:
        if not self._ended:  # after that the pid may be another's
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._program, signum)

    def _signal_group(self, signum: int) -> None:
        if not self._ended:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._program, signum)


def main() -> None:
    """Be the guard, of the program on the command line, in the way that is said there first."""
    how, command = json.loads(sys.argv[1]), sys.argv[2:]
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    alarm, bell = socket.socketpair()
    alarm.setblocking(False)
    bell.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    signal.set_wakeup_fd(bell.fileno())
    os.set_inheritable(how["line"], False)
    line = Line(socket.socket(fileno=how["line"]))
    guard = Guard(line, alarm.fileno(), **how["times"])
    guard.run(command, how["ignored"], how["terminal"])
    line.say("done")
