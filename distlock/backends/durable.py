"""The transaction of atomic(): it is not part of another one, so its commit is final."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from distlock.backends.testcase import blocks_of_test_case
from distlock.exceptions import LockError
from distlock.types.lease import Lease


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.holds: set[tuple[str, str]] = set()  # the nonce of each, and its database


_inside = _OfThread()


def is_inside(lease: Lease, using: str) -> bool:
    """Return whether this thread is in atomic() of a lease, on the database ``using``."""
    hold = lease.nonce, using
    return hold in _inside.holds and transaction.get_connection(using).in_atomic_block


def check_durable(using: str, lease: Lease | None) -> None:
    """Raise LockError if a transaction is open on ``using``, unless it is atomic() of ``lease``.

    Connects to nothing. What an open transaction has read may be older than the lock, and its
    commit comes after the lock is freed. The transaction around a test case does not count, as
    with ``transaction.atomic(durable=True)``.
    """
    if lease is not None and is_inside(lease, using):
        return
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
def durable(using: str, lease: Lease) -> Iterator[None]:
    """Begin the transaction of atomic() of a lease, which is not part of another."""
    check_durable(using, None)
    try:
        _inside.holds.add((lease.nonce, using))
        with transaction.atomic(using, durable=True):
            yield
    finally:
        _inside.holds.discard((lease.nonce, using))
