"""Runs statements of the backend: the one way from it to the database.

- ``work(function, deadline)`` calls ``function(connection)``, which runs statements with
  ``connection.ask(statement)``; ``connection.dialect`` makes them. It waits for rows that others
  keep locked, and raises LockUnavailable.
- ``attempt(function, deadline)`` is work() without that wait; it raises a StatementFailed, which
  unavailable() translates.

Both may call the function twice: a session may turn out to be dead, and the engine may choose a
statement to end a deadlock. So twice must be as good as once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from distlock.backends.database.connection import Connection
from distlock.backends.database.errors import (
    ROW_WAIT,
    FileLocked,
    RowLocked,
    StatementFailed,
    unavailable,
)
from distlock.backends.database.pool import Pool
from distlock.backends.database.sqlite_session import connection_of_test, in_own_transaction
from distlock.concurrency.clock import clock
from distlock.exceptions import LockUnavailable, NotSupported

T = TypeVar("T")

_BEFORE_IT = "Do it before the transaction begins (a view: outside of ATOMIC_REQUESTS)"

Function = Callable[[Connection], T]


#: gets the nonce of a hold, if it is about one: the caller's connection to be used, if any
FindConnection = Callable[[str | None], Connection | None]


class StatementRunner:
    """A database, through shared sessions or, where that must be, the caller's own connection."""

    def __init__(self, pool: Pool, caller: FindConnection | None) -> None:
        """``caller``: None where the transactions of callers do not lock out our sessions."""
        self.pool = pool
        self.caller = caller

    def work(
        self,
        function: Function[T],
        deadline: float | None,
        nonce: str | None = None,
        *,
        at_once: bool = False,
    ) -> T:
        """Call a function, again while others keep a row locked; LockUnavailable if it fails.

        ``nonce`` says whose hold it is about; that may be known to one connection only.
        ``at_once``: if all sessions are in use, open one more.
        """
        until = clock() + self.pool.limit(deadline)
        while True:
            try:
                return self.attempt(function, until, nonce, at_once=at_once)
            except RowLocked as failed:
                if clock() + ROW_WAIT >= until:
                    raise self.unavailable(failed) from failed.__cause__
            except StatementFailed as failed:
                raise self.unavailable(failed) from failed.__cause__

    def attempt(
        self,
        function: Function[T],
        deadline: float | None,
        nonce: str | None = None,
        *,
        at_once: bool = False,
    ) -> T:
        """Call a function; raises a StatementFailed. See work()."""

        if self.caller and (connection := self.caller(nonce)):
            connection.dialect = self.pool.dialect_for(connection.wrapper)
            connection.until = clock() + self.pool.limit(deadline)
            return function(connection)
        return self.pool.work(function, deadline, at_once=at_once)

    def unavailable(self, failed: StatementFailed) -> LockUnavailable:
        """Return what callers of the backend are told of a failure."""
        return unavailable(failed, self.pool.database)


class RecordRunner(StatementRunner):
    """Runs statements about records, on sessions of our own even in a transaction of the caller.

    What a transaction of the caller has changed would be gone after a rollback, while its owner
    relies on it. So its connection is used only if it is that of a test case, on SQLite.
    """

    def __init__(self, pool: Pool, *, on_sqlite: bool) -> None:
        super().__init__(pool, partial(connection_of_test, pool.database) if on_sqlite else None)

    def unavailable(self, failed: StatementFailed) -> LockUnavailable:
        """See StatementRunner.unavailable(). The tables are others than that of the locks."""
        what = "tables for the records of semaphores and the like"
        error = unavailable(failed, self.pool.database, what)
        if isinstance(failed, FileLocked) and self._in_own_transaction:
            error.args = (f"{error}, by this thread's own transaction. {_BEFORE_IT}",)
        return error

    def refuse_in_transaction(self, what: str) -> None:
        """Raise NotSupported on SQLite within a transaction of the caller.

        In it a rollback would take back what its owner relies on, unnoticed. And our own session
        could not write before its end. The transaction around a test case does not count.
        """
        if self._in_own_transaction:
            raise NotSupported(
                f"{what} in the database {self.pool.database!r}: on SQLite this cannot be done"
                f" inside a transaction. {_BEFORE_IT}, or use another backend"
            )

    @property
    def _in_own_transaction(self) -> bool:
        return self.caller is not None and in_own_transaction(self.pool.database)
