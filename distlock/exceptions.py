"""The errors of locks, each failure with a class of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distlock.typed import Holder  # a stub


class LockError(Exception):
    """Base of every error that distlock raises about a lock."""


class LockBusy(LockError):
    """Someone else has the lock, and the caller wanted to wait no longer.

    ``holder`` is the holder (``owner``, ``since``, ``held_for``, ``description`` and more) in the
    last answer that refused the lock. It is None where that answer did not name one; no further
    request is sent.
    """

    holder: Holder | None = None


class LockTimeout(LockBusy, TimeoutError):
    """The lock was held by someone else for as long as the caller wanted to wait."""


class LockNotHeld(LockError, RuntimeError):
    """The current owner does not hold this lock, so it can neither release nor rely on it."""


class LockLost(LockError):
    """The lock is no longer held: its lease has ended, or the hold was broken."""


class BodyEnded(LockLost):
    """A lock was lost, and the work under it is to end: raised in the middle of that work.

    It may come while another lock is taken or left, and is not of that one.
    """


class LockUnavailable(LockError):
    """The backend could not be asked; whether the lock is free is unknown.

    The driver's own error is the ``__cause__``. Never raised for a lock that someone else holds.
    """

    #: False if the request certainly never reached the backend. Then it cannot have been granted,
    #: and nothing has to be taken back.
    maybe_applied = True


class NotPermitted(LockUnavailable):
    """The backend refuses this client: its user lacks a right, or its credentials are wrong.

    Trying again does not help before somebody has changed that. It is raised in waiters at once.
    """


class LockDeadlock(LockError):
    """Waiting would never end: the owners wait for one another in a circle, all without a limit."""


class ReentrantCall(Exception):
    """A signal handler or destructor uses a lock while its own thread takes or leaves one.

    Nothing was begun. In a signal handler ``raise SystemExit``, so that ``with`` releases the lock,
    or let another thread do it, without waiting for it. If the handler does not catch this, it ends
    the interrupted code, as every error of a handler does. So it is not a LockError, which the
    interrupted code might take for its own.
    """


class ValueNotAgreed(LockError):
    """A semaphore has another number of seats for its present users, or none was given.

    Nothing was taken. It settles when they have left, or with ``Semaphore.resize()``.
    """


class NotSupported(LockError):
    """This backend does not support the request; the message says what does."""


class StaleToken(LockError):
    """A protected row has been written under a newer fencing token than the one given."""


class Cancelled(LockError):
    """Somebody has asked this work to end, by the progress that it reports; see Progress.cancel().

    Not by Celery or asyncio, whose own errors differ.
    """


class UnfilledTemplate(RuntimeWarning):
    """A lock is taken whose name looks like a template, such as ``"report:{account_id}"``.

    Usually an ``f`` is missing before the string, and all callers share one lock.
    """


class ReleasedInTransaction(RuntimeWarning):
    """A lock was released while the transaction that it protected was still open."""
