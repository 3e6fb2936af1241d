"""Takes the lock that a command runs under, or ends the command with a code that says why not."""

from __future__ import annotations

import sys
import time

from django.core.management.base import BaseCommand

from distlock.commands.arguments import quiet_drivers
from distlock.commands.exit_codes import DONE, FAILED, UNAVAILABLE, USAGE, fail
from distlock.commands.output import escaped
from distlock.concurrency.clock import clock, left
from distlock.conf import locks
from distlock.core.section import busy_message
from distlock.exceptions import LockError, LockUnavailable, NotSupported
from distlock.lock import Lock

#: Seconds. The clock of sleep() stands still while the machine sleeps, clock() does not; and the
#: lock may be lost meanwhile.
_LONGEST_SLEEP = 60.0


class Busy(Exception):
    """Someone else has the lock; the message says who."""

    def end(self, command: BaseCommand, code: int, verbosity: int) -> None:
        """End ``command`` with ``code``; return if that is DONE.

        DONE says that a busy lock is no failure: then the message is written only for ``verbosity``
        2. With ``verbosity`` 0 there is only the exit code, so that cron sends no mail.
        """
        if code == DONE:
            if verbosity > 1:
                command.stderr.write(str(self))
        elif verbosity or not getattr(command, "_called_from_command_line", False):
            fail(code, str(self))
        else:
            sys.exit(code)


def acquire(lock: Lock, timeout: float | None, *, ensure_schema: bool = False) -> None:
    """Take ``lock``, waiting for ``timeout`` seconds (None: for ever), or end the command.

    ``ensure_schema``: create what the backend needs if that is missing. Raises Busy if someone else
    has the lock.
    """
    quiet_drivers()
    try:
        acquired = _acquire(lock, timeout, ensure_schema)
    except LockUnavailable as error:
        fail(UNAVAILABLE, escaped(str(error)))
    except NotSupported as error:
        fail(USAGE, escaped(str(error)))
    except LockError as error:
        fail(FAILED, escaped(str(error)))
    if not acquired:
        raise Busy(busy_message(lock))


def _acquire(lock: Lock, timeout: float | None, ensure_schema: bool) -> bool:
    until = None if timeout is None else clock() + timeout
    try:
        return lock.acquire(timeout=-1 if timeout is None else timeout)
    except LockUnavailable:
        if not (ensure_schema and locks[lock.using].ensure_schema(until)):
            raise
    return lock.acquire(timeout=-1 if timeout is None else left(until, timeout))


def stay(lock: Lock, until: float) -> None:
    """Hold a lock that ends with this process until then, by clock(), or until it is lost."""
    if locks[lock.using].capabilities.outlives_process:
        return
    while (rest := left(until, _LONGEST_SLEEP)) and lock.held:
        time.sleep(rest)
