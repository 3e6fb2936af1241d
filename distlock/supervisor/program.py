"""Starts a program as a shell would: in a process group of its own, at the terminal if there."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Collection, Sequence
from contextlib import suppress

from distlock.supervisor import process_tree

#: What a shell says of a program that cannot be started.
NOT_EXECUTABLE, NOT_FOUND = 126, 127

#: Set by Python to be ignored, which programs do not expect.
_PYTHONS = (signal.SIGPIPE, signal.SIGXFSZ)


class CannotStart(Exception):
    """The program could not be started; ``code`` is what a shell would end with."""

    def __init__(self, problem: str, code: int) -> None:
        super().__init__(problem)
        self.code = code


def start(
    command: Sequence[str],
    *,
    ignored: Collection[int],
    terminal: int | None,
    signals: Collection[int],
) -> int:
    """Start a program and return its pid, which is its process group's, too; or CannotStart.

    It is killed when this process ends. ``ignored`` are the signals that it ignores; of
    ``signals`` it gets the others as the system has them. ``terminal`` is a descriptor of the
    terminal in whose foreground it is to be.
    """
    reader, writer = os.pipe()  # closed by exec()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            os.close(reader)
            os.setpgid(0, 0)
            if terminal is not None:
                bring_to_front(terminal, os.getpid())
            for signum in (*signals, *_PYTHONS):
                signal.signal(signum, signal.SIG_IGN if signum in ignored else signal.SIG_DFL)
            process_tree.die_with(parent)
            os.execvp(command[0], list(command))
        except OSError as error:
            os.write(writer, str(error.errno or 0).encode())
        finally:
            os._exit(NOT_EXECUTABLE)
    os.close(writer)
    with suppress(PermissionError, ProcessLookupError):  # it has done so itself
        os.setpgid(pid, pid)
    with os.fdopen(reader, "rb") as pipe:
        problem = pipe.read()
    if problem:
        os.waitpid(pid, 0)
        number = int(problem)
        code = NOT_FOUND if number == errno.ENOENT else NOT_EXECUTABLE
        raise CannotStart(os.strerror(number), code)
    return pid


def bring_to_front(terminal: int, group: int) -> None:
    """Let a process group have the terminal; what reads from it elsewhere is stopped."""
    # Who is not in the foreground itself would be stopped for asking.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    try:
        with suppress(OSError):  # the terminal is gone, or the group
            os.tcsetpgrp(terminal, group)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
