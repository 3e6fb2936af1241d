"""Takes the lock that a command runs under, or ends the command with a code that says why not."""

from __future__ import annotations

from typing import NoReturn

from distlock.clock import clock, left
from distlock.commands import text
from distlock.commands.exits import BUSY, FAILED, UNAVAILABLE, USAGE, leave
from distlock.exceptions import LockError, LockLost, LockNotHeld, LockUnavailable, NotSupported
from distlock.handler import locks
from distlock.lease import State
from distlock.lock import Lock
from distlock.owners import is_kept


def take(lock: Lock, timeout: float | None, *, prepare: bool = False, busy: int = BUSY) -> None:
    """Take ``lock``, waiting for ``timeout`` seconds (None: for ever), or end the command.

    ``prepare``: make what the backend needs if it is missing. ``busy``: the code that says that
    someone else has it.
    """
    try:
        taken = _acquire(lock, timeout, prepare=prepare)
    except LockUnavailable as error:
        leave(UNAVAILABLE, text.escaped(str(error)))
    except NotSupported as error:
        leave(USAGE, text.escaped(str(error)))
    except LockError as error:
        leave(FAILED, text.escaped(str(error)))
    if not taken:
        _tell_who(lock, busy)


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
        if not (prepare and locks[lock.using].prepare(until)):
            raise
    return lock.acquire(timeout=-1 if timeout is None else left(until, timeout))


def _tell_who(lock: Lock, code: int) -> NoReturn:
    name = f"lock {text.quoted(lock.name)}"
    try:
        info = lock.info()
    except LockError:
        info = None
    if info is None or info.state is State.FREE:
        leave(code, f"{name} was held by someone else")
    who = text.owner(info.owner)
    what = f" ({text.escaped(info.description)})" if info.description else ""
    if info.owner is not None and is_kept(info.owner):
        leave(
            code, f"{name} was left by {who}{what} and stays taken until {text.moment(info.until)}"
        )
    leave(code, f"{name} is held by {who}{what} since {text.moment(info.since)}")
