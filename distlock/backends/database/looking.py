"""What the rows tell of locks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from distlock.backends.database.dialects.base import Ask, Dialect, Row
from distlock.backends.database.runner import StatementRunner
from distlock.types.lease import LockInfo, Owner, State
from distlock.types.owners import is_kept

#: Rows that are read at once.
_PAGE = 1000


def row_of(access: StatementRunner, name: str, deadline: float | None) -> Row | None:
    """Return the row of a lock, None if it has never been taken, or not for long."""
    rows = access.work(lambda dialect, ask: dialect.rows(ask(dialect.one(name))), deadline)
    return rows[0] if rows else None


def rows_in_use(access: StatementRunner, prefix: str, deadline: float | None) -> Iterator[Row]:
    """Yield the rows in use whose names begin with ``prefix``, by name, read in batches."""
    after: str | None = None
    strays: list[Row] = []
    while True:

        def read(dialect: Dialect, ask: Ask, after: str | None = after) -> tuple[bool, list[Row]]:
            start = prefix if dialect.by_code_point else ""
            beginning = after is None
            page = dialect.page(start if after is None else after, beginning, _PAGE)
            return dialect.by_code_point, dialect.rows(ask(page))

        by_code_point, rows = access.work(read, deadline)
        for row in rows:
            if _is_free(row):
                continue
            if not row.lock.startswith(prefix):
                if by_code_point and row.lock > prefix:
                    return  # all names that begin with it stand together
            elif by_code_point:
                yield row
            else:
                strays.append(row)
        if len(rows) < _PAGE:
            yield from sorted(strays, key=lambda row: row.lock)
            return
        after = rows[-1].lock


def info(row: Row, using: str) -> LockInfo:
    """Return what a row tells of its lock, by the clock of the server that read it."""
    if _is_free(row):
        return LockInfo(row.lock, using, token=row.token)
    return LockInfo(
        row.lock,
        using,
        State.EXPIRED if row.expired else State.HELD,
        owner=owner(row),
        token=row.token,
        since=row.since,
        until=row.until,
        held_for=max((row.now - row.since) / timedelta(seconds=1), 0.0),
        remaining=max((row.until - row.now) / timedelta(seconds=1), 0.0),
        description=row.description,
        lease=row.lease,
        renews=row.renews,
        renewed_at=row.until - timedelta(seconds=row.lease),
    )


def _is_free(row: Row) -> bool:
    # Where a holder has left, the end of the lease is no accident that anybody should look at.
    return row.free or (row.expired and is_kept(owner(row)))


def owner(row: Row) -> Owner:
    """Return who holds a lock by its row."""
    return Owner(row.owner.removesuffix(f":{row.nonce}"), row.host, row.process, row.thread)
