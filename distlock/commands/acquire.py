"""Runs a command's body under a lock, or ends the command with a code that says why not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from django.core.management.base import BaseCommand

from distlock.commands.arguments import quiet_drivers
from distlock.commands.exit_codes import DONE, FAILED, UNAVAILABLE, USAGE, fail
from distlock.commands.output import escaped
from distlock.concurrency.clock import clock, left
from distlock.conf import locks
from distlock.exceptions import LockError, LockLost, LockUnavailable, NotSupported
from distlock.locking.base_lock import BaseLock
from distlock.locking.run_under import busy_error, run_under

T = TypeVar("T")

#: Seconds. The clock of sleep() stands still while the machine sleeps, clock() does not; the lock
#: may be lost meanwhile; and Python may miss a signal that comes in the moment in which one begins.
_LONGEST_SLEEP = 1.0


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
    """Take ``lock``; raise _Busy if someone else has it, CommandError if it cannot be asked for."""
    began = clock()
    try:
        try:
            acquired = lock.acquire(timeout=-1 if timeout is None else timeout)
        except LockUnavailable:
            until = None if timeout is None else began + timeout
            if not (ensure_schema and locks[lock.using].ensure_schema(until)):
                raise
            acquired = lock.acquire(timeout=-1 if timeout is None else left(until, timeout))
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
    if locks[lock.using].capabilities.outlives_process:
        return
    sleep_until(until, lambda: lock.held)


def sleep_until(until: float, wanted: Callable[[], bool] = lambda: True) -> None:
    """Sleep until clock() is at ``until``, or it is not ``wanted`` any more."""
    while (rest := left(until, _LONGEST_SLEEP)) and wanted():
        time.sleep(rest)


def from_command_line(command: BaseCommand) -> bool:
    """Return whether the process was started for this command; else code has called it."""
    return bool(getattr(command, "_called_from_command_line", False))
