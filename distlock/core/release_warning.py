"""Warns when a lock is released although what it protected is not committed yet."""

from __future__ import annotations

import warnings
from typing import Any

from django.db import connections

from distlock.backends.open_transactions import blocks_of_test_case
from distlock.core.call_site import callers_level
from distlock.core.held import Key
from distlock.exceptions import ReleasedInTransaction
from distlock.types.lease import Kind


def warn_if_uncommitted(key: Key, until_commit: bool = False) -> None:
    """Warn if a transaction of this thread is open, other than the one around a test case.

    The next holder would not see what was written under the lock, which has this key, until that
    transaction commits. If it was left with ``until_commit``, only those count that are ended by
    hand.
    """
    for connection in connections.all(initialized_only=True):
        # This runs at each release, and as a rule no transaction is open.
        if connection.connection is None or (
            connection.autocommit and not connection.in_atomic_block
        ):
            continue
        if until_commit and connection.in_atomic_block and connection.commit_on_exit:
            continue
        if _has_open_transaction(connection):
            _, name, *kinds = key
            kind = kinds[0] if kinds else Kind.LOCK
            instead = ", or `with lock.atomic():`" if kind is Kind.LOCK else ""
            keep = "" if until_commit else ', or use release="commit"'
            warnings.warn(
                f"{kind} {name!r} was released inside a transaction on {connection.alias!r} that is"
                " still open: the next holder cannot see its changes yet. Release it after the"
                f" transaction{keep}{instead}.",
                ReleasedInTransaction,
                stacklevel=callers_level(),
            )


def _has_open_transaction(connection: Any) -> bool:
    if connection.in_atomic_block:
        return len(connection.atomic_blocks) > blocks_of_test_case(connection)
    # Without autocommit the first statement begins one; not every driver tells whether there was.
    if connection.vendor == "sqlite":
        return bool(connection.connection.in_transaction)
    if connection.vendor == "postgresql" and hasattr(connection.connection, "info"):
        return bool(connection.connection.info.transaction_status)  # IDLE is 0
    return True
