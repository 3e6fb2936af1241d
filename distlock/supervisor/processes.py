"""Starting a program as a shell does; signals to all processes below this one, and to this one.

Signals to this process end it by an exception, or go on to a program.

As a "child subreaper" this process becomes the parent of every descendant whose own parent has
ended. So no descendant escapes by a fork, a session or a process group of its own. See
PR_SET_CHILD_SUBREAPER in prctl(2). On other systems than Linux only the program's process group is
known.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from signal import SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2
from subprocess import Popen
from types import FrameType
from typing import Any

#: The exit codes of a shell if a program cannot be started, and if it is not found.
NOT_EXECUTABLE, NOT_FOUND = 126, 127

LINUX = sys.platform == "linux"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

#: The signals that are passed on to a program.
PASSED_ON = (SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM)
#: These, and those that are about the terminal: none is for the watchdog.
NOT_FOR_WATCHDOG = {*PASSED_ON, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH}

Handler = Callable[[int, FrameType | None], None]


def start(command: list[str], *, ignored: list[int], terminal: int | None) -> Popen[bytes]:
    """Start a program in a process group of its own; OSError if that cannot be.

    The program is killed when this process ends. It ignores the signals ``ignored``; for the others
    that the watchdog ignores it has the system's default. ``terminal`` is a descriptor of the
    terminal in whose foreground the program runs. Keep what is returned: when it is deleted, it may
    take the program's exit code from waitpid().
    """
    parent = os.getpid()

    def prepare() -> None:
        """Called in the new process before it becomes the program."""
        if terminal is not None:
            bring_to_front(terminal, os.getpid())
        for signum in NOT_FOR_WATCHDOG:
            signal.signal(signum, signal.SIG_IGN if signum in ignored else signal.SIG_DFL)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it had ended before
            os.kill(os.getpid(), signal.SIGKILL)

    return Popen(command, process_group=0, preexec_fn=prepare)


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
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
    return bool(found)


def send_to_group(signum: int, group: int) -> bool:
    """Send a signal to a process group; False if there is none, or it belongs to somebody else."""
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _descendants() -> list[int]:
    """Return the pids of the running descendants.

    Signal them at once: a pid belongs to another process only after all others have been used.
    """
    running: set[int] = set()
    children: dict[int, list[int]] = {}
    for pid in [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]:
        with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            # The name before it is in parentheses, and may have some in it.
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            children.setdefault(int(parent), []).append(pid)
            if state not in (b"Z", b"X"):  # zombie or dead
                running.add(pid)
    found = children.get(os.getpid(), [])
    for pid in found:
        found.extend(children.get(pid, []))
    return [pid for pid in found if pid in running]


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


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

    numbers = (SIGTERM, SIGHUP)
    with _handled(end, [each for each in numbers if signal.getsignal(each) == signal.SIG_DFL]):
        yield


class ProgramSignals:
    """The signals that ``locks run`` gets; see program_signals()."""

    def __init__(self) -> None:
        #: Ignored signals stay ignored, also by the program.
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
