"""What tasks, commands and programs run under: a lock, or one of so many slots.

How it is left whatever happens, and who has a busy one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from distlock.exceptions import LockBusy, LockError
from distlock.locking.base_lock import BaseLock
from distlock.locking.blocks import holder_message
from distlock.locking.lock import Lock
from distlock.locking.shared import Semaphore
from distlock.types.arguments import checked_count

T = TypeVar("T")

#: In place of a number: the one that was said last, for all, by ``manage.py locks resize``.
AGREED: Literal["agreed"] = "agreed"

#: At most so many at a time.
Slots = int | Literal["agreed"]


def run_under(
    lock: BaseLock,
    acquire: Callable[[], object],
    body: Callable[[], T],
    on_leave_error: Callable[[LockError], object],
) -> T:
    """Take a lock by ``acquire()``, call ``body()``, leave the lock; return what the body returned.

    ``acquire`` raises if the lock is not to be had. It is left wherever an error comes, also an
    interrupt between two steps: Ctrl-C or Celery's soft time limit may come at any moment, and the
    process goes on. It may come between ``__enter__()`` and the body of a ``with``, which is then
    not left. So this is a function.

    ``on_leave_error`` is called with the error if the body ended well and the lock could not be
    left: LockLost, or LockUnavailable (it is then freed later, or when its lease ends). It may
    raise. If the body failed, the error of leaving becomes a note of the body's own.
    """
    before = lock._entered_here()
    must_leave = False
    try:
        acquire()
        must_leave = True
        result = body()
        must_leave = False  # release() does it, and is not to be repeated
        try:
            lock.release()
        except LockError as error:
            on_leave_error(error)
        return result
    except BaseException as error:  # whatever it is, others wait for the lock
        # An interrupt may have come after the lock was taken, but before acquire() returned.
        if must_leave or _has_entered_since(lock, before):
            lock.__exit__(type(error), error, error.__traceback__)
        raise


def _has_entered_since(lock: BaseLock, before: tuple[str, int]) -> bool:
    """Return whether the current owner is in ``lock`` more often than before, lost or not."""
    nonce, count = lock._entered_here()
    return count > (before[1] if nonce == before[0] else 0)


def busy_error(lock: BaseLock) -> LockBusy:
    """Return an error that says who has a lock, as far as its backend can tell.

    It is asked, so this takes time.
    """
    holder = lock._holder()
    try:
        info = lock.info()
        message, holder = holder_message(info), next(iter(info.holders), None)
    except LockError:
        message = lock._holder_message(holder)
    error = LockBusy(message)
    error.holder = holder
    return error


def checked_slots(option: str, slots: object, *, at_least: float | None) -> None:
    """Check a number of slots, or None for a lock; ``option`` is what the caller calls it.

    Raises TypeError or ValueError that names the option and its value.
    """
    if slots is None or slots == AGREED:
        pass
    elif isinstance(slots, str):
        raise ValueError(f"{option} must be a number or {AGREED!r}, not {slots!r}")
    else:
        checked_count(option, slots)
    if slots is not None and at_least is not None:
        raise ValueError(
            f"at_least={at_least!r} does not go with {option}={slots!r}: a slot that is left is"
            " free at once"
        )


def lock_or_slot(
    name: str, slots: Slots | None, *, at_least: float | None = None, **options: Any
) -> BaseLock:
    """Return a Lock; with ``slots`` a Semaphore with so many seats, of which it takes one.

    ``options`` are those that both have; wrong ones are refused by name.
    """
    checked_slots("slots", slots, at_least=at_least)
    value = None if slots == AGREED else slots
    plain = slots is None
    lock = Lock(name, at_least=at_least, **options) if plain else Semaphore(name, value, **options)
    lock.name_is_filled_in = True
    return lock
