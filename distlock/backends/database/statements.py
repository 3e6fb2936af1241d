"""Statements for a database, and its answers: also a row of the table of locks."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.apps import apps

from distlock.types.lease import Holder, LastHold, LockInfo, Owner, State
from distlock.types.owners import is_reserved

#: Rows, or names of them, in one statement.
BATCH = 400

#: The tables in the texts of statements, and the models that they belong to.
_MODELS = {
    "database_lock": "DatabaseLock",
    "database_lock_directory": "RecordDirectory",
    "database_lock_record": "DatabaseRecord",
    "database_lock_session": "RecordSession",
}
_TABLE = re.compile(r"\bdatabase_lock\w*")


class Statement(NamedTuple):
    """SQL as Django's cursors take it: with ``%(name)s`` or ``%s``, and ``%%`` for a ``%``."""

    sql: str
    params: Mapping[str, Any] | tuple[Any, ...] = {}
    #: Let the server keep it for the session, and plan it once. For one statement whose text is
    #: always the same, and whose parameters are named and are str, int, float or bool. PostgreSQL
    #: infers their types; of a packet that is so for each statement, if its session has sent the
    #: last one a few times. MariaDB keeps what a session has sent a few times, and no packets.
    prepare: bool = False
    #: Whether a power cut may undo it. SQLite then does without the disk if it can.
    may_be_undone: bool = False


def renamed_tables() -> Mapping[str, str]:
    """Return which tables have other names in this project, and these; mostly none.

    A project may put a prefix before the names of all tables (django-db-prefix).
    """
    # While Django starts the models are not there yet.
    return _renamed_tables() if apps.models_ready and apps.is_installed("distlock") else {}


@functools.cache
def _renamed_tables() -> Mapping[str, str]:
    tables = {
        table: apps.get_model("distlock", model)._meta.db_table for table, model in _MODELS.items()
    }
    return {table: name for table, name in tables.items() if name != table}


@functools.lru_cache(maxsize=256)
def with_tables_renamed(sql: str, vendor: str) -> str:
    """Return a text in which the tables have their names in this project."""
    names, quote = renamed_tables(), "`" if vendor == "mysql" else '"'

    def name_of(match: re.Match[str]) -> str:
        name = names.get(match[0])
        if name is None:
            return match[0]
        if not name.startswith(quote):
            name = f"{quote}{name}{quote}"
        return name.replace("%", "%%")

    return _TABLE.sub(name_of, sql)


def in_list(column: str, name: str, values: Sequence[Any]) -> str:
    """Return the condition that a column has one of these values; named_values() has them."""
    placeholders = ", ".join(f"%({name}{number})s" for number in range(len(values)))
    return f"{column} IN ({placeholders})"


def named_values(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return the parameters of in_list()."""
    return {f"{name}{number}": value for number, value in enumerate(values)}


def end_of(prefix: str) -> str:
    """Return the first text, by code points, after those that begin with a prefix."""
    code = ord(prefix[-1]) + 1
    if code > sys.maxunicode:
        return end_of(prefix[:-1])
    return prefix[:-1] + chr(0xE000 if code == 0xD800 else code)  # a surrogate is no character


class SweptRows(NamedTuple):
    """Rows that a sweep finds by a condition, and clears by their ids under the same condition."""

    table: str
    #: the statement that clears them, without its condition
    clearing: str
    condition: str
    params: Mapping[str, Any] = {}

    def find(self, after: int) -> Statement:
        """Ask for the first ids after ``after``."""
        return Statement(
            f"SELECT id FROM {self.table} WHERE id > %(after)s AND {self.condition}"
            f" ORDER BY id LIMIT {BATCH}",
            {**self.params, "after": after},
        )

    def clear(self, ids: Sequence[int]) -> Statement:
        """Clear those of the rows that find() would name."""
        return Statement(
            f"{self.clearing} WHERE {in_list('id', 'id', ids)} AND {self.condition}",
            {**self.params, **named_values("id", ids)},
        )


class LeasedRows(NamedTuple):
    """Rows that have a lease each, which runs until ``expires_at``: those of locks and of sessions.

    Some are found by lists of values, one for each of the columns ``keys``. A value of the last
    one belongs to one row, so the lists need not be matched one by one.
    """

    table: str
    keys: tuple[str, ...]
    #: the server's time, as ``expires_at`` has it
    now: str
    #: what makes a SELECT leave out the rows that others keep locked; "" if there is nothing
    skip_locked: str
    #: a condition: the row has a lease
    in_use: str = ""

    @property
    def runs(self) -> str:
        """The condition that the lease has not ended."""
        used = f"{self.in_use} AND " if self.in_use else ""
        return f"{used}expires_at > {self.now}"

    @property
    def over(self) -> str:
        """The condition that the lease has ended."""
        return f"expires_at <= {self.now}"

    def find(self, *keys: Sequence[str]) -> tuple[str, dict[str, Any]]:
        """Return the condition that finds some rows, by the values of their keys."""
        lists = [(f"key{number}_", values) for number, values in enumerate(keys)]
        conditions = (in_list(key, *some) for key, some in zip(self.keys, lists, strict=True))
        params = {name: value for some in lists for name, value in named_values(*some).items()}
        return " AND ".join(conditions), params

    def running(self, *keys: Sequence[str], also: str = "", locking: str = "") -> Statement:
        """Ask for the last keys of those of the rows whose leases run, and for ``also``."""
        where, params = self.find(*keys)
        sql = f"SELECT {self.keys[-1]}{also} FROM {self.table} WHERE {where} AND {self.runs}"
        return Statement(sql + locking, params)

    def unlocked(self, *keys: Sequence[str]) -> Statement | None:
        """Ask for the last keys of those that no transaction of someone else keeps locked.

        None if the engine cannot tell.
        """
        where, params = self.find(*keys)
        sql = f"SELECT {self.keys[-1]} FROM {self.table} WHERE {where}{self.skip_locked}"
        return Statement(sql, params) if self.skip_locked else None

    def update(self, assignments: str, *keys: Sequence[str], **params: Any) -> Statement:
        """Change those of the rows whose leases run: renew these, for example."""
        where, values = self.find(*keys)
        sql = f"UPDATE {self.table} SET {assignments} WHERE {where} AND {self.runs}"
        return Statement(sql, {**values, **params})


class Result(NamedTuple):
    """The answer of the database to one statement."""

    rows: list[tuple[Any, ...]]
    #: rows that it changed. On MySQL those that it matched, because our own sessions and Django's
    #: connect with CLIENT_FOUND_ROWS.
    affected: int
    #: MySQL: what ``LAST_INSERT_ID(expr)`` was given, or the new AUTO_INCREMENT value; else 0
    insert_id: int = 0


class Row(NamedTuple):
    """One row of the table, and the server's time at which it was read; times are aware, in UTC."""

    lock: str
    description: str
    owner: str
    nonce: str
    host: str
    process: int
    thread: str
    token: int
    lease: float
    renews: bool
    since: datetime
    until: datetime
    now: datetime

    @property
    def free(self) -> bool:
        return not self.owner

    @property
    def expired(self) -> bool:
        return bool(self.owner) and self.until <= self.now

    @property
    def holder(self) -> Holder | None:
        """The holder of the lock; None if it is free."""
        holders = () if self.expired else info_of(self, "").holders
        return holders[0] if holders else None


#: The columns of a Row in order, without the server's own time, which comes last.
COLUMNS = (*Row._fields[:-3], "acquired_at", "expires_at")


def owner_of(row: Row) -> Owner:
    """Return who holds a lock by its row."""
    return Owner(row.owner.removesuffix(f":{row.nonce}"), row.host, row.process, row.thread)


def info_of(row: Row, using: str) -> LockInfo:
    """Return what a row says about its lock, by the clock of the server that read it."""
    # A reserved lock was left by its holder: when its time is over it is free, not expired.
    if row.free or (row.expired and is_reserved(owner_of(row))):
        owner = Owner("", row.host, row.process, row.thread)
        last = LastHold(owner, row.since, row.until, row.nonce or "released", row.description)
        return LockInfo(row.lock, using, token=row.token, last=last if row.host else None)
    return LockInfo(
        row.lock,
        using,
        State.EXPIRED if row.expired else State.HELD,
        owner=owner_of(row),
        token=row.token,
        since=row.since,
        until=row.until,
        held_for=max((row.now - row.since).total_seconds(), 0.0),
        remaining=max((row.until - row.now).total_seconds(), 0.0),
        description=row.description,
        lease=row.lease,
        renews=row.renews,
        renewed_at=row.until - timedelta(seconds=row.lease),
    )
