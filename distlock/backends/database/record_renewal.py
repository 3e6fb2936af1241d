"""Renews the sessions of a process, and asks for the records that are bound to them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import islice

from distlock.backends.database import errors
from distlock.backends.database.connection import Connection
from distlock.backends.database.record_runner import RecordRunner
from distlock.backends.database.record_sql import RecordSQL
from distlock.backends.store import Address, Renewal
from distlock.concurrency.clock import clock, left

#: Sessions or records in one statement.
_BATCH = 400

#: The sessions that were renewed, and the sessions and records that are there.
RenewedBatch = tuple[Sequence[str], Sequence[tuple[str, str]]]


def renew(
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
        batch, looked_at = list(islice(some_sessions, _BATCH)), list(islice(some_records, _BATCH))
        if not batch and not looked_at:
            break
        renewed, rows = _renew_around_locked(runner, sql, batch, looked_at, deadline)
        asked.update(renewed)
        there.update((one, other) for one, other in rows)
    alive = frozenset(name for name in asked if (name, "") in there)
    present = frozenset(address for address in records if address in there)
    return Renewal(alive, frozenset(asked) - alive, present, frozenset(records) - present)


def _renew_around_locked(
    runner: RecordRunner,
    sql: RecordSQL,
    sessions: Sequence[str],
    records: Sequence[Address],
    deadline: float | None,
) -> RenewedBatch:
    """Renew sessions although the row of one is locked, or one connection is silent.

    If that holds the first attempt up, another connection has the second half of the time, and
    leaves out the sessions whose rows are locked.
    """
    # Without a deadline both together last as long as the database gets for an answer.
    timeout = runner.pool.timeout
    half = (timeout if deadline is None else left(deadline, 2 * timeout)) / 2
    attempt = partial(_renew, sql, sessions, records)
    # at_once: threads may have all sessions in use, waiting for rows that are locked.
    try:
        return runner.attempt(attempt, clock() + half, at_once=True)
    except (errors.RowLocked, errors.StatementTimeout, errors.FileLocked):
        pass
    except errors.StatementFailed as failed:
        raise runner.unavailable(failed) from failed.__cause__
    attempt = partial(_renew, sql, sessions, records, around_locked=True)
    return runner.work(attempt, clock() + half, at_once=True)


def _renew(
    sql: RecordSQL,
    sessions: Sequence[str],
    records: Sequence[Address],
    connection: Connection,
    *,
    around_locked: bool = False,
) -> RenewedBatch:
    if around_locked:
        sessions = _unlocked(sql, sessions, connection)
    if not sessions and not records:
        return (), ()
    return sessions, sql.renew_all(connection, sessions, records)


def _unlocked(sql: RecordSQL, sessions: Sequence[str], connection: Connection) -> Sequence[str]:
    """Return those sessions whose rows nobody keeps locked; all if the engine cannot tell."""
    if not sessions or (statement := sql.unlocked(sessions)) is None:
        return sessions
    try:
        return [name for (name,) in connection.ask(statement).rows]
    except errors.StatementFailed as failed:
        if type(failed) is errors.StatementFailed:  # MariaDB 10.5 does not know SKIP LOCKED
            return sessions
        raise
