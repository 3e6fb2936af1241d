"""Locks inside the caller's own transaction, on SQLite, where only one transaction can write.

A session of our own would wait for a transaction that waits for us. So the lock is acquired in that
very transaction: nobody else can take it before the commit, but a rollback undoes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections

from distlock.backends.database.connection import Connection
from distlock.backends.database.sqlite_session import CallerConnection
from distlock.backends.open_transactions import (
    TransactionOutcomeHook,
    blocks_of_test_case,
    connection_of_test_case,
)
from distlock.concurrency.threads import start


def in_own_transaction(database: str) -> bool:
    """Return whether this thread is in a transaction on SQLite, other than that of a test case."""
    wrapper: Any = connections[database]
    if wrapper.connection is None or not wrapper.connection.in_transaction:
        return False
    own = len(wrapper.atomic_blocks) - blocks_of_test_case(wrapper)
    return bool(own) or not wrapper.in_atomic_block


class CallerTransaction:
    """The holds that were acquired in transactions of callers, and what became of these."""

    def __init__(self, database: str, on_abandoned: Callable[[str], None]) -> None:
        """``on_abandoned`` gets the nonce of a hold that a test case has left behind."""
        self.database = database
        self._on_abandoned = on_abandoned
        # By nonce of a hold: the connection in whose open transaction it was acquired, and the
        # savepoints that were open then.
        self._open: dict[str, tuple[Any, frozenset[str]]] = {}
        self._rolled_back: set[str] = set()

    def connection(self, nonce: str | None = None) -> CallerConnection | None:
        """Return a connection whose open transaction locks us out, to be used in place of our own.

        That of the caller, or the one in which the hold ``nonce`` was acquired, or a test case's.
        """
        connection = connections[self.database]
        if connection.connection is not None and connection.connection.in_transaction:
            return CallerConnection(connection)
        if nonce is not None and (found := self._open.get(nonce)) is not None:
            return CallerConnection(found[0])
        connection = connection_of_test_case(self.database)
        return None if connection is None else CallerConnection(connection)

    def is_open(self, nonce: str) -> bool:
        """Return whether the transaction in which a hold was acquired is still open."""
        return nonce in self._open

    def was_rolled_back(self, nonce: str) -> bool:
        """Return whether a hold was acquired in a transaction that has been rolled back."""
        return nonce in self._rolled_back

    def note_acquired(self, connection: Any, nonce: str) -> None:
        """Note that a lock was acquired in the open transaction, and watch how that ends."""
        self._open[nonce] = connection, frozenset(connection.savepoint_ids)
        around = blocks_of_test_case(connection)

        def commit() -> None:
            self._open.pop(nonce, None)

        def rollback() -> None:
            if self._open.pop(nonce, None) is not None:
                self._rolled_back.add(nonce)
                if blocks_of_test_case(connection) < around:  # not a block of the code under test
                    self._on_abandoned(nonce)

        connection.on_commit(TransactionOutcomeHook(commit, rollback))
        # To the front: if a callback fails after the commit, Django drops those that follow.
        hooks = connection.run_on_commit
        hooks.insert(0, hooks.pop())

    def note_released(
        self, used: Connection, nonce: str, release_again: Callable[[], None]
    ) -> None:
        """Note that a lock was released on a connection, perhaps in the caller's transaction.

        A rollback of that would bring the hold back: then ``release_again`` is called, on another
        thread.
        """
        acquired = self._open.get(nonce)
        self.discard(nonce)
        if not used.of_caller:
            return
        connection = used.wrapper

        def rollback() -> None:
            # If the rollback also undid the acquire, there is nothing to release.
            open_now = connection.in_atomic_block and frozenset(connection.savepoint_ids)
            if acquired is None or (open_now is not False and acquired[1] <= open_now):
                start(release_again, "distlock-rollback")

        if connection.in_atomic_block:
            connection.on_commit(TransactionOutcomeHook(lambda: None, rollback))
        elif connection.connection.in_transaction:
            # It was begun by hand, so its end is not known. Release the lock again after that,
            # which does nothing to a free lock.
            rollback()

    def discard(self, nonce: str) -> None:
        """Keep nothing for a hold that is over."""
        self._open.pop(nonce, None)
        self._rolled_back.discard(nonce)
