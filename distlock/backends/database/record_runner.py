"""Runs statements about records, on sessions of our own even within a transaction of the caller."""

from __future__ import annotations

from distlock.backends.database.caller_transaction import in_own_transaction
from distlock.backends.database.errors import FileLocked, NoTable, StatementFailed
from distlock.backends.database.pool import Pool
from distlock.backends.database.runner import StatementRunner
from distlock.backends.database.sqlite_session import CallerConnection
from distlock.backends.open_transactions import connection_of_test_case
from distlock.exceptions import LockUnavailable, NotSupported

_BEFORE_IT = "Do it before the transaction begins (a view: outside of ATOMIC_REQUESTS)"


class RecordRunner(StatementRunner):
    """A database, through shared sessions.

    What a transaction of the caller has changed would be gone after a rollback, while its owner
    relies on it. So its connection is used only if it is that of a test case, on SQLite.
    """

    def __init__(self, pool: Pool, *, on_sqlite: bool) -> None:
        super().__init__(pool, _TestCaseConnection(pool.database) if on_sqlite else None)

    def unavailable(self, failed: StatementFailed) -> LockUnavailable:
        """See StatementRunner.unavailable(). The tables are others than that of the locks."""
        if not isinstance(failed, NoTable):
            error = super().unavailable(failed)
            if isinstance(failed, FileLocked) and self._in_own_transaction:
                error.args = (f"{error}, by this thread's own transaction. {_BEFORE_IT}",)
            return error
        database = self.pool.database
        error = LockUnavailable(
            f"database {database!r} has no tables for the records of semaphores and the like:"
            f" run `manage.py migrate distlock --database={database}`"
        )
        error.__cause__ = failed.__cause__
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


class _TestCaseConnection:
    """Finds the connection of a test case, whose transaction locks our own sessions out."""

    def __init__(self, database: str) -> None:
        self._database = database

    def connection(self, nonce: str | None = None) -> CallerConnection | None:
        connection = connection_of_test_case(self._database)
        return None if connection is None else CallerConnection(connection)
