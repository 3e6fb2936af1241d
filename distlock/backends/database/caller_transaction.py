"""Locks inside the caller's own transaction, where the engine lets only that one write (SQLite).

A session of our own would wait for a transaction that waits for us. So the lock is taken in that
very transaction: nobody else can take it before the commit, but a rollback undoes it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.db import connections

from distlock.backends.database.sqlite_session import CallerConnection
from distlock.backends.testcase import blocks_of_test_case, connection_of_test_case
from distlock.concurrency.threads import start


class TransactionOutcomeHook:
    """Waits in ``run_on_commit`` of a connection, which drops it uncalled when it rolls back."""

    def __init__(self, on_commit: Callable[[], None], on_rollback: Callable[[], None]) -> None:
        self._on_commit = on_commit
        self._on_rollback = on_rollback
        self._committed = False

    def __call__(self) -> None:
        self._committed = True
        self._on_commit()

    def __del__(self) -> None:
        if not self._committed:
            with suppress(Exception):  # the interpreter may be ending
                self._on_rollback()


class CallerTransaction:
    """What was taken and freed in transactions of the callers that are, or were, open."""

    def __init__(self, database: str, on_abandoned: Callable[[str], None]) -> None:
        """``on_abandoned`` is told the nonce of a hold that a test case has left behind."""
        self.database = database
        self._on_abandoned = on_abandoned
        # By nonce of a hold: the connection in whose open transaction it was taken, and the
        # savepoints that were open then.
        self._open: dict[str, tuple[Any, frozenset[str]]] = {}
        self._undone: set[str] = set()

    def connection(self, nonce: str | None = None) -> CallerConnection | None:
        """Return a connection whose open transaction locks us out, to be used in place of our own.

        That of the caller, or the one in which the hold ``nonce`` was taken, or a test case's.
        """
        connection = connections[self.database]
        if connection.vendor != "sqlite":
            return None
        if connection.connection is not None and connection.connection.in_transaction:
            return CallerConnection(connection)
        if nonce is not None and nonce in self._open:
            return CallerConnection(self._open[nonce][0])
        connection = connection_of_test_case(self.database)
        return None if connection is None else CallerConnection(connection)

    def undecided(self, nonce: str) -> bool:
        """Return whether the transaction in which a hold was taken is still open."""
        return nonce in self._open

    def undone(self, nonce: str) -> bool:
        """Return whether a hold was taken in a transaction that has been rolled back."""
        return nonce in self._undone

    def taken(self, connection: Any, nonce: str) -> None:
        """Note that a lock was taken in the open transaction, and watch what becomes of that."""
        self._open[nonce] = connection, frozenset(connection.savepoint_ids)
        around = blocks_of_test_case(connection)

        def commit() -> None:
            self._open.pop(nonce, None)

        def rollback() -> None:
            if self._open.pop(nonce, None) is not None:
                self._undone.add(nonce)
                if blocks_of_test_case(connection) < around:  # not a block of the code under test
                    self._on_abandoned(nonce)

        connection.on_commit(TransactionOutcomeHook(commit, rollback))

    def freed(self, connection: Any, nonce: str, free_again: Callable[[], None]) -> None:
        """Note that a lock was freed in the open transaction; a rollback must not bring it back.

        ``free_again`` is then called on a thread of its own.
        """
        taken = self._open.pop(nonce, None)
        self._undone.discard(nonce)

        def rollback() -> None:
            # What was rolled back may go back beyond the taking: then there is nothing to free.
            open_now = connection.in_atomic_block and frozenset(connection.savepoint_ids)
            if taken is None or (open_now is not False and taken[1] <= open_now):
                start(free_again, "distlock-rollback")

        if connection.in_atomic_block:
            connection.on_commit(TransactionOutcomeHook(lambda: None, rollback))
        elif connection.connection.in_transaction:
            # It was begun by hand, and nobody will tell us how it ends. After that the lock must
            # be free, which costs nothing where it is.
            rollback()

    def forget(self, nonce: str) -> None:
        """Keep nothing for a hold that is over."""
        self._open.pop(nonce, None)
        self._undone.discard(nonce)
