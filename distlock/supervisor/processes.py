"""Starting a program as a shell does, and signals to all processes below this one.

As a "child subreaper" this process becomes the parent of every descendant whose own parent has
ended. So no descendant escapes by a fork, a session or a process group of its own. See
PR_SET_CHILD_SUBREAPER in prctl(2). On other systems than Linux only the program's process group is
known.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress

#: What a shell ends with if a program cannot be started, and if it is not found.
NOT_EXECUTABLE, NOT_FOUND = 126, 127

LINUX = sys.platform == "linux"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

#: Python ignores these signals; programs expect that they are not ignored.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


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
    """Start a program and return its pid, which is its process group's, too; or raise CannotStart.

    The program is killed when this process ends. It ignores the signals ``ignored``; for the other
    ``signals`` it has the system's default. ``terminal`` is a descriptor of the terminal in whose
    foreground the program runs.
    """
    reader, writer = os.pipe()  # closed by exec()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            os.close(reader)
            os.setpgid(0, 0)
            if terminal is not None:
                bring_to_front(terminal, os.getpid())
            for signum in (*signals, *_IGNORED_BY_PYTHON):
                signal.signal(signum, signal.SIG_IGN if signum in ignored else signal.SIG_DFL)
            _die_with(parent)
            os.execvp(command[0], list(command))
        except OSError as error:
            os.write(writer, str(error.errno or 0).encode())
        finally:
            os._exit(NOT_EXECUTABLE)
    os.close(writer)
    with suppress(PermissionError, ProcessLookupError):  # the child has done so itself
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
    """Give a process group the foreground of the terminal."""
    # The system stops a background process that calls tcsetpgrp(), unless SIGTTOU is blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    try:
        with suppress(OSError):  # the terminal is gone, or the group
            os.tcsetpgrp(terminal, group)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def shell_exit_code(code: int) -> int:
    """Return what a shell reports for an exit code of ``subprocess``: 128 + N for signal N."""
    return code if code >= 0 else 128 - code


def adopt_orphans(yes: bool = True) -> None:
    """Make orphans below this process its children, or stop doing so."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def send_to_descendants(signum: int, group: int) -> bool:
    """Send a signal to all descendants; False if there are none (that can be seen).

    ``group`` is the process group that gets it where descendants cannot be listed.
    """
    if not LINUX:
        return send_to_group(signum, group)
    found = _descendants()
    for pid, started in found.items():
        _send(pid, started, signum)
    return bool(found)


def send_to_group(signum: int, group: int) -> bool:
    """Send a signal to a process group; False if there is none, or it belongs to somebody else."""
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _descendants() -> dict[int, str]:
    """Return the running descendants: pid, and when each was started.

    Both together name a process for ever; a pid alone may be used again.
    """
    started: dict[int, str] = {}
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _status(int(entry))):
            pid = int(entry)
            children.setdefault(int(fields[1]), []).append(pid)
            if fields[0] not in "ZX":
                started[pid] = fields[19]
    found = children.get(os.getpid(), [])
    for pid in found:
        found.extend(children.get(pid, []))
    return {pid: started[pid] for pid in found if pid in started}


def _send(pid: int, started: str, signum: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        descriptor = os.pidfd_open(pid)
        try:
            fields = _status(pid)
            if fields and fields[19] == started:
                signal.pidfd_send_signal(descriptor, signum)
        finally:
            os.close(descriptor)


def _status(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on; None without such a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None


def _die_with(parent: int) -> None:
    """Let the system kill this process when ``parent``, which has just forked it, ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before
        os._exit(shell_exit_code(-signal.SIGKILL))


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
