"""The transaction of atomic(): it is not part of another one, so its commit is final.

atomic() of another lock inside it joins it: the transaction then depends on both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import transaction

from distlock.backends.open_transactions import Failed, reads_snapshot
from distlock.backends.testcase import blocks_of_test_case
from distlock.exceptions import LockError
from distlock.types.lease import Lease


class _Transaction:
    """A transaction of atomic(), and what the locks that have joined it do at its end."""

    def __init__(self) -> None:
        #: called before the commit; they raise if a lock was lost
        self.guards: list[Callable[[], object]] = []
        #: what is done when it has been committed or rolled back
        self.after = ExitStack()


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.holds: set[tuple[str, str]] = set()  # the nonce of each, and its database
        self.transactions: dict[str, _Transaction] = {}  # by their database


_inside = _OfThread()


def is_inside(lease: Lease, using: str) -> bool:
    """Return whether this thread is in atomic() of a lease, on the database ``using``."""
    hold = lease.nonce, using
    return hold in _inside.holds and transaction.get_connection(using).in_atomic_block


def is_joining(using: str) -> bool:
    """Return whether atomic() of a lock would join the one that this thread is in already."""
    return using in _inside.transactions and transaction.get_connection(using).in_atomic_block


def check_durable(using: str, lease: Lease | None) -> None:
    """Raise LockError if a transaction is open on ``using`` that atomic() cannot be part of.

    It can be part of atomic() of ``lease``, and of another lock if what that transaction reads is
    never older than a lock that is taken in it. Connects to nothing.
    """
    if lease is not None and is_inside(lease, using):
        return
    if not is_joining(using):
        _refuse_open(using)
        return
    try:
        too_old = reads_snapshot(transaction.get_connection(using))
    except Failed as error:
        raise LockError(
            f"atomic() inside a transaction on {using!r}, which cannot be asked for its isolation"
            f" level: {error}"
        ) from error
    if too_old:
        raise LockError(
            f"atomic() of a lock inside that of another one on {using!r}, above READ COMMITTED:"
            " what the transaction has read may be older than the lock. Take both before it begins,"
            " with MultiLock.atomic()"
        )


def _refuse_open(using: str) -> None:
    """Raise LockError if a transaction is open on ``using``.

    What it has read may be older than the lock, and its commit comes after the lock is freed. The
    transaction around a test case does not count, as with ``transaction.atomic(durable=True)``.
    """
    connection: Any = transaction.get_connection(using)
    if connection.in_atomic_block:
        if len(connection.atomic_blocks) > blocks_of_test_case(connection):
            raise LockError(
                f"atomic() inside a transaction on {using!r}: what that has read may be older than"
                " the lock, and it commits after the lock is freed. Begin it with lock.atomic(), or"
                " exempt the view from ATOMIC_REQUESTS with @transaction.non_atomic_requests; or"
                ' use the lock without atomic(), with release="commit"'
            )
        return
    opened = connection.connection is not None
    if not (connection.get_autocommit() if opened else connection.settings_dict["AUTOCOMMIT"]):
        raise LockError(
            f"atomic() needs autocommit on {using!r}, which is switched off: nothing would be"
            " committed before the lock is freed"
        )


@contextmanager
def durable(using: str, *leases: Lease) -> Iterator[None]:
    """Begin the transaction of atomic() of some leases, which is not part of another."""
    _refuse_open(using)
    this = _Transaction()
    with this.after, _noted(using, leases):
        try:
            _inside.transactions[using] = this
            with transaction.atomic(using, durable=True):
                yield
                if not transaction.get_connection(using).needs_rollback:
                    for guard in this.guards:
                        guard()
        finally:
            _inside.transactions.pop(using, None)


@contextmanager
def joined(
    using: str,
    *leases: Lease,
    guard: Callable[[], object] | None = None,
    after: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Begin a savepoint in the transaction of atomic() of another lock.

    If it is not rolled back, the whole transaction depends on these leases, too: ``guard()`` is
    called before its commit, and ``after()`` when it has ended.
    """
    outer = _inside.transactions[using]
    with _noted(using, leases), transaction.atomic(using):
        yield
    if after is not None:
        outer.after.callback(after)
    if guard is not None:
        outer.guards.append(guard)


@contextmanager
def _noted(using: str, leases: tuple[Lease, ...]) -> Iterator[None]:
    holds = {(lease.nonce, using) for lease in leases} - _inside.holds
    try:
        _inside.holds |= holds
        yield
    finally:
        _inside.holds -= holds
