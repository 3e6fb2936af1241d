"""Reads the rows of the locks: one, all, or a page of them, and adds who waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from distlock.backends.base import BaseBackend
from distlock.backends.database.connection import Connection
from distlock.backends.database.runner import StatementRunner
from distlock.backends.database.sql import TABLE, Dialect
from distlock.backends.database.statements import (
    BATCH,
    COLUMNS,
    Row,
    Statement,
    in_list,
    info_of,
    named_values,
)
from distlock.backends.database.wait_manager import WaitManager
from distlock.types.lease import MAX_DESCRIPTION, LockInfo, Waiting
from distlock.types.owners import NAMED, RESERVED
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
from distlock.types.values import batches

#: Rows that are read at once.
_BATCH = 1000

#: Locks that a search for a waiter finds.
_MOST_AWAITED = 100

#: who waits, by native lock; None if the backend cannot tell
Waiters = dict[str, tuple[Waiting, ...]] | None


class DatabaseReader(BaseBackend):
    """The part of the backend that reads. One statement asks for the waiters of all locks."""

    _runner: StatementRunner
    #: where its processes wait in the engine's own queue, if they do
    waits: WaitManager | None

    def _row(self, name: str, deadline: float | None) -> Row | None:
        """Return the row of a lock; None if it was never taken, or was swept since."""
        rows = self._runner.work(lambda db: db.dialect.rows(db.ask(db.dialect.one(name))), deadline)
        return rows[0] if rows else None

    def inspect(self, name: str, deadline: float | None = None) -> LockInfo:
        """See BaseBackend.inspect()."""
        return self._with_waiters(self.inspect_holder(name, deadline), self._waiting(deadline))

    def inspect_holder(self, name: str, deadline: float | None = None) -> LockInfo:
        """See BaseBackend.inspect_holder()."""
        row = self._row(name, deadline)
        return info_of(row, self.alias) if row else LockInfo(name, self.alias)

    def inspect_holders(
        self, names: Sequence[str], deadline: float | None = None
    ) -> Mapping[str, LockInfo]:
        """See BaseBackend.inspect_holders()."""
        found = {name: LockInfo(name, self.alias) for name in names}
        for some in batches(names, BATCH):

            def read(db: Connection, some: Sequence[str] = some) -> list[Row]:
                where = in_list(db.dialect.LOCK, "lock", some)
                text = f"{db.dialect.select} WHERE {where}"
                return db.dialect.rows(db.ask(Statement(text, named_values("lock", some))))

            for row in self._runner.work(read, deadline):
                found[row.lock] = info_of(row, self.alias)
        return found

    def stored(self, name: str, deadline: float | None = None) -> Mapping[str, str]:
        """See BaseBackend.stored(). It is the row, also of a lock that is free."""
        row = self._row(name, deadline)
        return {} if row is None else dict(zip(COLUMNS, map(str, row), strict=False))

    def list(self, prefix: str = "", deadline: float | None = None) -> Iterator[LockInfo]:
        """See BaseBackend.list(); rows are read in batches, as they are asked for."""
        waiting = self._waiting(deadline)
        query = LockQuery(start=Cursor(name=prefix), inclusive=True, size=_BATCH)
        while True:

            def read(db: Connection, query: LockQuery = query) -> list[Row]:
                page, _ = _page_sql(db.dialect, query)
                return db.dialect.rows(db.ask(page))

            rows = self._runner.work(read, deadline)
            for row in rows:
                if row.lock.startswith(prefix):
                    yield self._with_waiters(info_of(row, self.alias), waiting)
                elif row.lock > prefix:
                    return  # names are sorted by code point: all that begin with it stand together
            if len(rows) <= query.size:
                return
            query = replace(query, start=Cursor(name=rows[-1].lock), inclusive=False)

    def page(self, query: LockQuery, deadline: float | None = None) -> Page:
        """See BaseBackend.page().

        Two statements read the table once each at most: 100,000 rows take MariaDB a tenth of a
        second for each. A third one reads all names if a waiter is searched for.
        """

        waiting = self._waiting(deadline)
        awaited = self._awaited_by(query.search, waiting, deadline)

        def read(db: Connection) -> tuple[Sequence[Row], Sequence[Any]]:
            page, overview = _page_sql(db.dialect, query, awaited)
            rows = db.dialect.rows(db.ask(page))
            if is_whole(rows):  # then nothing has to be searched for a second time
                _, overview = _page_sql(db.dialect, LockQuery())
            return rows, db.ask(overview).rows

        def is_whole(rows: Sequence[Row]) -> bool:
            return query.start is None and len(rows) <= query.size

        rows, overview = self._runner.work(read, deadline)
        locks = [
            self._with_waiters(info_of(row, self.alias), waiting) for row in rows[: query.size]
        ]
        hosts = {host: int(count) for host, count, *_ in overview}
        expired, expiring, found = (sum(int(row[place]) for row in overview) for place in (2, 3, 4))
        return Page(
            tuple(locks[::-1] if query.backwards else locks),
            len(rows) > query.size,
            len(rows) if is_whole(rows) else found,
            Counts(
                sum(hosts.values()) - expired,
                expiring,
                expired,
                None if waiting is None else sum(map(len, waiting.values())),
            ),
            hosts,
        )

    def _waiting(self, deadline: float | None) -> Waiters:
        return self.waits.waiting(deadline) if self.waits else None

    def _awaited_by(self, search: str, waiting: Waiters, deadline: float | None) -> Sequence[str]:
        """Return the names of the locks for which waiters wait that a text finds."""
        found = {
            label
            for label, waiters in (waiting or {}).items()
            if search and any(str(waiter).lower().startswith(search.lower()) for waiter in waiters)
        }
        if self.waits is None or not found:
            return []
        label = self.waits.label

        def ask_for_names(db: Connection) -> Sequence[tuple[str]]:
            text = f"SELECT {db.dialect.LOCK} FROM {TABLE} WHERE owner <> ''"
            return db.ask(Statement(text)).rows

        names = self._runner.work(ask_for_names, deadline)
        return [name for (name,) in names if label(name) in found][:_MOST_AWAITED]

    def _with_waiters(self, info: LockInfo, waiting: Waiters) -> LockInfo:
        if self.waits is None or waiting is None:
            return info
        return replace(info, waiters=waiting.get(self.waits.label(info.name), ()))


def _search_sql(
    dialect: Dialect, search: str, awaited: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """Return the condition of query.matches_search(), or that the name is one of ``awaited``."""
    if "\0" in search or len(search) > MAX_DESCRIPTION:  # no text has it, and LIKE cannot cope
        return "1 = 0", {}
    contains, begins = dialect.CONTAINS.format, dialect.BEGINS.format
    who = dialect.WHO if ":" in search else "host"  # with which it begins, and then comes a colon
    ways = [
        contains(dialect.LOCK),
        contains("description"),
        begins(who),
        dialect.EQUALS.format("thread"),
        f"(owner LIKE '{NAMED}%%' AND {contains('owner')})",
    ]
    if awaited:
        ways.append(in_list(dialect.LOCK, "awaited", awaited))
    params = {**dialect.search_params(search), **named_values("awaited", awaited)}
    if search.isascii() and search.isdecimal() and int(search) < 2**63:
        ways.append("token = %(token)s")
        params["token"] = int(search)
    return f"({' OR '.join(ways)})", params


def _order_sql(lock: str, query: LockQuery) -> tuple[str, str]:
    """Return the condition that a row comes after the cursor, and the order."""
    beyond, down = ("<", " DESC") if query.backwards else (">", "")
    condition = f"{lock} {beyond}{'=' if query.inclusive else ''} %(name)s"
    order = f"{lock}{down}"
    if query.order is Order.AGE:
        condition = f"(acquired_at {beyond} %(since)s OR (acquired_at = %(since)s AND {condition}))"
        order = f"acquired_at{down}, {order}"
    return ("1 = 1" if query.start is None else condition), order


def _wanted_sql(
    dialect: Dialect, query: LockQuery, awaited: Sequence[str], expired: str, expiring: str
) -> tuple[str, dict[str, Any]]:
    """Return the condition that a row matches the query, and its parameters.

    ``expired`` and ``expiring`` are the conditions of these two statuses.
    """
    conditions = ["1 = 1"]
    params: dict[str, Any] = {}
    if query.search:
        condition, params = _search_sql(dialect, query.search, awaited)
        conditions.append(condition)
    if query.status is not None:
        statuses = {
            DisplayStatus.HELD: f"(NOT {expired} AND NOT {expiring})",
            DisplayStatus.EXPIRING: expiring,
            DisplayStatus.EXPIRED: expired,
            DisplayStatus.SUSPENDED: "1 = 0",  # no row says so
        }
        conditions.append(statuses[query.status])
    if query.host:
        conditions.append("host = %(host)s")
        params["host"] = query.host
    if query.held_for:
        conditions.append(f"acquired_at <= {dialect.EARLIER.format('%(held_for)s')}")
        params["held_for"] = dialect.duration(query.held_for)
    return " AND ".join(conditions), params


def _page_sql(
    dialect: Dialect, query: LockQuery, awaited: Sequence[str] = ()
) -> tuple[Statement, Statement]:
    """Return what asks for a page, and for an overview.

    The first asks for the rows from the cursor on, and for one more. The second asks, by host, how
    many locks there are, how many of them have expired, end soon, and match the query.
    """
    expired = f"(expires_at <= {dialect.NOW})"
    reserved = f"owner LIKE '{RESERVED}%%'"
    in_use = f"owner <> '' AND NOT ({reserved} AND {expired})"  # see info_of()
    # See query.status_of().
    by_part = f"renews OR lease <= {SOON_SECONDS / SOON_PART}e0"
    soon = f"CASE WHEN {by_part} THEN lease * {SOON_PART}e0 ELSE {SOON_SECONDS}e0 END"
    expiring = f"(NOT {expired} AND {dialect.ends_within(soon)} AND NOT ({reserved}))"

    wanted, params = _wanted_sql(dialect, query, awaited, expired, expiring)
    start = query.start or Cursor()
    params |= {"name": start.name, "since": dialect.to_db(start.since)}
    from_start, order = _order_sql(dialect.LOCK, query)
    whole = dialect.WHOLE if query.search else ""
    page = (
        f"{dialect.select}{whole} WHERE {wanted} AND {in_use} AND {from_start}"
        f" ORDER BY {order} LIMIT {query.size + 1}"
    )
    sums = ", ".join(
        f"SUM(CASE WHEN {one} THEN 1 ELSE 0 END)" for one in (expired, expiring, wanted)
    )
    overview = (
        f"SELECT {dialect.GROUPED}, COUNT(*), {sums} FROM {TABLE} WHERE {in_use}"
        f" GROUP BY {dialect.BY_HOST}"
    )
    return Statement(page, params), Statement(overview, params)
