"""Clears leases that have ended, and rows that have been free for long."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distlock.backends.database.batches import SIZE, around_locked
from distlock.backends.database.dialects.base import Dialect
from distlock.backends.database.errors import StatementFailed
from distlock.backends.database.runner import StatementRunner
from distlock.backends.database.statements import Statement
from distlock.types.lease import SweepResult

Find = Callable[[Dialect, int], Statement]
Clear = Callable[[Dialect, Sequence[int]], Statement]


def sweep(access: StatementRunner, keep: float) -> SweepResult:
    """Free what has ended, then remove what has been free for ``keep`` seconds.

    Rows are found first and cleared by their ids, in batches, each under the same condition once
    more: what was taken in between is left alone, and so is a row that someone keeps locked.

    A removed row begins again with the server's time as its token. So a row stays whose token is
    ahead of that, because the server's clock was once, and ``keep`` seconds longer.

    LockUnavailable if the database does not answer; what was cleared by then stays so.
    """
    try:
        return _sweep(access, keep)
    except StatementFailed as failed:
        raise access.unavailable(failed) from failed.__cause__


def _sweep(access: StatementRunner, keep: float) -> SweepResult:
    expired = _clear_all(
        access,
        lambda dialect, after: dialect.ended(after, SIZE),
        lambda dialect, ids: dialect.free_ended(ids),
    )
    now = access.work(lambda dialect, ask: dialect.microseconds(ask), None)
    newest = now - int(keep * 1_000_000)
    removed = _clear_all(
        access,
        lambda dialect, after: dialect.unused(after, SIZE, keep, newest),
        lambda dialect, ids: dialect.remove_unused(ids, keep, newest),
    )
    return SweepResult(expired, removed)


def _clear_all(access: StatementRunner, find: Find, clear: Clear) -> int:
    count = after = 0
    while True:
        ids = _find(access, find, after)
        if not ids:
            return count
        count += sum(around_locked(ids, lambda some: _clear(access, clear, some)))
        after = ids[-1]


def _clear(access: StatementRunner, clear: Clear, ids: Sequence[int]) -> int:
    return access.attempt(lambda dialect, ask: ask(clear(dialect, ids)).affected, None)


def _find(access: StatementRunner, find: Find, after: int) -> list[int]:
    rows = access.work(lambda dialect, ask: ask(find(dialect, after)).rows, None)
    return [row_id for (row_id,) in rows]
