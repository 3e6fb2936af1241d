"""Runs statements about records, on sessions of our own even within a transaction of the caller."""

from __future__ import annotations

from typing import Any

from django.db import connections

from distlock.backends.database.errors import FileLocked, NoTable, StatementFailed
from distlock.backends.database.pool import Pool
from distlock.backends.database.runner import StatementRunner
from distlock.backends.database.sqlite_session import CallerConnection
from distlock.backends.testcase import blocks_of_test_case, connection_of_test_case
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
        """Whether this thread is in a transaction on SQLite, other than that of a test case."""
        if self.caller is None:
            return False
        wrapper: Any = connections[self.pool.database]
        if wrapper.connection is None or not wrapper.connection.in_transaction:
            return False
        own = len(wrapper.atomic_blocks) - blocks_of_test_case(wrapper)
        return bool(own) or not wrapper.in_atomic_block


class _TestCaseConnection:
    """Finds the connection of a test case, whose transaction locks our own sessions out."""

    def __init__(self, database: str) -> None:
        self._database = database

    def connection(self, nonce: str | None = None) -> CallerConnection | None:
        connection = connection_of_test_case(self._database)
        return None if connection is None else CallerConnection(connection)
