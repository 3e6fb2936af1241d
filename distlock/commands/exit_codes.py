"""How the management commands end, also those that run under a lock.

Scripts rely on the exit codes, so they never change. NOT_EXECUTABLE and NOT_FOUND are those of a
shell.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NoReturn, TypeVar

from django.core.management.base import BaseCommand, CommandError

from distlock.commands.output import escaped, quiet_drivers
from distlock.concurrency.clock import clock, left
from distlock.conf import locks
from distlock.exceptions import BodyEnded, LockError, LockLost, LockUnavailable, NotSupported
from distlock.locking.base_lock import BaseLock
from distlock.locking.run_under import busy_error, run_under
from distlock.supervisor.processes import NOT_EXECUTABLE as NOT_EXECUTABLE
from distlock.supervisor.processes import NOT_FOUND as NOT_FOUND

T = TypeVar("T")

DONE = 0
#: a backend could not be asked, or something else went wrong
FAILED = 1
#: the command line was wrong (argparse's own code)
USAGE = 2
#: there is no such hold (any more)
NOT_HELD = 3
#: the question was not answered with yes
DECLINED = 4
#: the backend could not be asked whether the lock is free (EX_UNAVAILABLE of sysexits.h)
UNAVAILABLE = 69
#: someone else has the lock (EX_TEMPFAIL of sysexits.h: try again later)
BUSY = 75
#: the lock was lost before the work under it was done
LOST = 79

MEANINGS = {
    DONE: "done",
    FAILED: "a backend did not answer, or another error",
    USAGE: "wrong use",
    NOT_HELD: "the lock is not held, or no longer under that token",
    DECLINED: "not confirmed, nothing was done",
    UNAVAILABLE: "a backend did not answer the request for the lock, nothing was run",
    BUSY: "the lock is held by someone else, nothing was run (--busy-code changes it)",
    LOST: "the lock was lost, and the work under it was ended",
    NOT_EXECUTABLE: "the program could not be executed",
    NOT_FOUND: "the program was not found",
}

#: Seconds. The clock of sleep() stands still while the machine sleeps, clock() does not; the lock
#: may be lost meanwhile; and Python may miss a signal that comes in the moment in which one begins.
_LONGEST_SLEEP = 1.0


def epilog(*codes: int, more: str = "", meanings: Mapping[int, str] = MEANINGS) -> str:
    """Return the end of a command's help text: what its exit codes mean.

    ``meanings`` are those that differ there from ``MEANINGS``; ``more`` comes after the codes.
    """
    meanings = {**MEANINGS, **meanings}
    return f"Exit codes: {'; '.join(f'{code} {meanings[code]}' for code in codes)}{more}."


def fail(code: int, message: str) -> NoReturn:
    """End the command with ``message`` on stderr and ``code``; call_command() sees CommandError."""
    raise CommandError(message, returncode=code)


def confirm(command: BaseCommand, interactive: bool, question: str) -> None:
    """Go on if ``interactive`` is False, or the question is answered with yes; end otherwise."""
    if not interactive:
        return
    if not sys.stdin.isatty():
        fail(USAGE, "there is no terminal to ask at; use --yes to do it without a question")
    try:
        answer = input(f"{question} [y/N] ")
    except (EOFError, KeyboardInterrupt):
        command.stdout.write("")
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        fail(DECLINED, "nothing was done")


class _Busy(Exception):
    """Someone else has the lock; the message says who."""


def run_command(
    command: BaseCommand,
    lock: BaseLock,
    body: Callable[[], T],
    on_lost: Callable[[LockLost], object],
    *,
    timeout: float | None,
    busy_code: int,
    verbosity: int,
    ensure_schema: bool = False,
) -> T | None:
    """Run ``body()`` under ``lock`` and return its result, or end ``command``.

    - ``timeout``: seconds to wait for the lock at most; None waits forever.
    - ``busy_code``: what to end with if someone else has the lock. DONE says that this is no
      failure: then None is returned, and a message is written only for ``verbosity`` 2. With
      ``verbosity`` 0 there is only the exit code, so that cron sends no mail.
    - ``ensure_schema``: create what the backend needs if that is missing.
    - ``on_lost``: called with the error if the body ended well, and the lock had been lost.
    """

    def on_leave_error(error: LockError) -> None:
        if isinstance(error, BodyEnded):  # of a lock around this one
            raise error
        if isinstance(error, LockLost):
            on_lost(error)
        else:
            command.stderr.write(f"the lock is freed when its lease ends: {error}")

    quiet_drivers()
    take = partial(_acquire, lock, timeout, ensure_schema)
    try:
        return run_under(lock, take, body, on_leave_error)
    except _Busy as busy:
        if busy_code == DONE:
            if verbosity > 1:
                command.stderr.write(str(busy))
        elif verbosity or not from_command_line(command):
            fail(busy_code, str(busy))
        else:
            sys.exit(busy_code)
    return None


def _acquire(lock: BaseLock, timeout: float | None, ensure_schema: bool) -> None:
    """Take ``lock``; raise _Busy if someone else has it, CommandError if there is no answer."""
    began = clock()
    try:
        try:
            acquired = lock.acquire(timeout=-1 if timeout is None else timeout)
        except LockUnavailable:
            until = None if timeout is None else began + timeout
            if not (ensure_schema and locks[lock.using].ensure_schema(until)):
                raise
            acquired = lock.acquire(timeout=-1 if timeout is None else left(until, timeout))
    except BodyEnded:  # of a lock around this one
        raise
    except LockUnavailable as error:
        fail(UNAVAILABLE, escaped(str(error)))
    except (NotSupported, TypeError, ValueError, OverflowError) as error:
        fail(USAGE, escaped(str(error)))
    except LockError as error:
        fail(FAILED, escaped(str(error)))
    if not acquired:
        raise _Busy(str(busy_error(lock)))


def stay(lock: BaseLock, until: float) -> None:
    """Where a lock ends with its process, wait until clock() is at ``until``, or it is lost."""
    if not locks[lock.using].capabilities.outlives_process:
        sleep_until(until, lambda: lock.held)


def sleep_until(until: float, wanted: Callable[[], bool] = lambda: True) -> None:
    """Sleep until clock() is at ``until``, or it is not ``wanted`` any more."""
    while (rest := left(until, _LONGEST_SLEEP)) and wanted():
        time.sleep(rest)


def from_command_line(command: BaseCommand) -> bool:
    """Return whether the process was started for this command; else code has called it."""
    return bool(getattr(command, "_called_from_command_line", False))
