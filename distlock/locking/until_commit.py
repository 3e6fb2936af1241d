"""``release="commit"``: a hold that is left inside a transaction goes on until that has ended.

The transaction enters the hold as one more entrant, before its owner leaves. So it is renewed, its
loss is reported, and its owner may enter again, as always. When the last transaction of the thread
has ended, by commit or rollback, that entrant leaves, and the lock is freed. Leaving a lock without
it inside a transaction warns.
"""

from __future__ import annotations

import math
import threading
import warnings
import weakref
from collections.abc import Collection
from functools import partial
from typing import Any

from django.db import connections

from distlock.backends.open_transactions import (
    Failed,
    TransactionOutcomeHook,
    blocks_of_test_case,
    call_at_end,
    may_be_open,
    open_transactions,
    reads_snapshot,
    without_autocommit,
)
from distlock.concurrency import fork
from distlock.concurrency.clock import clock, left
from distlock.concurrency.reentry import interrupted_frame
from distlock.concurrency.steps import run
from distlock.concurrency.threads import start, thread_logger
from distlock.concurrency.work import new_work
from distlock.exceptions import (
    BodyEnded,
    LockError,
    LockNotHeld,
    LockUnavailable,
    ReleasedInTransaction,
)
from distlock.locking.options import LockOptions
from distlock.runtime.hold import Entrant, Hold, Left
from distlock.runtime.manager import manager
from distlock.types.lease import Kind, LockKey, Owner
from distlock.types.owners import callers_level
from distlock.types.values import Release

COMMIT: Release = "commit"

#: Seconds that the end of the process waits for locks of transactions that were rolled back.
_AT_EXIT = 2.0


def refuse_unsafe_transactions(key: LockKey, owner: Owner) -> None:
    """Raise LockError where keeping a lock until the commit would not protect what is done.

    That is where an open transaction may have read what is older than the lock, and where
    autocommit is off, so that nobody can tell when a transaction ends. Nothing is taken yet.
    """
    hold = manager().holds.find(key, owner)
    if hold is not None and not hold.lost_for_good:
        return  # it is entered once more
    lock = f"{key.kind} {key.name!r}: release='commit'"
    instead = " or begin the transaction with lock.atomic()" if key.kind is Kind.LOCK else ""
    for connection in without_autocommit():
        raise LockError(
            f"{lock} needs autocommit on {connection.alias!r}, which is switched off: the end of"
            f" its transaction would be unknown. Take the lock with autocommit,{instead}"
        )
    for connection in open_transactions():
        try:
            too_old = reads_snapshot(connection)
        except Failed as error:
            raise LockError(
                f"{lock}: the transaction that is open on {connection.alias!r} does not answer"
                f" with its isolation level: {error}"
            ) from error
        if too_old:
            raise LockError(
                f"{lock} inside a transaction on {connection.alias!r} above READ COMMITTED: rows"
                " that it has read may be older than the lock. Take the lock before the"
                f" transaction begins,{instead}"
            )


def leave_until_commit(
    key: LockKey,
    owner: Owner,
    lock: object,
    options: LockOptions,
    warns: bool,
    left: Left | None = None,
) -> None:
    """Leave a lock once in this thread, after its open transactions have entered it."""
    hold = manager().holds.find(key, owner)  # which is the thread's afterwards
    try:
        keep_until_commit(key, owner, options)
    finally:  # also after an interrupt
        if run(manager().release(key, owner, lock, hold=hold, left=left)) and warns:
            warn_if_uncommitted(key, until_commit=True)


def keep_until_commit(key: LockKey, owner: Owner, options: LockOptions) -> None:
    """Let the open transactions of this thread enter a hold that is about to be left.

    It does nothing where none is open, and where the lock is freed by the transaction itself.
    """
    hold = manager().holds.find(key, owner)
    connections = open_transactions()
    if hold is None or not connections:
        return  # who does not hold it learns that from leaving it
    connections = [one for one in connections if not hold.backend.frees_inside(one.alias)]
    if not connections:
        return
    for entry in hold.entries:
        if isinstance(entry.lock, OpenTransactions) and entry.lock.covers(connections):
            same_terms = entry.on_lost == options.on_lost and entry.renews == options.renew
            if same_terms:
                return
    transactions = OpenTransactions(hold, connections)
    entry = Entrant(transactions.is_open, renews=options.renew, on_lost=options.on_lost)
    entry.lock, entry.until_commit = transactions, True
    entry.work = new_work()  # never ends; it tells that this is of the present thread
    entry.call_site = hold.lease.claim.call_site
    manager().holds.enter(hold, entry, owner)


class OpenTransactions:
    """The open transactions of one thread that keep a hold, which they have entered."""

    def __init__(self, hold: Hold, connections: Collection[Any]) -> None:
        self._hold = hold
        self._thread = weakref.ref(threading.current_thread())
        #: the connections whose transaction is open, by their ids; they may end with their thread
        self._open = {id(connection): weakref.ref(connection) for connection in connections}
        for connection in connections:
            committed = partial(self._end, id(connection), self._leave_now)
            rolled_back = partial(self._end, id(connection), self._leave_soon)
            call_at_end(connection, TransactionOutcomeHook(committed, rolled_back))

    def is_open(self) -> bool:
        """Return whether one of the transactions is still open, by what is known here.

        If its thread has ended, nobody will commit it.
        """
        thread = self._thread()
        if thread is None or not thread.is_alive():
            return False
        found = [connection() for connection in self._open.copy().values()]
        return any(connection is not None and may_be_open(connection) for connection in found)

    def covers(self, connections: Collection[Any]) -> bool:
        """Return whether these connections are among those of this thread that it waits for."""
        here = self._thread() is threading.current_thread()
        return here and all(id(connection) in self._open for connection in connections)

    def _end(self, connection: int, leave: Any) -> None:
        self._open.pop(connection, None)
        if not self._open:
            leave()

    def _leave_now(self) -> None:
        # A signal handler may commit in the middle of an operation of ours, which has a mutex.
        if interrupted_frame() is None:
            self._leave()
        else:
            self._leave_soon()

    def _leave(self) -> None:
        """Leave the hold. A loss is logged: an error now would say that nothing is committed."""
        hold = self._hold
        if all(entry.lock is not self for entry in hold.entries):
            return  # it was interrupted before it had entered
        try:
            run(manager().release(hold.key, hold.lease.owner, self, hold=hold))
        except LockNotHeld:
            pass  # it was taken again, or freed by a test
        except LockUnavailable as error:
            thread_logger.warning("after a transaction: %s", error, extra=hold.log_fields())
        except LockError as error:
            if isinstance(error, BodyEnded):
                raise  # another lock was lost, in whose body this is
            fields = hold.log_fields()
            thread_logger.error("before its transaction had ended, %s", error, extra=fields)

    def _leave_soon(self) -> None:
        """Leave the hold without making the caller wait, which may be the garbage collector."""
        _leaving().add(start(self._leave, "distlock-rollback"))


#: Threads that leave holds of transactions that were rolled back.
_leaving: fork.PerProcess[weakref.WeakSet[threading.Thread]] = fork.PerProcess(weakref.WeakSet)


@fork.at_exit
def _join_leaving() -> None:
    """Let the end of the process wait for them, for a moment: else a lock stays for its lease."""
    until = clock() + _AT_EXIT
    for thread in list(_leaving()):
        if thread.ident is not None:
            thread.join(left(until, math.inf))


def warn_if_uncommitted(key: LockKey, until_commit: bool = False) -> None:
    """Warn if a transaction of this thread is open, other than the one around a test case.

    The next holder would not see what was written under the lock, which has this key, until that
    transaction commits. If it was left with ``until_commit``, only those count that are ended by
    hand.
    """
    for alias in connections:
        # This runs at each release, and as a rule no transaction is open. connections.all() looks
        # each one up twice, which takes twice as long.
        connection = getattr(connections._connections, alias, None)  # type: ignore[attr-defined]
        if (
            connection is None
            or connection.connection is None
            or (connection.autocommit and not connection.in_atomic_block)
        ):
            continue
        if until_commit and connection.in_atomic_block and connection.commit_on_exit:
            continue
        if _has_open_transaction(connection):
            instead = ", or `with lock.atomic():`" if key.kind is Kind.LOCK else ""
            keep = "" if until_commit else ', or use release="commit"'
            warnings.warn(
                f"{key.kind} {key.name!r} was released inside a transaction on"
                f" {connection.alias!r} that is still open: the next holder cannot see its changes"
                f" yet. Release it after the transaction{keep}{instead}.",
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
