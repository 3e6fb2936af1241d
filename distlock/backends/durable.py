"""A transaction that is not part of another, so that its commit is the commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from distlock.backends.testcase import blocks_of_test_case
from distlock.exceptions import LockError


def check_durable(using: str) -> None:
    """Raise LockError if a transaction is open on ``using``; connects to nothing.

    What an open transaction has read may be older than the lock, and its commit comes after the
    lock is freed. The transaction around a test case does not count, as with
    ``transaction.atomic(durable=True)``.
    """
    connection: Any = transaction.get_connection(using)
    if connection.in_atomic_block:
        if len(connection.atomic_blocks) > blocks_of_test_case(connection):
            raise LockError(
                f"atomic() inside a transaction on {using!r}: what that has read may be older than"
                " the lock, and it commits after the lock is freed. Begin it with lock.atomic(), or"
                " exempt the view from ATOMIC_REQUESTS with @transaction.non_atomic_requests"
            )
        return
    opened = connection.connection is not None
    if not (connection.get_autocommit() if opened else connection.settings_dict["AUTOCOMMIT"]):
        raise LockError(
            f"atomic() needs autocommit on {using!r}, which is switched off: nothing would be"
            " committed before the lock is freed"
        )


@contextmanager
def durable(using: str) -> Iterator[None]:
    """Begin a transaction on ``using`` that is not part of another. See check_durable()."""
    check_durable(using)
    block = transaction.atomic(using, durable=True)
    block.__enter__()
    try:
        yield
    except BaseException as error:
        block.__exit__(type(error), error, error.__traceback__)
        raise
    else:
        block.__exit__(None, None, None)
