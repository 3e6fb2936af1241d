"""Renews many leases at once, sweeps rows that have ended, and breaks one hold by force."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter

from distlock.backends.database import errors
from distlock.backends.database.connection import Connection
from distlock.backends.database.runner import StatementRunner
from distlock.backends.database.sql import Dialect
from distlock.backends.database.statements import Statement, owner_of
from distlock.concurrency.clock import clock, left
from distlock.types.lease import Claim, Lease, SweepResult

#: Rows in one statement.
_BATCH = 400


def renew(
    runner: StatementRunner, leases: Sequence[Lease], deadline: float | None
) -> Mapping[str, bool]:
    """See BaseBackend.renew()."""
    answer: dict[str, bool] = {}
    failure: errors.StatementFailed | None = None
    for batch in _by_duration(leases):
        try:
            answer.update(_renew_around_locked(runner, batch, deadline))
        except errors.StatementFailed as failed:
            failure = failed
            if isinstance(failed, (errors.NoSession, errors.StatementTimeout, errors.FileLocked)):
                break  # the other batches would fail, too
    if failure and not answer:
        raise runner.unavailable(failure) from failure.__cause__
    return answer


def _by_duration(leases: Sequence[Lease]) -> Iterator[Sequence[Lease]]:
    """Yield leases of equal duration, as many as one statement can renew."""
    duration = attrgetter("duration")
    for _, group in groupby(sorted(leases, key=duration), key=duration):
        equal = list(group)
        for start in range(0, len(equal), _BATCH):
            yield equal[start : start + _BATCH]


def _renew_around_locked(
    runner: StatementRunner, leases: Sequence[Lease], deadline: float | None
) -> dict[str, bool]:
    """Renew leases although one of the rows is locked, or one session is silent.

    The first attempt gets half of the time that is left. If a locked row or a silent session holds
    it up, another session renews the others in the second half. Leases whose rows are locked are
    missing from the answer.
    """
    # Without a deadline, both halves together last as long as the database gets for an answer.
    rest = runner.pool.timeout if deadline is None else left(deadline, 2 * runner.pool.timeout)
    try:
        return _renew(runner, leases, clock() + rest / 2)
    except (errors.RowLocked, errors.StatementTimeout):
        until = clock() + rest / 2
    unlocked = _unlocked(runner, leases, until)
    return _renew(runner, unlocked, until) if unlocked else {}


def _unlocked(
    runner: StatementRunner, leases: Sequence[Lease], deadline: float | None
) -> Sequence[Lease]:
    """Return those leases whose rows nobody keeps locked; all if the engine cannot tell."""

    def ask_for(connection: Connection) -> Sequence[Lease]:
        if (statement := connection.dialect.unlocked(leases)) is None:
            return leases
        found = {nonce for (nonce,) in connection.ask(statement).rows}
        return [lease for lease in leases if lease.nonce in found]

    try:
        return runner.attempt(ask_for, deadline, at_once=True)
    except errors.StatementFailed as failed:
        if type(failed) is errors.StatementFailed:  # MariaDB 10.5 does not know SKIP LOCKED
            return leases
        raise


def _renew(
    runner: StatementRunner, leases: Sequence[Lease], deadline: float | None
) -> dict[str, bool]:
    def renew(connection: Connection) -> dict[str, bool]:
        if connection.ask(connection.dialect.renew(leases)).affected == len(leases):
            return {lease.nonce: True for lease in leases}
        # What is held now was held a moment ago, so it has been renewed.
        held = {nonce for (nonce,) in connection.ask(connection.dialect.held(leases)).rows}
        return {lease.nonce: lease.nonce in held for lease in leases}

    # at_once: threads may have all sessions in use, waiting for rows that somebody keeps locked.
    # That must not cost a held lock its lease.
    return runner.attempt(renew, deadline, at_once=True)


def sweep(runner: StatementRunner, keep: float) -> SweepResult:
    """Free what has ended, then remove what has been free for ``keep`` seconds.

    Rows are found first and cleared by their ids, in batches, under the same condition once more.
    So a lock that was taken in between is left alone.
    """
    try:
        expired = _clear(
            runner,
            lambda dialect, after: dialect.expired(after, _BATCH),
            lambda dialect, ids: dialect.free_expired(ids),
        )
        ((now,),) = runner.work(lambda db: db.ask(db.dialect.server_time()).rows, None)
        newest = int(now) - int(keep * 1_000_000)
        removed = _clear(
            runner,
            lambda dialect, after: dialect.unused(after, _BATCH, keep, newest),
            lambda dialect, ids: dialect.remove_unused(ids, keep, newest),
        )
    except errors.StatementFailed as failed:
        raise runner.unavailable(failed) from failed.__cause__
    return SweepResult(expired, removed)


def _clear(
    runner: StatementRunner,
    find: Callable[[Dialect, int], Statement],
    clear: Callable[[Dialect, Sequence[int]], Statement],
) -> int:
    """Clear the rows that ``find`` finds after an id; rows that someone keeps locked are left."""

    def clear_some(ids: Sequence[int]) -> int:
        return runner.attempt(lambda db: db.ask(clear(db.dialect, ids)).affected, None)

    count = after = 0
    while rows := runner.work(lambda db: db.ask(find(db.dialect, after)).rows, None):  # noqa: B023 - called at once
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
