"""The watchdog process of a program: ends it, and all that it started, before a lease ends.

It stands between the process that holds the lock and the program. It knows the end of the lease,
and needs no further message: when the time has come, or when the holder has gone for whatever
reason, it begins to end the program.
"""

from __future__ import annotations

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

#: Signals that the holder passes on, or that are about the terminal: none is for the watchdog.
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

#: Seconds between two looks at killed processes, and until the watchdog gives up on one
#: (that belongs to another user, or is stuck in the kernel).
POLL_INTERVAL, KILL_LIMIT = 0.02, 3.0

#: Why the watchdog ends a program: the lease is about to end, the holder has gone, the program has
#: ended and left processes behind, or the holder asked for it.
DEADLINE, HOLDER_GONE, LEFT_BEHIND, ASKED = "deadline", "holder-gone", "left-behind", "asked"


class Channel:
    """One end of a connection that carries JSON messages. Sending never blocks.

    The other side may be stopped, so what cannot be sent at once is sent with the next message.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._end.setblocking(False)
        self._unread = b""
        self._unsent = b""
        #: whether the other side has gone
        self.closed = False

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, kind: str, *values: Any) -> None:
        """Send a message: its kind and its values."""
        self._unsent += json.dumps([kind, *values]).encode() + b"\n"
        with suppress(BlockingIOError, ConnectionError):
            while self._unsent:
                self._unsent = self._unsent[self._end.send(self._unsent) :]

    def receive(self) -> list[list[Any]]:
        """Return the messages that have come by now."""
        with suppress(BlockingIOError, ConnectionError):
            while received := self._end.recv(65536):
                self._unread += received
            self.closed = True
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._end.close()


class Watchdog:
    """A program and the time it has. Times are of ``clock()``, which all processes share."""

    def __init__(
        self, channel: Channel, wakeup: int, *, deadline: float, grace: float, margin: float
    ) -> None:
        """``wakeup``: a descriptor that becomes readable when a child process has changed."""
        self.channel = channel
        self._wakeup = wakeup
        self._deadline = deadline
        self._grace = grace
        self._margin = margin
        self._program = 0
        self._ended = False  # the program itself; its descendants may still run
        self._kill_at: float | None = None
        self._done = False

    def run(self, command: list[str], ignored: list[int], terminal: int | None) -> None:
        """Start the program, and stay until it and all that it started have ended."""
        processes.adopt_orphans()
        try:
            self._program = processes.start(
                command, ignored=ignored, terminal=terminal, signals=SIGNALS
            )
        except processes.CannotStart as failed:
            self.channel.send("failed", str(failed), failed.code)
            return
        self.channel.send("started", self._program)
        while not self._done:
            self._wait()
            for kind, *values in self.channel.receive():
                self._handle(kind, *values)
            if self.channel.closed:
                self._end(HOLDER_GONE)
            self._reap()
            self._do_what_is_due()

    def _wait(self) -> None:
        ending = self._kill_at is not None or self._ended
        limit = POLL_INTERVAL if ending else max(self._end_at - clock(), 0.0)
        listening: list[Channel | int] = [self._wakeup]
        if not self.channel.closed:
            listening.append(self.channel)
        ready, _, _ = select.select(listening, [], [], limit)
        if self._wakeup in ready:
            with suppress(BlockingIOError):
                os.read(self._wakeup, 4096)

    def _handle(self, kind: str, *values: float) -> None:
        if kind == "deadline":
            self._deadline = values[0]
        elif kind == "signal":
            if not self._ended:  # after that the pid may be another's
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(self._program, int(values[0]))
        elif kind == "continue":
            if not self._ended:
                processes.send_to_group(signal.SIGCONT, self._program)
        elif kind == "end":
            self._end(ASKED)

    @property
    def _end_at(self) -> float:
        return self._deadline - self._margin - self._grace

    def _do_what_is_due(self) -> None:
        now = clock()
        if self._kill_at is None:
            if self._ended and not processes.send_to_descendants(0, self._program):
                self._done = True
            elif self._ended:
                self._end(LEFT_BEHIND)
            elif now >= self._end_at:
                self._end(DEADLINE)
            return
        if now < self._kill_at:
            self._done = self._ended and not processes.send_to_descendants(0, self._program)
            return
        killed = processes.send_to_descendants(signal.SIGKILL, self._program)
        self._done = self._ended and (not killed or now >= self._kill_at + KILL_LIMIT)

    def _end(self, why: str) -> None:
        """Begin to end the program and its descendants: SIGTERM now, SIGKILL after the grace."""
        if self._kill_at is not None:
            return
        self._kill_at = min(clock() + self._grace, self._deadline - self._margin)
        self.channel.send("ending", why)
        if clock() < self._kill_at:
            processes.send_to_descendants(signal.SIGTERM, self._program)
            # A process that is stopped cannot end.
            processes.send_to_descendants(signal.SIGCONT, self._program)

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
                self.channel.send("stopped", os.WSTOPSIG(status))
            else:
                self._ended = True
                code = processes.shell_exit_code(os.waitstatus_to_exitcode(status))
                self.channel.send("ended", code)


def main() -> None:
    """Be the watchdog of the program on the command line; its first argument is the setup."""
    setup, command = json.loads(sys.argv[1]), sys.argv[2:]
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    signal.set_wakeup_fd(writer.fileno())
    os.set_inheritable(setup["channel"], False)
    channel = Channel(socket.socket(fileno=setup["channel"]))
    watchdog = Watchdog(channel, reader.fileno(), **setup["times"])
    watchdog.run(command, setup["ignored"], setup["terminal"])
    channel.send("done")
