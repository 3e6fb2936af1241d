"""Keeps the tables: makes them, renews leases and sessions, sweeps, and breaks a hold by force.

On the first deploy several processes want the lock that decides which one migrates the database,
and the table of that lock is made by a migration, too. So all of them run the migrations of this
app, and of no other, at the same time. Most of them fail, because another one has just made the
same table. Each looks again after an error, and is done when nothing is missing.

That grants no lock twice: each engine makes a table of one name once, and this table together with
its unique key, in one statement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, TypeVar

from django.db import Error as DjangoDatabaseError
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from distlock.backends.database import errors
from distlock.backends.database.connection import Connection
from distlock.backends.database.record_sql import RecordSQL
from distlock.backends.database.runner import RecordRunner, StatementRunner
from distlock.backends.database.statements import BATCH, Statement, SweptRows, batches, owner_of
from distlock.backends.store import Address, Renewal
from distlock.concurrency.clock import clock, left
from distlock.exceptions import LockUnavailable
from distlock.types.lease import Claim, Lease, SweepResult

T = TypeVar("T")

_APP = "distlock"
#: Attempts to make the table, and the seconds between two of them. Errors that are due to others
#: end when these are done; a missing privilege, for one, stays.
_ATTEMPTS = 10
_PAUSE = 0.25


def renew(
    runner: StatementRunner, leases: Sequence[Lease], deadline: float | None
) -> Mapping[str, bool]:
    """See BaseBackend.renew(). Leases whose rows are locked are missing from the answer."""
    answer: dict[str, bool] = {}
    failure: errors.StatementFailed | None = None
    for batch in _by_duration(leases):
        try:
            answer.update(_around_locked(runner, partial(_renew_leases, batch), deadline))
        except errors.StatementFailed as failed:
            failure = failed
            if isinstance(failed, (errors.NoSession, errors.StatementTimeout, errors.FileLocked)):
                break  # the other batches would fail, too
    if failure and not answer:
        raise runner.unavailable(failure) from failure.__cause__
    return answer


def _renew_leases(
    leases: Sequence[Lease], connection: Connection, *, around_locked: bool = False
) -> dict[str, bool]:
    dialect, ask = connection.dialect, connection.ask
    if around_locked and (statement := dialect.unlocked(leases)):
        nonces = _unlocked(connection, statement, [lease.nonce for lease in leases])
        leases = [lease for lease in leases if lease.nonce in nonces]
    if not leases:
        return {}
    if ask(dialect.renew(leases)).affected == len(leases):
        return {lease.nonce: True for lease in leases}
    # What is held now was held a moment ago, so it has been renewed.
    held = {nonce for (nonce,) in ask(dialect.held(leases)).rows}
    return {lease.nonce: lease.nonce in held for lease in leases}


def _by_duration(leases: Sequence[Lease]) -> Iterator[Sequence[Lease]]:
    """Yield leases of equal duration, as many as one statement can renew."""
    duration = attrgetter("duration")
    for _, group in groupby(sorted(leases, key=duration), key=duration):
        yield from batches(list(group))


def renew_sessions(
    runner: RecordRunner,
    sql: RecordSQL,
    sessions: Collection[str],
    records: Collection[Address],
    deadline: float | None,
) -> Renewal:
    """See RecordStore.renew(). It is one packet for some hundred sessions and records."""
    asked: set[str] = set()
    there: set[tuple[str, str]] = set()
    some_sessions, some_records = iter(sorted(sessions)), iter(sorted(records))
    while True:
        names, addresses = list(islice(some_sessions, BATCH)), list(islice(some_records, BATCH))
        if not names and not addresses:
            break
        try:
            renewed, rows = _around_locked(
                runner, partial(_renew_sessions, sql, names, addresses), deadline
            )
        except errors.StatementFailed as failed:
            raise runner.unavailable(failed) from failed.__cause__
        asked.update(renewed)
        there.update((one, other) for one, other in rows)
    alive = frozenset(name for name in asked if (name, "") in there)
    present = frozenset(address for address in records if address in there)
    return Renewal(alive, frozenset(asked) - alive, present, frozenset(records) - present)


def _renew_sessions(
    sql: RecordSQL,
    names: Sequence[str],
    records: Sequence[Address],
    connection: Connection,
    *,
    around_locked: bool = False,
) -> tuple[Sequence[str], Sequence[tuple[str, str]]]:
    """Return the sessions that were renewed, and the sessions and records that are there."""
    if around_locked and names and (statement := sql.unlocked(names)):
        names = _unlocked(connection, statement, names)
    if not names and not records:
        return (), ()
    return names, sql.renew_all(connection, names, records)


def _around_locked(runner: StatementRunner, renew: Callable[..., T], deadline: float | None) -> T:
    """Call ``renew(connection)``, although a row is locked, or one session is silent.

    It gets half of the time that is left. If a locked row or a silent session holds it up, another
    session has the second half, and leaves out the rows that are locked: ``around_locked=True``.
    Raises a StatementFailed.
    """
    # Without a deadline, both halves together last as long as the database gets for an answer.
    timeout = runner.pool.timeout
    half = (timeout if deadline is None else left(deadline, 2 * timeout)) / 2
    # at_once: threads may have all sessions in use, waiting for rows that somebody keeps locked.
    # That must not cost a held lock its lease.
    with suppress(errors.RowLocked, errors.StatementTimeout, errors.FileLocked):
        return runner.attempt(renew, clock() + half, at_once=True)
    return runner.attempt(partial(renew, around_locked=True), clock() + half, at_once=True)


def _unlocked(connection: Connection, ask: Statement, names: Sequence[str]) -> Sequence[str]:
    """Return those of the names whose rows nobody keeps locked; all if the engine cannot tell."""
    try:
        return [name for (name,) in connection.ask(ask).rows]
    except errors.StatementFailed as failed:
        if type(failed) is errors.StatementFailed:  # MariaDB 10.5 does not know SKIP LOCKED
            return names
        raise


def sweep(runner: StatementRunner, keep: float) -> SweepResult:
    """Free what has ended, then remove what has been free for ``keep`` seconds.

    Rows are found first and cleared by their ids, in batches, under the same condition once more.
    So a lock that was taken in between is left alone.
    """
    try:
        expired = clear(runner, lambda db: db.dialect.expired(), None)
        removed = clear(runner, lambda db: db.dialect.unused(keep), None)
    except errors.StatementFailed as failed:
        raise runner.unavailable(failed) from failed.__cause__
    return SweepResult(expired, removed)


def clear(
    runner: StatementRunner, rows_of: Callable[[Connection], SweptRows], deadline: float | None
) -> int:
    """Clear the rows of a sweep; those that someone keeps locked are left.

    Raises a StatementFailed.
    """

    def clear_some(ids: Sequence[int]) -> int:
        return runner.attempt(lambda db: db.ask(rows_of(db).clear(ids)).affected, deadline)

    count = after = 0
    while rows := runner.attempt(lambda db: db.ask(rows_of(db).find(after)).rows, deadline):  # noqa: B023 - called at once
        ids = [row_id for (row_id,) in rows]
        try:
            count += clear_some(ids)
        except errors.RowLocked:  # one locked row fails the statement for all of its rows
            for row_id in ids:
                with suppress(errors.RowLocked):
                    count += clear_some([row_id])
        after = ids[-1]
    return count


def force_release(
    runner: StatementRunner, name: str, token: int, deadline: float | None
) -> Lease | None:
    """Free a lock if its hold has this token; the broken lease, or None if it is not the one."""
    broken: Lease | None = None

    def free(connection: Connection) -> bool:
        nonlocal broken
        dialect, ask = connection.dialect, connection.ask
        rows = dialect.rows(ask(dialect.one(name, for_update=True)))
        if not rows or rows[0].token != token:
            return False
        if rows[0].free:
            return broken is not None  # done, but the answer was lost
        row = rows[0]
        rest = (row.until - row.now).total_seconds()
        claim = Claim(name, owner_of(row), rest, row.description, row.nonce)
        broken = claim.granted(token, clock())
        return bool(ask(dialect.free(name, "broken", token=token, nonce=row.nonce)).affected)

    return broken if runner.work(free, deadline) else None


def make_table(database: str, deadline: float | None) -> bool:
    """Migrate this app, and nothing else, if that has not been done; True if it is done now.

    Several processes may do so at once. False inside a transaction. Raises LockUnavailable if it
    cannot be done, or not until ``deadline`` of clock().
    """
    connection: Any = connections[database]
    if connection.in_atomic_block:
        return False
    was_open = connection.connection is not None
    try:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                _migrate(connection)
                break
            except (connection.Database.Error, DjangoDatabaseError) as error:
                late = deadline is not None and clock() >= deadline
                if attempt == _ATTEMPTS or late:
                    why = " ".join(str(error).split())
                    raise LockUnavailable(
                        f"the table of the locks could not be made in the database {database!r}:"
                        f" {why}"
                    ) from error
            time.sleep(left(deadline, _PAUSE))
    finally:
        if not was_open:
            connection.close()
    return True


def _migrate(connection: Any) -> None:
    connection.ensure_connection()
    mode = getattr(connection, "transaction_mode", None)
    if connection.vendor == "sqlite":
        # Wait for other writers at BEGIN. A transaction that has read before it writes fails at
        # once if others write, and Django's schema editor then never leaves that transaction.
        connection.transaction_mode = "IMMEDIATE"
    try:
        executor = MigrationExecutor(connection)
        targets = executor.loader.graph.leaf_nodes(_APP)
        if executor.migration_plan(targets):
            executor.migrate(targets)
    finally:
        connection.transaction_mode = mode
