"""The transactions of the callers: which are open, how they end, and the one of atomic().

That is not part of another one, so its commit is final; atomic() of another lock inside it joins
it: the transaction then depends on both. The one that Django wraps around a test case does not
count, and is found from any thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, SupportsIndex

from django.core import mail
from django.db import Error as DjangoDatabaseError
from django.db import connections, transaction
from django.db.backends.signals import connection_created

from distlock.exceptions import LockError
from distlock.types.lease import Lease

#: by their ids; a WeakSet cannot be looked through while another thread adds to it
_connections: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def watch_connections() -> None:
    """Note SQLite connections as they are made: later, another thread could not find them."""
    connection_created.connect(_note, dispatch_uid="distlock.backends.open_transactions")


def in_test_environment() -> bool:
    """Return whether Django's test environment is set up, by the sign that its docs name."""
    return "outbox" in vars(mail)


def connection_of_test_case(database: str) -> Any:
    """Return the SQLite connection of a running test case, None if there is none.

    Requests of asyncio code run on threads of ours, and the renewer has one of its own. They would
    wait for a transaction that ends no sooner than the test.
    """
    if not in_test_environment():
        return None
    for known in _connections.valuerefs():
        connection = known()
        if connection is None or connection.alias != database:
            continue
        if connection.in_atomic_block and blocks_of_test_case(connection):
            return connection
    return None


def blocks_of_test_case(connection: Any) -> int:
    """Return how many open atomic blocks of a connection Django has wrapped around a test case."""
    return sum(block._from_testcase for block in connection.atomic_blocks)


def _note(connection: Any, **kwargs: Any) -> None:
    if connection.vendor == "sqlite":
        _connections[id(connection)] = connection


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

    def __init__(self, on_commit: Callable[[], object], on_rollback: Callable[[], None]) -> None:
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


def reads_snapshot(connection: Any) -> bool:
    """Return whether what an open transaction reads may be older than what was committed since.

    The server is asked for the isolation level, because its default may be another one than
    Django's. Failed if it does not answer.
    """
    vendor = connection.vendor
    if vendor == "mysql" and connection.mysql_is_mariadb:
        vendor = "mariadb"
    query = _ISOLATION.get(vendor)
    if query is None:
        return False
    # The driver's cursor: this is no query of the app, and is not counted as one.
    with connection.wrap_database_errors, connection.connection.cursor() as cursor:
        cursor.execute(query)
        (level,) = cursor.fetchone()
    return str(level).replace("-", " ").lower() not in SEES_COMMITS


#: What reads_snapshot() raises.
Failed = DjangoDatabaseError


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
            f"atomic() inside a transaction on {using!r}, whose isolation level cannot be read:"
            f" {error}"
        ) from error
    if too_old:
        raise LockError(
            f"atomic() of a lock inside that of another one on {using!r}, above READ COMMITTED:"
            " rows that the transaction has read may be older than the lock. Take both before it"
            " begins, with MultiLock.atomic()"
        )


def _refuse_open(using: str) -> None:
    """Raise LockError if a transaction is open on ``using``.

    Its earlier reads may be older than the lock, and its commit comes after the lock is freed. The
    transaction around a test case does not count, as with ``transaction.atomic(durable=True)``.
    """
    connection: Any = transaction.get_connection(using)
    if connection.in_atomic_block:
        if len(connection.atomic_blocks) > blocks_of_test_case(connection):
            raise LockError(
                f"atomic() inside a transaction on {using!r}: rows that it has read may be older"
                " than the lock, and it commits after the lock is freed. Begin it with"
                " lock.atomic(), or exempt the view from ATOMIC_REQUESTS with"
                " @transaction.non_atomic_requests; or use the lock without atomic(), with"
                ' release="commit"'
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
