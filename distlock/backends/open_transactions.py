"""The transactions that are open in this thread, and what is called when one of them has ended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, SupportsIndex

from django.db import Error as DjangoDatabaseError
from django.db import connections

from distlock.backends.testcase import blocks_of_test_case

#: How to ask a transaction for its isolation level, by vendor. On SQLite who has read something
#: that was changed since cannot write any more, so there it does not matter.
_ISOLATION = {
    "postgresql": "SHOW transaction_isolation",
    "mysql": "SELECT @@transaction_isolation",
    "mariadb": "SELECT @@tx_isolation",
}
#: Isolation levels at which each statement sees what was committed before it.
SEES_COMMITS = ("read committed", "read uncommitted")


class TransactionOutcomeHook:
    """Tells how a transaction ends: Django calls it on commit, and drops it on rollback.

    Django has no hook for a rollback; it only forgets what was registered with ``on_commit()``. If
    ``on_commit`` is interrupted, ``on_rollback`` is called, too.
    """

    _committed = False  # also if it was interrupted while it was made

    def __init__(self, on_commit: Callable[[], None], on_rollback: Callable[[], None]) -> None:
        self._on_commit = on_commit
        self._on_rollback = on_rollback

    def __call__(self) -> None:
        self._on_commit()
        self._committed = True

    def __del__(self) -> None:
        if not self._committed:
            with suppress(Exception):  # the interpreter may be ending
                self._on_rollback()


def open_transactions() -> list[Any]:
    """Return the connections of this thread that are inside ``transaction.atomic()``.

    The transaction around a test case does not count. One that was closed inside its transaction
    has rolled back already.
    """
    return [
        connection
        for connection in connections.all(initialized_only=True)
        if connection.in_atomic_block
        and connection.commit_on_exit  # else autocommit is off, and it ends later
        and not connection.closed_in_transaction
        and len(connection.atomic_blocks) > blocks_of_test_case(connection)
    ]


def without_autocommit() -> list[Any]:
    """Return the open connections of this thread whose transactions are ended by hand."""
    return [
        connection
        for connection in connections.all(initialized_only=True)
        if connection.connection is not None
        and not (connection.commit_on_exit if connection.in_atomic_block else connection.autocommit)
    ]


def call_at_end(connection: Any, hook: TransactionOutcomeHook) -> None:
    """Have ``hook`` called or dropped when the outermost transaction of a connection has ended.

    A rollback to a savepoint ends nothing, so this is not ``on_commit()``. It is called before the
    hooks of the app, of which a slow one would delay it, and one that fails would drop it.

    Inside a test case nothing is committed: there it is called when the outermost block ends that
    is not the test case's.
    """
    if blocks_of_test_case(connection):
        blocks = connection.atomic_blocks
        if not isinstance(blocks, _BlocksInTestCase):
            blocks = connection.atomic_blocks = _BlocksInTestCase(blocks)
        blocks.hooks.append(hook)
    else:
        connection.run_on_commit.insert(0, (set(), hook, False))


def may_be_open(connection: Any) -> bool:
    """Return whether a transaction that was open has not ended yet, as any thread can see it.

    It is no more after an interrupt in the middle of Django's commit, which then neither calls nor
    drops the hooks. It is while a commit is under way.
    """
    return connection.in_atomic_block or not connection.autocommit


class _BlocksInTestCase(list[Any]):
    """The open atomic blocks of a connection, inside the transaction around a test case."""

    def __init__(self, blocks: list[Any]) -> None:
        super().__init__(blocks)
        self.hooks: list[TransactionOutcomeHook] = []

    def pop(self, index: SupportsIndex = -1) -> Any:
        block = super().pop(index)
        if all(outer._from_testcase for outer in self):
            hooks, self.hooks = self.hooks, []
            for hook in hooks:
                hook()
        return block


def isolation_level(connection: Any) -> str:
    """Return the isolation level of an open transaction: "read committed", "serializable" …

    It is empty where it does not matter. The server is asked, because its default may be another
    one than Django's. A DatabaseError of Django if it cannot be asked.
    """
    vendor = connection.vendor
    if vendor == "mysql" and connection.mysql_is_mariadb:
        vendor = "mariadb"
    query = _ISOLATION.get(vendor)
    if query is None:
        return ""
    # The driver's cursor: this is no query of the app, and is not counted as one.
    with connection.wrap_database_errors, connection.connection.cursor() as cursor:
        cursor.execute(query)
        (level,) = cursor.fetchone()
    return str(level).replace("-", " ").lower()


def reads_snapshot(connection: Any) -> bool:
    """Return whether what an open transaction reads may be older than what was committed since."""
    return isolation_level(connection) not in ("", *SEES_COMMITS)


#: What isolation_level() raises.
Failed = DjangoDatabaseError
