"""What the rows say about locks: one lock, all of them, or a page of them, and who waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from distlock.backends.database.queue.wait_manager import WaitManager
from distlock.backends.database.runner import StatementRunner
from distlock.backends.database.sql import COLUMNS, TABLE, Ask, Dialect, Row
from distlock.backends.database.statements import Statement
from distlock.types.lease import LockInfo, Owner, State, Waiting
from distlock.types.owners import RESERVED, is_reserved
from distlock.types.query import (
    SOON_PART,
    SOON_SECONDS,
    Counts,
    Cursor,
    DisplayStatus,
    LockQuery,
    Order,
    Page,
)

#: Rows that are read at once.
_BATCH = 1000

#: who waits, by native lock
Waiters = dict[str, tuple[Waiting, ...]]


class Queries:
    """The locks of a backend. Who waits is asked in one statement for all of them."""

    def __init__(self, runner: StatementRunner, waits: WaitManager | None, using: str) -> None:
        """``waits`` is where its processes wait in the engine's own queue, if they do."""
        self._runner = runner
        self._waits = waits
        self._using = using

    def row(self, name: str, deadline: float | None) -> Row | None:
        """Return the row of a lock, None if it has never been taken, or not for long."""
        rows = self._runner.work(
            lambda dialect, ask: dialect.rows(ask(dialect.one(name))), deadline
        )
        return rows[0] if rows else None

    def inspect(self, name: str, deadline: float | None) -> LockInfo:
        """See BaseBackend.inspect()."""
        row = self.row(name, deadline)
        found = _info(row, self._using) if row else LockInfo(name, self._using)
        return next(self._with_waiters([found]))

    def stored(self, name: str, deadline: float | None) -> Mapping[str, str]:
        """See BaseBackend.stored(). It is the row, also of a lock that is free."""
        row = self.row(name, deadline)
        return {} if row is None else dict(zip(COLUMNS, map(str, row), strict=False))

    def list(self, prefix: str, deadline: float | None) -> Iterator[LockInfo]:
        """See BaseBackend.list(); rows are read in batches, as they are asked for."""
        rows = _rows_in_use(self._runner, prefix, deadline)
        return self._with_waiters(_info(row, self._using) for row in rows)

    def page(self, query: LockQuery, deadline: float | None) -> Page:
        """See BaseBackend.page(). Two statements read the table once each at the most."""
        found = self._runner.work(
            lambda dialect, ask: _page(dialect, ask, query, self._using), deadline
        )
        waiting = self._waits.waiting() if self._waits else None
        if waiting is None:
            return found
        return replace(
            found,
            locks=tuple(self._with(waiting, one) for one in found.locks),
            counts=replace(found.counts, waiting=sum(map(len, waiting.values()))),
        )

    def _with_waiters(self, infos: Iterable[LockInfo]) -> Iterator[LockInfo]:
        waiting = self._waits.waiting() if self._waits else None
        for one in infos:
            yield one if waiting is None else self._with(waiting, one)

    def _with(self, waiting: Waiters, one: LockInfo) -> LockInfo:
        assert self._waits is not None
        return replace(one, waiters=waiting.get(self._waits.key(one.name), ()))


def owner_of(row: Row) -> Owner:
    """Return who holds a lock by its row."""
    return Owner(row.owner.removesuffix(f":{row.nonce}"), row.host, row.process, row.thread)


def _rows_in_use(runner: StatementRunner, prefix: str, deadline: float | None) -> Iterator[Row]:
    """Yield the rows in use whose names begin with ``prefix``, by name, read in batches."""
    after: str | None = None
    while True:

        def read(dialect: Dialect, ask: Ask, after: str | None = after) -> list[Row]:
            page = dialect.page(prefix if after is None else after, after is None, _BATCH)
            return dialect.rows(ask(page))

        rows = runner.work(read, deadline)
        for row in rows:
            if row.lock.startswith(prefix):
                if not _is_free(row):
                    yield row
            elif row.lock > prefix:
                return  # names are sorted by code point: all that begin with it stand together
        if len(rows) < _BATCH:
            return
        after = rows[-1].lock


def _info(row: Row, using: str) -> LockInfo:
    """Return what a row says about its lock, by the clock of the server that read it."""
    if _is_free(row):
        return LockInfo(row.lock, using, token=row.token)
    return LockInfo(
        row.lock,
        using,
        State.EXPIRED if row.expired else State.HELD,
        owner=owner_of(row),
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
    # A reserved lock was left by its holder: the end of that time is nothing to look at.
    return row.free or (row.expired and is_reserved(owner_of(row)))


def _page(dialect: Dialect, ask: Ask, query: LockQuery, using: str) -> Page:
    """Return a page; 100,000 rows take MariaDB a tenth of a second for each statement."""
    sql = _PageSQL(dialect, query)
    rows = dialect.rows(ask(sql.page()))
    more = len(rows) > query.size
    infos = [_info(row, using) for row in rows[: query.size]]
    hosts: dict[str, int] = {}
    expired = expiring = found = 0
    for host, *numbers in ask(sql.overview()).rows:
        hosts[host], *counted = map(int, numbers)
        expired, expiring, found = (
            total + number
            for total, number in zip((expired, expiring, found), counted, strict=True)
        )
    return Page(
        tuple(infos[::-1] if query.backwards else infos),
        more,
        found,
        Counts(sum(hosts.values()) - expired, expiring, expired),
        hosts,
    )


class _PageSQL:
    """A LockQuery in SQL."""

    def __init__(self, dialect: Dialect, query: LockQuery) -> None:
        self._dialect = dialect
        self._query = query
        self._params: dict[str, Any] = {
            "search": query.search,
            "host": query.host,
            "held_for": dialect.duration(query.held_for),
        }
        self._expired = f"expires_at <= {dialect.NOW}"
        # A reserved lock is free when its time is over, though nobody has swept it yet.
        reserved = f"owner LIKE '{RESERVED}%%'"
        self._in_use = f"owner <> '' AND NOT ({reserved} AND {self._expired})"
        # See query.status_of().
        by_part = f"renews OR lease <= {SOON_SECONDS / SOON_PART}"
        soon = f"CASE WHEN {by_part} THEN lease * {SOON_PART} ELSE {SOON_SECONDS} END"
        later = dialect.LATER.format(dialect.SECONDS.format(f"({soon})"))
        soon = f"expires_at > {dialect.NOW} AND expires_at <= {later}"
        self._expiring = f"({soon} AND NOT ({reserved}))"
        self._held = f"(NOT ({self._expired}) AND NOT {self._expiring})"

    def page(self) -> Statement:
        """Ask for the rows from the cursor on, and one more."""
        query = self._query
        order = ["acquired_at"] if query.order is Order.AGE else []
        descending = " DESC" if query.backwards else ""
        by = ", ".join(f"{column}{descending}" for column in [*order, self._dialect.LOCK])
        where = f"{self._in_use} AND {self._wanted}"
        params = self._params
        if query.start is not None:
            where += f" AND {self._beyond(query.start)}"
            params = {**params, **self._cursor(query.start)}
        return Statement(
            f"{self._dialect.select} WHERE {where} ORDER BY {by} LIMIT {query.size + 1}",
            params,
        )

    def overview(self) -> Statement:
        """Ask by host for how many locks there are, expired, expiring, and of the kind wanted."""
        conditions = (self._expired, self._expiring, self._wanted)
        sums = ", ".join(
            f"SUM(CASE WHEN {condition} THEN 1 ELSE 0 END)" for condition in conditions
        )
        return Statement(
            f"SELECT host, COUNT(*), {sums} FROM {TABLE} WHERE {self._in_use} GROUP BY host",
            self._params,
        )

    @property
    def _wanted(self) -> str:
        query, conditions = self._query, []
        if query.search:
            lock = self._dialect.LOCK
            conditions.append(f"{self._dialect.POSITION}(LOWER({lock}), LOWER(%(search)s)) > 0")
        if query.status is not None:
            words = {
                DisplayStatus.HELD: self._held,
                DisplayStatus.EXPIRING: self._expiring,
                DisplayStatus.EXPIRED: f"({self._expired})",
                DisplayStatus.SUSPENDED: "1 = 0",  # no row says so
            }
            conditions.append(words[query.status])
        if query.host:
            conditions.append("host = %(host)s")
        if query.held_for:
            conditions.append(f"acquired_at <= {self._dialect.EARLIER.format('%(held_for)s')}")
        return " AND ".join(conditions) or "1 = 1"

    def _beyond(self, start: Cursor) -> str:
        lock, beyond = self._dialect.LOCK, "<" if self._query.backwards else ">"
        equal = "=" if self._query.inclusive else ""
        if self._query.order is Order.NAME:
            return f"{lock} {beyond}{equal} %(name)s"
        return (
            f"(acquired_at {beyond} %(since)s"
            f" OR (acquired_at = %(since)s AND {lock} {beyond}{equal} %(name)s))"
        )

    def _cursor(self, start: Cursor) -> Mapping[str, Any]:
        return {"name": start.name, "since": self._dialect.to_db(start.since)}
