"""Renews many leases at once, sweeps rows that have ended, and breaks one hold by force."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

from distlock.backends.database import errors
from distlock.backends.database.queries import owner_of
from distlock.backends.database.runner import StatementRunner
from distlock.backends.database.sql import Ask, Dialect
from distlock.backends.database.statements import Statement
from distlock.concurrency.clock import clock, left
from distlock.types.lease import Claim, Lease, SweepResult

#: Rows in one statement.
_BATCH = 400
#: Rows that are tried one by one rather than in still smaller batches.
_FEW = 30

Find = Callable[[Dialect, int], Statement]
Clear = Callable[[Dialect, Sequence[int]], Statement]

T = TypeVar("T")
R = TypeVar("R")


def renew(
    runner: StatementRunner, leases: Sequence[Lease], deadline: float | None
) -> Mapping[str, bool]:
    """See BaseBackend.renew()."""
    answer: dict[str, bool] = {}
    failure: errors.StatementFailed | None = None
    for batch in _by_duration(leases):
        try:
            for renewed in _renewals(runner, batch, deadline):
                answer.update(renewed)
        except errors.StatementFailed as failed:
            failure = failed
            if isinstance(failed, (errors.NoSession, errors.StatementTimeout, errors.FileLocked)):
                break  # the others would fare no better
    if failure and not answer:
        raise runner.unavailable(failure) from failure.__cause__
    return answer


def _renewals(
    runner: StatementRunner, leases: Sequence[Lease], deadline: float | None
) -> Iterator[dict[str, bool]]:
    """Renew leases, whatever one row or one session keeps them from.

    A statement gets half of the time that is left. If a row that is locked holds it up, or its
    session is silent, the others are renewed by another session in the other half.
    """
    # Without a deadline, both halves together last as long as the database gets for an answer.
    rest = runner.pool.timeout if deadline is None else left(deadline, 2 * runner.pool.timeout)
    try:
        yield _renew(runner, leases, clock() + rest / 2)
        return
    except (errors.RowLocked, errors.StatementTimeout) as failed:
        if isinstance(failed, errors.RowLocked) and len(leases) == 1:
            return
    until = clock() + rest / 2
    try:
        others = leases if len(leases) == 1 else _unlocked(runner, leases, until)
    except errors.RowLocked:  # it is the whole table
        return
    if others is None:
        yield from _around_locked(leases, lambda some: _renew(runner, some, until))
    elif others:
        yield from _around_locked(others, lambda some: _renew(runner, some, until))


def _unlocked(
    runner: StatementRunner, leases: Sequence[Lease], deadline: float | None
) -> Sequence[Lease] | None:
    """Return those leases whose rows nobody keeps locked, None if the engine cannot tell."""

    def ask_for(dialect: Dialect, ask: Ask) -> Sequence[Lease] | None:
        if (statement := dialect.unlocked(leases)) is None:
            return None
        found = {nonce for (nonce,) in ask(statement).rows}
        return [lease for lease in leases if lease.nonce in found]

    try:
        return runner.attempt(ask_for, deadline, at_once=True)
    except errors.StatementFailed as failed:
        if type(failed) is errors.StatementFailed:  # the server does not know these words
            return None
        raise


def _by_duration(leases: Sequence[Lease]) -> Iterator[Sequence[Lease]]:
    """Yield leases of equal duration, so many that one statement can renew them."""
    for _, group in groupby(sorted(leases, key=_duration), key=_duration):
        yield from _batches(list(group), _BATCH)


def _duration(lease: Lease) -> float:
    return lease.duration


def _renew(
    runner: StatementRunner, leases: Sequence[Lease], deadline: float | None
) -> dict[str, bool]:
    def renew(dialect: Dialect, ask: Ask) -> dict[str, bool]:
        if ask(dialect.renew(leases)).affected == len(leases):
            return {lease.nonce: True for lease in leases}
        # What is held now was held a moment ago, so it has been renewed.
        held = {nonce for (nonce,) in ask(dialect.held(leases)).rows}
        return {lease.nonce: lease.nonce in held for lease in leases}

    # Threads that ask for rows which somebody keeps locked must not cost a held lock its lease.
    return runner.attempt(renew, deadline, at_once=True)


def sweep(runner: StatementRunner, keep: float) -> SweepResult:
    """Free what has ended, then remove what has been free for ``keep`` seconds.

    Rows are found first and cleared by their ids, in batches, each under the same condition once
    more: what was taken in between is left alone, and so is a row that someone keeps locked.

    A removed row begins again with the server's time as its token. So a row stays whose token is
    ahead of that, because the server's clock was once, and ``keep`` seconds longer.

    LockUnavailable if the database does not answer; what was cleared by then stays so.
    """
    try:
        return _sweep(runner, keep)
    except errors.StatementFailed as failed:
        raise runner.unavailable(failed) from failed.__cause__


def _sweep(runner: StatementRunner, keep: float) -> SweepResult:
    expired = _clear_all(
        runner,
        lambda dialect, after: dialect.expired(after, _BATCH),
        lambda dialect, ids: dialect.free_expired(ids),
    )
    ((now,),) = runner.work(lambda dialect, ask: ask(dialect.server_time()).rows, None)
    newest = int(now) - int(keep * 1_000_000)
    removed = _clear_all(
        runner,
        lambda dialect, after: dialect.unused(after, _BATCH, keep, newest),
        lambda dialect, ids: dialect.remove_unused(ids, keep, newest),
    )
    return SweepResult(expired, removed)


def _clear_all(runner: StatementRunner, find: Find, clear: Clear) -> int:
    count = after = 0
    while True:
        ids = _find(runner, find, after)
        if not ids:
            return count
        count += sum(_around_locked(ids, lambda some: _clear(runner, clear, some)))
        after = ids[-1]


def _clear(runner: StatementRunner, clear: Clear, ids: Sequence[int]) -> int:
    return runner.attempt(lambda dialect, ask: ask(clear(dialect, ids)).affected, None)


def _find(runner: StatementRunner, find: Find, after: int) -> list[int]:
    rows = runner.work(lambda dialect, ask: ask(find(dialect, after)).rows, None)
    return [row_id for (row_id,) in rows]


def force_release(
    runner: StatementRunner, name: str, token: int, deadline: float | None
) -> Lease | None:
    """Free a lock if its hold has this token; the broken lease, or None if it is not the one."""
    broken: Lease | None = None

    def free(dialect: Dialect, ask: Ask) -> bool:
        nonlocal broken
        rows = dialect.rows(ask(dialect.one(name, for_update=True)))
        if not rows or rows[0].token != token:
            return False
        if rows[0].free:
            return broken is not None  # done, but the answer was lost
        row = rows[0]
        rest = (row.until - row.now).total_seconds()
        claim = Claim(name, owner_of(row), rest, row.description, row.nonce)
        broken = claim.granted(token, clock())
        return bool(ask(dialect.free(name, token=token, nonce=row.nonce)).affected)

    return broken if runner.work(free, deadline) else None


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in order, so many at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _around_locked(items: Sequence[T], work: Callable[[Sequence[T]], R]) -> Iterator[R]:
    """Do some work on rows, leaving out those that someone else keeps locked.

    A statement waits a second for a locked row before it fails for all of its rows. They are then
    tried again in batches, and those of the batch that has it one by one: of 400 rows, a locked one
    costs three seconds and 41 statements.
    """
    try:
        yield work(items)
    except errors.RowLocked:
        if len(items) > 1:
            for batch in _batches(items, math.isqrt(len(items)) if len(items) > _FEW else 1):
                yield from _around_locked(batch, work)
