"""The processes below this one, and how none of them gets away.

As a "child subreaper" this process becomes the parent of every descendant whose own parent has
ended, so that none can hide behind a fork, a session or a process group of its own. See
PR_SET_CHILD_SUBREAPER in prctl(2). Other systems than Linux know only the group of the program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

LINUX = sys.platform == "linux"


def adopt_orphans(yes: bool = True) -> None:
    """Let orphans below this process become its children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def die_with(parent: int) -> None:
    """Let this process be killed when the process ``parent``, which has just forked it, ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was faster
        os._exit(128 + signal.SIGKILL)


def descendants() -> dict[int, str]:
    """Return those below this process that run: pid, and when it was started.

    The two together name a process for ever; a pid alone may be used again.
    """
    born: dict[int, str] = {}
    below: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if LINUX else ():
        if entry.isdigit() and (fields := _status(int(entry))):
            pid = int(entry)
            below.setdefault(int(fields[1]), []).append(pid)
            if fields[0] not in "ZX":
                born[pid] = fields[19]
    process_tree = below.get(os.getpid(), [])
    for member in process_tree:
        process_tree.extend(below.get(member, []))
    return {pid: born[pid] for pid in process_tree if pid in born}


def send(signum: int, group: int) -> bool:
    """Send a signal to all descendants; False if there is nobody (who can be seen).

    ``group`` is the process group that stands for them where they cannot be found.
    """
    if not LINUX:
        try:
            os.killpg(group, signum)
        except (ProcessLookupError, PermissionError):
            return False
        return True
    process_tree = descendants()
    for pid, start in process_tree.items():
        _send(pid, start, signum)
    return bool(process_tree)


def _send(pid: int, start: str, signum: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        descriptor = os.pidfd_open(pid)
        try:
            fields = _status(pid)
            if fields and fields[19] == start:
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


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
