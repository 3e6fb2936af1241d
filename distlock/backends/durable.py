"""A transaction that is not part of another, so that its commit is the commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from distlock.exceptions import LockError


@contextmanager
def durable(using: str) -> Iterator[None]:
    """Begin a transaction on ``using``; LockError if one is open already.

    What an open transaction has read may be older than the lock, and its commit comes after the
    lock is freed. The transaction around a test case does not count, as with
    ``transaction.atomic(durable=True)``.
    """
    connection = transaction.get_connection(using)
    if not connection.get_autocommit() and not connection.in_atomic_block:
        raise LockError(
            f"atomic() needs autocommit on {using!r}, which is switched off: nothing would be"
            " committed before the lock is freed"
        )
    block = transaction.atomic(using, durable=True)
    try:
        block.__enter__()
    except RuntimeError as error:
        raise LockError(
            f"atomic() inside a transaction on {using!r}: what that has read may be older than the"
            " lock, and it commits after the lock is freed. Begin it with lock.atomic(), or exempt"
            " the view from ATOMIC_REQUESTS with @transaction.non_atomic_requests"
        ) from error
    try:
        yield
    except BaseException as error:
        block.__exit__(type(error), error, error.__traceback__)
        raise
    else:
        block.__exit__(None, None, None)
