"""Transactions of the caller that commit only while a lock is held; some remove records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from django.db import Error as DjangoDatabaseError
from django.db import connections, transaction

from distlock.backends.database.errors import (
    SerializationFailure,
    StatementFailed,
    failure,
    unavailable,
)
from distlock.backends.database.pool import Pool
from distlock.backends.database.record_sql import DIRECTORIES, RECORDS, RecordSQL
from distlock.backends.database.runner import StatementRunner
from distlock.backends.database.sql import TABLE
from distlock.backends.database.statements import Statement, in_list, named_values
from distlock.backends.open_transactions import (
    TransactionOutcomeHook,
    blocks_of_test_case,
    call_at_end,
    check_durable,
    durable,
    is_inside,
    is_joining,
    joined,
)
from distlock.exceptions import LockLost, NotSupported
from distlock.types.lease import Lease

#: How often a transaction is begun whose first statement met a renewal of the lease.
_ATTEMPTS = 5


class Transactions:
    """The transactions of this process that are tied to a lease.

    At its end such a transaction makes sure of the lease and locks the row of the lock. So nobody
    can take the lock before the commit.

    A transaction that reads a snapshot cannot lock a row that was changed after it began. So it
    locks the row when it begins, too. Then the lease cannot be renewed, and the transaction has to
    end before the lease does.
    """

    def __init__(self, runner: StatementRunner) -> None:
        self.database = runner.pool.database
        self._runner = runner
        self._pool = runner.pool
        self._locked: set[str] = set()

    def has_locked(self, nonce: str) -> bool:
        """Return whether a transaction has locked the row of this hold when it began."""
        return nonce in self._locked

    def check(self, using: str | None, lease: Lease | None) -> None:
        """See BaseBackend.check_atomic()."""
        _refuse_other(using, self.database, "the lock lives")
        check_durable(self.database, lease)

    @contextmanager
    def atomic(
        self, lease: Lease, using: str | None, others: Sequence[Lease] = ()
    ) -> Iterator[bool]:
        """See BaseBackend.atomic()."""
        self.check(using, lease)
        leases = lease, *others
        if all(is_inside(one, self.database) for one in leases):
            with transaction.atomic(self.database):
                yield False
            return
        if is_joining(self.database):
            with self._joined(leases):
                yield True
            return
        connection = connections[self.database]
        # The transaction around a test case never commits. A row that it has locked could not be
        # released, so it only looks whether the lock is held.
        in_test_case = connection.in_atomic_block
        committing, committed = False, list[bool]()
        try:
            with ExitStack() as stack:
                for one in leases:
                    stack.callback(self._locked.discard, one.nonce)
                self._begin(leases, connection, stack, lock_rows=not in_test_case)
                # The first hook: others may fail after it.
                connection.on_commit(partial(committed.append, True))
                yield False
                if connection.needs_rollback:
                    return
                committing = True
                self._make_sure(leases, connection)
        except (DjangoDatabaseError, StatementFailed) as error:
            failed = error if isinstance(error, StatementFailed) else None
            kind = type(failed) if failed else failure(error, connection.vendor)
            # Galera refuses the commit if another node has changed the row of the lock, or a row
            # that the caller has written.
            conflict = committing and not committed and kind is SerializationFailure
            for one in leases if conflict else ():
                if not self._is_held(one):
                    raise _lost(one) from error
            if failed:
                raise unavailable(failed, self.database) from failed.__cause__
            raise

    @contextmanager
    def _joined(self, leases: Sequence[Lease]) -> Iterator[None]:
        """Let the transaction of atomic() of another lock depend on these leases, too."""
        connection = connections[self.database]

        def make_sure() -> None:
            try:
                self._make_sure(leases, connection)
            except StatementFailed as failed:
                raise unavailable(failed, self.database) from failed.__cause__

        # Where only one can write, these locks are left in the very transaction, so this is the
        # last moment in which they are held; and nobody else can take them before its end.
        one_writer = self._pool.dialect_for(connection).one_writer
        with joined(self.database, *leases, guard=None if one_writer else make_sure):
            yield
            if one_writer and not connection.needs_rollback:
                make_sure()

    def _make_sure(self, leases: Sequence[Lease], connection: Any) -> None:
        """Lock the rows of leases until the commit; LockLost if one does not hold its lock."""
        for lease in leases:
            if not blocks_of_test_case(connection):
                self._lock_row(lease, connection)
            elif not self._is_held(lease):
                raise _lost(lease)

    def _begin(
        self, leases: Sequence[Lease], connection: Any, stack: ExitStack, *, lock_rows: bool
    ) -> None:
        """Begin the transaction, which ends with ``stack``; in a snapshot, lock the rows first."""
        dialect = self._pool.dialect_for(connection)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with ExitStack() as begun:
                    begun.enter_context(durable(self.database, *leases))
                    if lock_rows and dialect.reads_snapshot(connection):
                        self._locked.update(lease.nonce for lease in leases)
                        for lease in leases:
                            self._lock_row(lease, connection)
                    stack.enter_context(begun.pop_all())
                    return
            except SerializationFailure:  # a renewal was under way
                if attempt == _ATTEMPTS:
                    raise

    def _lock_row(self, lease: Lease, connection: Any) -> None:
        """Lock the row in the caller's transaction; LockLost if the lease does not hold the lock.

        Raises a StatementFailed if the database refuses.
        """
        table = self._pool.table_for(connection, TABLE)
        statement = self._pool.dialect_for(connection).guard(lease, table)
        if not _run(connection, statement):
            raise _lost(lease)

    def _is_held(self, lease: Lease) -> bool:
        return bool(self._runner.work(lambda db: db.ask(db.dialect.held([lease])).rows, None))


def _run(connection: Any, statement: Statement) -> int:
    """Run a statement in the caller's transaction; how many rows it found, or changed.

    Raises a StatementFailed.
    """
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement.sql, statement.params)
            return int(cursor.rowcount)
    except DjangoDatabaseError as error:
        raise failure(error, connection.vendor)(str(error)) from (error.__cause__ or error)


def _refuse_other(using: str | None, database: str, what: str) -> None:
    """Raise NotSupported for a transaction of another database than ``what`` is kept in."""
    if using not in (None, database):
        raise NotSupported(
            f"atomic(using={using!r}): {what} in the database {database!r}, and only a transaction"
            " there can be tied to it"
        )


def _lost(lease: Lease) -> LockLost:
    return LockLost(f"lock {lease.name!r} was lost before the commit: rolled back")


class Removal(NamedTuple):
    """Records that a transaction of the caller removes, see RecordStore.removing()."""

    directory: str
    keys: Sequence[str]
    lease: Lease
    before: Callable[[], object]
    lost: Callable[[], Exception]
    #: is called after the commit
    after: Callable[[], object]

    def statements(self, connection: Any, pool: Pool, sql: RecordSQL) -> tuple[Statement, ...]:
        """Return what gives the directory the next revision, and what removes the records.

        The first one locks the row of the directory until the commit.
        """
        directories = pool.table_for(connection, DIRECTORIES)
        params = {"directory": self.directory}
        return (
            Statement(
                f"UPDATE {directories} SET revision = {sql.next} WHERE name = %(directory)s", params
            ),
            Statement(
                f"DELETE FROM {pool.table_for(connection, RECORDS)} WHERE directory ="
                f" (SELECT id FROM {directories} WHERE name = %(directory)s)"
                f" AND {in_list('name', 'key', self.keys)}",
                {**params, **named_values("key", self.keys)},
            ),
        )


@contextmanager
def removing(
    pool: Pool, sql: RecordSQL, removal: Removal, using: str | None
) -> Iterator[Sequence[bool]]:
    """See RecordStore.removing().

    The row of the directory is locked at the end, and so for moments only. On SQLite nobody else
    writes from the beginning on: who has read something could not begin to write later.
    """
    database = pool.database
    _refuse_other(using, database, f"{removal.directory!r} is")
    connection: Any = connections[database]
    touch, remove = removal.statements(connection, pool, sql)
    committed = list[bool]()
    note_commit = partial(committed.append, True)
    try:
        with durable(database, removal.lease):
            if pool.dialect_for(connection).one_writer:
                _run(connection, touch)
            yield committed
            if connection.needs_rollback:
                return
            removal.before()
            _run(connection, touch)
            if _run(connection, remove) != len(removal.keys):
                raise removal.lost()
            if not blocks_of_test_case(connection):  # hooks of the app may fail after the commit
                call_at_end(connection, TransactionOutcomeHook(note_commit, lambda: None))
        note_commit()
    except StatementFailed as failed:
        raise unavailable(failed, database) from failed.__cause__
    finally:
        if committed:
            removal.after()
