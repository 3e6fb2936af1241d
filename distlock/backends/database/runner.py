"""Runs statements of the backend, the one way from it to the database; renews and sweeps its rows.

- ``work(function, deadline)`` calls ``function(connection)``, which runs statements with
  ``connection.ask(statement)``; ``connection.dialect`` makes them. It waits for rows that others
  keep locked, and raises LockUnavailable.
- ``attempt(function, deadline)`` is work() without that wait; it raises a StatementFailed, which
  unavailable() translates.

Both may call the function twice: a session may turn out to be dead, and the engine may choose a
statement to end a deadlock. So twice must be as good as once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from distlock.backends.database.connection import Connection
from distlock.backends.database.errors import (
    ROW_WAIT,
    FileLocked,
    NoSession,
    RowLocked,
    StatementFailed,
    StatementTimeout,
    unavailable,
)
from distlock.backends.database.pool import Pool
from distlock.backends.database.sql import keys_of
from distlock.backends.database.sqlite_session import connection_of_test, in_own_transaction
from distlock.backends.database.statements import (
    BATCH,
    LeasedRows,
    SweptRows,
)
from distlock.concurrency.clock import clock, left
from distlock.exceptions import LockUnavailable, NotSupported
from distlock.types.lease import Lease
from distlock.types.values import batches

T = TypeVar("T")

#: Seconds between two steps of a sweep, at most: 20 s for 100,000 rows.
_LONGEST_PAUSE = 0.08

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
    ) -> T:
        """Call a function, again while others keep a row locked; LockUnavailable if it fails.

        ``nonce`` says whose hold it is about; that may be known to one connection only.
        """
        until = clock() + self.pool.limit(deadline)
        while True:
            try:
                if self.caller is None:  # as attempt() does, without it: each release comes by here
                    return self.pool.work(function, until)
                return self.attempt(function, until, nonce)
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
        """Call a function; raises a StatementFailed. See work().

        ``at_once``: if all sessions are in use, open one more.
        """
        if self.caller and (connection := self.caller(nonce)):
            connection.dialect = self.pool.dialect_for(connection.wrapper)
            connection.until = clock() + self.pool.limit(deadline)
            return function(connection)
        return self.pool.work(function, deadline, at_once=at_once)

    def around_locked(self, renew: Callable[..., T], deadline: float | None) -> T:
        """Call ``renew(connection)``, although a row is locked, or one session is silent.

        It gets half of the time that is left. If a locked row or a silent session holds it up,
        another session has the second half, and leaves out the rows that are locked:
        ``around_locked=True``. Raises a StatementFailed.
        """
        # Without a deadline, both halves together last as long as the database gets for an answer.
        timeout = self.pool.timeout
        half = (timeout if deadline is None else left(deadline, 2 * timeout)) / 2
        # at_once: threads may have all sessions in use, waiting for rows that somebody keeps
        # locked. That must not cost a held lock its lease.
        with suppress(RowLocked, StatementTimeout, FileLocked):
            return self.attempt(renew, clock() + half, at_once=True)
        return self.attempt(partial(renew, around_locked=True), clock() + half, at_once=True)

    def clear(self, rows_of: Callable[[Connection], SweptRows], deadline: float | None) -> int:
        """Clear the rows of a sweep; those that someone keeps locked are left.

        Rows are found first and cleared by their ids, in batches, under the same condition once
        more. So a lock that was taken in between is left alone. Raises a StatementFailed.
        """

        def clear_some(ids: Sequence[int]) -> int:
            return self.attempt(lambda db: db.ask(rows_of(db).clear(ids)).affected, deadline)

        count = after = 0
        began = clock()
        while rows := self.attempt(lambda db: db.ask(rows_of(db).find(after)).rows, deadline):  # noqa: B023 - called at once
            ids = [row_id for (row_id,) in rows]
            try:
                count += clear_some(ids)
            except RowLocked:  # one locked row fails the statement for all of its rows
                for row_id in ids:
                    with suppress(RowLocked):
                        count += clear_some([row_id])
            after = ids[-1]
            if len(ids) < BATCH:
                break  # there were no more
            self._make_way(clock() - began, deadline)
            began = clock()
        return count

    def _make_way(self, seconds: float, deadline: float | None) -> None:
        """Pause after a step of a sweep that has taken ``seconds``.

        Without pauses a sweep takes half of the server from those who acquire locks. A pause lasts
        as long as two steps, so a busy server, where steps take longer, gets longer ones.
        """
        if self.caller and self.caller(None):
            return  # in the caller's transaction, for whose end others wait
        time.sleep(left(deadline, min(2 * seconds, _LONGEST_PAUSE)))

    def unavailable(self, failed: StatementFailed) -> LockUnavailable:
        """Return the error of a failure for callers of the backend."""
        return unavailable(failed, self.pool.database)


class RecordRunner(StatementRunner):
    """Runs statements about records, on sessions of our own even in a transaction of the caller.

    Changes in a transaction of the caller would be gone after a rollback, while their owner relies
    on them. So its connection is used only if it is that of a test case, on SQLite.
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


# The leases of locks


def renew(
    runner: StatementRunner, leases: Sequence[Lease], deadline: float | None
) -> Mapping[str, bool]:
    """See BaseBackend.renew(). Leases whose rows are locked are missing from the answer."""
    answer: dict[str, bool] = {}
    failure: StatementFailed | None = None
    for batch in _by_duration(leases):
        try:
            answer.update(runner.around_locked(partial(_renew_leases, batch), deadline))
        except StatementFailed as failed:
            failure = failed
            if isinstance(failed, (NoSession, StatementTimeout, FileLocked)):
                break  # the other batches would fail, too
    if failure and not answer:
        raise runner.unavailable(failure) from failure.__cause__
    return answer


def _renew_leases(
    leases: Sequence[Lease], connection: Connection, *, around_locked: bool = False
) -> dict[str, bool]:
    dialect, ask = connection.dialect, connection.ask
    if around_locked:
        nonces = unlocked(connection, dialect.leases, *keys_of(leases))
        leases = [lease for lease in leases if lease.nonce in nonces]
    if not leases:
        return {}
    if ask(dialect.renew(leases)).affected == len(leases):
        return {lease.nonce: True for lease in leases}
    # A lease that is held now was held a moment ago, so it has been renewed.
    held = {nonce for (nonce,) in ask(dialect.held(leases)).rows}
    return {lease.nonce: lease.nonce in held for lease in leases}


def _by_duration(leases: Sequence[Lease]) -> Iterator[Sequence[Lease]]:
    """Yield leases of equal duration, as many as one statement can renew."""
    duration = attrgetter("duration")
    for _, group in groupby(sorted(leases, key=duration), key=duration):
        yield from batches(group, BATCH)


def unlocked(connection: Connection, rows: LeasedRows, *keys: Sequence[str]) -> Collection[str]:
    """Return the last keys of the rows that nobody keeps locked; all if the engine cannot tell."""
    try:
        if statement := rows.unlocked(*keys):
            return {key for (key,) in connection.ask(statement).rows}
    except StatementFailed as failed:
        # MariaDB 10.5 does not know SKIP LOCKED, which is a failure of no other kind.
        if type(failed) is not StatementFailed:
            raise
    return keys[-1]
