"""The watchdog process of a program: ends it, and all that it started, before a lease ends.

It stands between the process that holds the lock and the program. It knows the end of the lease,
and needs no further message: when the time has come, or when the holder has gone for whatever
reason, it begins to end the program.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from distlock.concurrency.clock import clock
from distlock.supervisor import processes

#: Seconds between two looks at processes that were killed, and until the watchdog stops waiting
#: for those that remain: they belong to another user, or are blocked in the kernel.
POLL_INTERVAL, KILL_LIMIT = 0.02, 3.0


class Channel:
    """One end of a connection that carries JSON messages.

    Few and short ones are sent, so sending does not block while the other side is stopped.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unread = b""
        #: whether the other side has gone
        self.closed = False

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, kind: str, *values: Any) -> None:
        """Send a message, its kind and its values, as long as somebody is there to receive it."""
        with suppress(OSError):
            self._end.sendall(json.dumps([kind, *values]).encode() + b"\n")

    def receive(self) -> list[list[Any]]:
        """Return the messages that have come by now."""
        try:
            received = self._end.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except ConnectionError:
            received = b""
        self.closed = not received
        *lines, self._unread = (self._unread + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._end.close()


class Watchdog:
    """A program and the time it has. Times are of ``clock()``, which all processes share."""

    def __init__(
        self, channel: Channel, wakeup: socket.socket, deadline: float, grace: float, margin: float
    ) -> None:
        """``wakeup`` becomes readable when a child process has changed."""
        self._channel = channel
        self._wakeup = wakeup
        self._deadline = deadline
        self._grace = grace
        self._margin = margin
        self._ended = False  # the program itself; its descendants may still run
        self._childless = False  # whether there is no child process any more, of any descent
        self._kill_at: float | None = None
        self._killed_at: float | None = None  # when KILL was first sent
        self._given_up = False

    def run(self, command: list[str], ignored: list[int], terminal: int | None) -> None:
        """Start the program, and stay until it and all that it started have ended."""
        processes.adopt_orphans()
        try:
            self._process = processes.start(command, ignored=ignored, terminal=terminal)
        except OSError as error:
            not_found = error.errno == errno.ENOENT
            code = processes.NOT_FOUND if not_found else processes.NOT_EXECUTABLE
            self._channel.send("failed", error.strerror, code)
            return
        self._program = self._process.pid
        self._channel.send("started", self._program)
        while True:
            self._wait()
            # Messages of the holder come first: a program may take long to start.
            for kind, *values in self._channel.receive():
                self._handle(kind, *values)
            self._reap()
            if self._all_gone():
                return
            self._end_what_is_due()

    def _all_gone(self) -> bool:
        """Return whether no process is left, or only such as cannot be killed."""
        if not self._ended:
            return False
        if self._given_up:
            return True
        if processes.LINUX:
            # All orphans below become children of this process. A list of processes may miss one
            # that has just taken the place of its parent.
            return self._childless
        return not processes.send_to_descendants(0, self._program)

    def _end_what_is_due(self) -> None:
        if self._kill_at is not None:
            if (now := clock()) >= self._kill_at:
                processes.send_to_descendants(signal.SIGKILL, self._program)
                # Not from _kill_at on: this process may have been stopped since then.
                self._killed_at = now if self._killed_at is None else self._killed_at
                self._given_up = now >= self._killed_at + KILL_LIMIT
        elif self._ended or self._channel.closed:
            self._end()
        elif clock() >= self._end_at:
            self._channel.send("overdue")
            self._end()

    def _wait(self) -> None:
        ending = self._kill_at is not None
        limit = POLL_INTERVAL if ending else max(self._end_at - clock(), 0.0)
        listening: list[Channel | socket.socket] = [self._wakeup]
        if not self._channel.closed:
            listening.append(self._channel)
        select.select(listening, [], [], limit)
        with suppress(BlockingIOError):
            self._wakeup.recv(4096)

    def _handle(self, kind: str, *values: float) -> None:
        if kind == "deadline":
            self._deadline = values[0]
        elif kind == "end":
            self._end()
        elif self._ended:  # the pid may be another's
            pass
        elif kind == "signal":
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._program, int(values[0]))
        elif kind == "continue":
            processes.send_to_group(signal.SIGCONT, self._program)

    @property
    def _end_at(self) -> float:
        return self._deadline - self._margin - self._grace

    def _end(self) -> None:
        """Begin to end the program and its descendants: SIGTERM now, SIGKILL after the grace."""
        if self._kill_at is not None:
            return
        self._kill_at = min(clock() + self._grace, self._deadline - self._margin)
        if clock() < self._kill_at:
            processes.send_to_descendants(signal.SIGTERM, self._program)
            # A process that is stopped cannot end.
            processes.send_to_descendants(signal.SIGCONT, self._program)

    def _reap(self) -> None:
        try:
            while (changed := os.waitpid(-1, os.WNOHANG | os.WUNTRACED)) != (0, 0):
                pid, status = changed
                if pid != self._program:
                    continue
                if os.WIFSTOPPED(status):
                    self._channel.send("stopped", os.WSTOPSIG(status))
                else:
                    self._ended = True
                    code = processes.shell_exit_code(os.waitstatus_to_exitcode(status))
                    self._channel.send("ended", code)
        except ChildProcessError:
            self._childless = True


def main() -> None:
    """Be the watchdog of the program on the command line; its first argument is the setup."""
    setup, command = json.loads(sys.argv[1]), sys.argv[2:]
    for signum in processes.NOT_FOR_WATCHDOG:
        signal.signal(signum, signal.SIG_IGN)
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    signal.set_wakeup_fd(writer.fileno())
    os.set_inheritable(setup["channel"], False)
    channel = Channel(socket.socket(fileno=setup["channel"]))
    watchdog = Watchdog(channel, reader, **setup["times"])
    watchdog.run(command, setup["ignored"], setup["terminal"])
