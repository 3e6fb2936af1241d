"""A page of the locks in use, chosen, sorted and counted by the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distlock.backends.database.dialects.base import TABLE, Ask, Dialect
from distlock.backends.database.dialects.postgresql import PostgreSQL
from distlock.backends.database.dialects.text import TextDialect
from distlock.backends.database.looking import info
from distlock.backends.database.runner import StatementRunner
from distlock.backends.database.statements import Statement
from distlock.types.owners import KEPT
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


def page(
    access: StatementRunner, using: str, query: LockQuery, deadline: float | None
) -> Page | None:
    """Return a page, in two statements; None where the dialect cannot be added to.

    Both read the table once at the most: 100,000 rows take MariaDB a tenth of a second each.
    """

    def read(dialect: Dialect, ask: Ask) -> Page | None:
        if not isinstance(dialect, TextDialect):
            return None
        words = _Words(dialect, query)
        rows = dialect.rows(ask(words.page()))
        more = len(rows) > query.size
        infos = [info(row, using) for row in rows[: query.size]]
        hosts: dict[str, int] = {}
        expired = expiring = found = 0
        for host, *numbers in ask(words.overview()).rows:
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

    return access.work(read, deadline)


class _Words:
    """A query in the words of a dialect."""

    def __init__(self, dialect: TextDialect, query: LockQuery) -> None:
        self._dialect = dialect
        self._selection = query
        self._position = "strpos" if isinstance(dialect, PostgreSQL) else "INSTR"
        self._params: dict[str, Any] = {
            "search": query.search,
            "host": query.host,
            "held_for": dialect.duration(query.held_for),
        }
        self._expired = f"expires_at <= {dialect.NOW}"
        # What was kept for a time is free when that is over, though nobody has swept it yet.
        kept = f"owner LIKE '{KEPT}%%'"
        self._in_use = f"owner <> '' AND NOT ({kept} AND {self._expired})"
        # See listing.status_of().
        by_part = f"renews OR lease <= {SOON_SECONDS / SOON_PART}"
        soon = f"CASE WHEN {by_part} THEN lease * {SOON_PART} ELSE {SOON_SECONDS} END"
        later = dialect.LATER.format(dialect.SECONDS.format(f"({soon})"))
        self._expiring = f"(expires_at > {dialect.NOW} AND expires_at <= {later} AND NOT ({kept}))"
        self._held = f"(NOT ({self._expired}) AND NOT {self._expiring})"

    def page(self) -> Statement:
        """Ask for the rows from the place on, and one more."""
        query = self._selection
        order = ["acquired_at"] if query.order is Order.AGE else []
        descending = " DESC" if query.backwards else ""
        by = ", ".join(f"{column}{descending}" for column in [*order, self._dialect.LOCK])
        where = f"{self._in_use} AND {self._wanted}"
        params = self._params
        if query.start is not None:
            where += f" AND {self._beyond(query.start)}"
            params = {**params, **self._place(query.start)}
        return Statement(
            f"{self._dialect._select} WHERE {where} ORDER BY {by} LIMIT {query.size + 1}",
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
        query, conditions = self._selection, []
        if query.search:
            lock = self._dialect.LOCK
            conditions.append(f"{self._position}(LOWER({lock}), LOWER(%(search)s)) > 0")
        if query.statuses:
            words = {
                DisplayStatus.HELD: self._held,
                DisplayStatus.EXPIRING: self._expiring,
                DisplayStatus.EXPIRED: self._expired,
            }
            some = [words[status] for status in words if status in query.statuses]
            conditions.append(f"({' OR '.join(some) or '1 = 0'})")
        if query.host:
            conditions.append("host = %(host)s")
        if query.held_for:
            conditions.append(f"acquired_at <= {self._dialect.EARLIER.format('%(held_for)s')}")
        return " AND ".join(conditions) or "1 = 1"

    def _beyond(self, start: Cursor) -> str:
        lock, beyond = self._dialect.LOCK, "<" if self._selection.backwards else ">"
        equal = "=" if self._selection.inclusive else ""
        if self._selection.order is Order.NAME:
            return f"{lock} {beyond}{equal} %(name)s"
        return (
            f"(acquired_at {beyond} %(since)s"
            f" OR (acquired_at = %(since)s AND {lock} {beyond}{equal} %(name)s))"
        )

    def _place(self, start: Cursor) -> Mapping[str, Any]:
        return {"name": start.name, "since": self._dialect.written(start.since)}
