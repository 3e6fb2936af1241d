"""Takes the lock that a command runs under, or ends the command with a code that says why not."""

from __future__ import annotations

import sys

from django.core.management.base import BaseCommand

from distlock.clock import clock, left
from distlock.commands import text
from distlock.commands.exit_codes import DONE, FAILED, UNAVAILABLE, USAGE, leave
from distlock.commands.quiet import quiet_drivers
from distlock.conf import locks
from distlock.exceptions import LockError, LockLost, LockNotHeld, LockUnavailable, NotSupported
from distlock.lock import Lock
from distlock.types.lease import State
from distlock.types.owners import is_reserved


class Busy(Exception):
    """Someone else has the lock; the message says who."""

    def leave(self, command: BaseCommand, code: int, verbosity: int) -> None:
        """End ``command`` with ``code``; return if that is DONE.

        DONE says that a busy lock is no failure: then it is told only to those who want to know
        more. With ``verbosity`` 0 the exit code alone tells it, so that cron mails nothing.
        """
        if code == DONE:
            if verbosity > 1:
                command.stderr.write(str(self))
        elif verbosity or not getattr(command, "_called_from_command_line", False):
            leave(code, str(self))
        else:
            sys.exit(code)


def take(lock: Lock, timeout: float | None, *, prepare: bool = False) -> None:
    """Take ``lock``, waiting for ``timeout`` seconds (None: for ever), or end the command.

    ``prepare``: make what the backend needs if it is missing. Raises Busy if someone else has it.
    """
    quiet_drivers()
    try:
        taken = _acquire(lock, timeout, prepare=prepare)
    except LockUnavailable as error:
        leave(UNAVAILABLE, text.escaped(str(error)))
    except NotSupported as error:
        leave(USAGE, text.escaped(str(error)))
    except LockError as error:
        leave(FAILED, text.escaped(str(error)))
    if not taken:
        raise _busy(lock)


def has_entered(lock: Lock) -> bool:
    """Return whether the current owner has entered ``lock`` and not left it, lost or not."""
    try:
        lock.check()
    except LockNotHeld:
        return False
    except LockLost:
        pass
    return True


def _acquire(lock: Lock, timeout: float | None, *, prepare: bool) -> bool:
    until = None if timeout is None else clock() + timeout
    try:
        return lock.acquire(timeout=-1 if timeout is None else timeout)
    except LockUnavailable:
        if not (prepare and locks[lock.using].ensure_schema(until)):
            raise
    return lock.acquire(timeout=-1 if timeout is None else left(until, timeout))


def _busy(lock: Lock) -> Busy:
    name = f"lock {text.quoted(lock.name)}"
    try:
        info = lock.info()
    except LockError:
        info = None
    if info is None or info.state is State.FREE:
        return Busy(f"{name} was held by someone else")
    who = text.owner(info.owner)
    what = f" ({text.escaped(info.description)})" if info.description else ""
    if info.owner is not None and is_reserved(info.owner):
        return Busy(
            f"{name} was left by {who}{what} and stays taken until {text.moment(info.until)}"
        )
    return Busy(f"{name} is held by {who}{what} since {text.moment(info.since)}")
