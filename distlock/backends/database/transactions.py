"""Transactions of the caller that commit only while a lock is held."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import Error as DjangoDatabaseError
from django.db import connections, transaction

from distlock.backends.database.errors import (
    SerializationFailure,
    StatementFailed,
    failure,
    unavailable,
)
from distlock.backends.database.runner import StatementRunner
from distlock.backends.database.sql import Dialect
from distlock.backends.durable import check_durable, durable
from distlock.exceptions import LockLost, NotSupported
from distlock.types.lease import Lease

#: How often a transaction is begun anew when its first statement met a renewal of the lease.
_ATTEMPTS = 5


class Transactions:
    """The transactions of this process that are tied to a lease.

    At its end such a transaction makes sure of the lease and locks its row, so that nobody can take
    it over before the commit. Where a renewal in the meantime would prevent that, since the
    transaction sees nothing that was written after it began, it locks the row when it begins, too:
    then the lease is not renewed, and the transaction has to end before it does.
    """

    def __init__(self, runner: StatementRunner, dialect_for: Callable[[Any], Dialect]) -> None:
        self.database = runner.pool.database
        self._runner = runner
        self._dialect_for = dialect_for
        self._locked: set[str] = set()
        self._of_thread = threading.local()

    def has_locked(self, nonce: str) -> bool:
        """Return whether a transaction has locked the row of this hold when it began."""
        return nonce in self._locked

    def check(self, using: str | None, lease: Lease | None) -> None:
        """See BaseBackend.check_atomic()."""
        if using not in (None, self.database):
            raise NotSupported(
                f"atomic(using={using!r}): the lock lives in the database {self.database!r}, and"
                " only a transaction there can be tied to it"
            )
        if lease is None or lease.nonce not in self._inside:
            check_durable(self.database)

    @contextmanager
    def atomic(self, lease: Lease, using: str | None) -> Iterator[None]:
        """See BaseBackend.atomic()."""
        self.check(using, lease)
        inside = self._inside
        if lease.nonce in inside:
            with transaction.atomic(self.database):
                yield
            return
        connection = connections[self.database]
        # durable() lets nothing but the transaction around a test case pass: it never commits, and
        # would keep the row locked against the release of the lock.
        in_test_case = connection.in_atomic_block and connection.vendor != "sqlite"
        committing = committed = False

        def commit() -> None:
            nonlocal committed
            committed = True

        try:
            with ExitStack() as stack:
                stack.callback(self._locked.discard, lease.nonce)
                stack.callback(inside.discard, lease.nonce)
                inside.add(lease.nonce)
                self._begin(lease, connection, stack, late=in_test_case)
                connection.on_commit(commit)  # the first one: others may fail after it
                yield
                if connection.needs_rollback:
                    return
                committing = True
                if not in_test_case:
                    self._guard(connection, self._dialect_for(connection), lease)
                elif not self._is_held(lease):
                    raise _lost(lease)
        except (DjangoDatabaseError, SerializationFailure) as error:
            # Galera refuses the commit if another node has changed the row, or one of the caller's.
            conflict = (
                isinstance(error, SerializationFailure)
                or failure(error, connection.vendor) is SerializationFailure
            )
            if committing and not committed and conflict and not self._is_held(lease):
                raise _lost(lease) from error
            if isinstance(error, SerializationFailure):
                raise unavailable(error, self.database) from error.__cause__
            raise

    @property
    def _inside(self) -> set[str]:
        inside: set[str] = self._of_thread.__dict__.setdefault("inside", set())
        return inside

    def _begin(self, lease: Lease, connection: Any, stack: ExitStack, *, late: bool) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with ExitStack() as begun:
                    begun.enter_context(durable(self.database))
                    dialect = self._dialect_for(connection)
                    if not late and (dialect.guards_early or _reads_a_snapshot(connection)):
                        self._locked.add(lease.nonce)
                        self._guard(connection, dialect, lease)
                    stack.enter_context(begun.pop_all())
                    return
            except SerializationFailure as conflict:
                if attempt == _ATTEMPTS:
                    raise unavailable(conflict, self.database) from conflict.__cause__

    def _is_held(self, lease: Lease) -> bool:
        return bool(self._runner.work(lambda db: db.ask(db.dialect.held([lease])).rows, None))

    def _guard(self, connection: Any, dialect: Dialect, lease: Lease) -> None:
        """Lock the row; a SerializationFailure is raised as such."""
        statement = dialect.guard(lease)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement.sql, statement.params)
                found = cursor.rowcount if cursor.description is None else cursor.fetchall()
        except DjangoDatabaseError as error:
            failed: StatementFailed = failure(error, connection.vendor)(str(error))
            failed.__cause__ = error.__cause__
            if isinstance(failed, SerializationFailure):
                raise failed from error.__cause__
            raise unavailable(failed, self.database) from error.__cause__
        if not found:
            raise _lost(lease)


def _lost(lease: Lease) -> LockLost:
    return LockLost(f"lock {lease.name!r} was lost before the commit: rolled back")


def _reads_a_snapshot(connection: Any) -> bool:
    """Return whether the open transaction refuses to lock what was written after it began."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            return cursor.fetchone()[0] not in ("read committed", "read uncommitted")
    if connection.vendor == "mysql" and connection.mysql_is_mariadb:
        if connection.isolation_level in ("read committed", "read uncommitted"):
            return False
        # https://mariadb.com/kb/en/innodb-system-variables/#innodb_snapshot_isolation
        with connection.cursor() as cursor:
            cursor.execute("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'")
            return ("innodb_snapshot_isolation", "ON") in cursor.fetchall()
    return False
