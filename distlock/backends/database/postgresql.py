"""PostgreSQL: its words for statements about locks, and its own, native locks."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from distlock.backends.database.advisory_locks import FIRST, MARK, AdvisoryLocks, digest
from distlock.backends.database.sql import TABLE, Dialect, row_columns, update, upsert
from distlock.backends.database.statements import Statement

# Not now() or CURRENT_TIMESTAMP, which are the time at which the transaction began.
_NOW = "clock_timestamp()"
_LATER = f"{_NOW} + {{0}} * interval '1 microsecond'"
_READ = "{0} AT TIME ZONE 'UTC'"
_MICROSECONDS = f"(extract(epoch FROM {_NOW}) * 1000000)::bigint"


class PostgreSQL(Dialect):
    """PostgreSQL. Drivers return timestamptz differently, so times are read as UTC."""

    # One row in any case: what was taken, and the row as it was before.
    ACQUIRE: ClassVar[str] = (
        f"WITH taken AS ({upsert(_NOW, _LATER, _MICROSECONDS, greatest='GREATEST')})"
        " SELECT taken.nonce, taken.token, before.* FROM (SELECT 1) one"
        f" LEFT JOIN taken ON true LEFT JOIN (SELECT {row_columns('lock', _NOW, _READ)}"
        f" FROM {TABLE} WHERE lock = %(lock)s) before ON true"
    )
    # Its conditions are computed once more if another session has just changed the row:
    # https://www.postgresql.org/docs/current/transaction-iso.html#XACT-READ-COMMITTED
    ACQUIRE_EXISTING: ClassVar[str] = (
        update(_NOW, _LATER, f"GREATEST(token + 1, {_MICROSECONDS})", table=f"{TABLE} AS held")
        + "RETURNING token"
    )
    READ: ClassVar[str] = _READ
    prepares: ClassVar[bool] = True
    POSITION: ClassVar[str] = "strpos"
    NOW: ClassVar[str] = _NOW
    LATER: ClassVar[str] = _LATER
    MICROSECONDS: ClassVar[str] = _MICROSECONDS
    EARLIER: ClassVar[str] = f"{_NOW} - {{0}} * interval '1 microsecond'"

    def free(self, lock: str, ended: str = "", **hold: str | int) -> Statement:
        # The commit need not be waited for: should it be lost in a crash, the lease still ends.
        statement = super().free(lock, ended, **hold)
        return statement._replace(
            sql=f"{statement.sql} AND set_config('synchronous_commit', 'off', true) = 'off'"
        )

    def to_db(self, moment: datetime) -> datetime:
        return moment.astimezone(UTC)


#: Limits of the server's own would end a wait; without the others it would grant the lock to a
#: waiter that has died. What a server does not know, or cannot do where it runs, is left alone.
_WAIT_SETTINGS = {
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "idle_session_timeout": "0",
    "client_connection_check_interval": "1s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "plan_cache_mode": "force_generic_plan",
}
_SET_UP_WAITS = (
    "DO $$ BEGIN "
    + " ".join(
        f"BEGIN PERFORM set_config('{name}', '{value}', false);"
        " EXCEPTION WHEN OTHERS THEN NULL; END;"
        for name, value in _WAIT_SETTINGS.items()
    )
    + " END $$; SELECT pg_backend_pid()"
)

# The number of a long wait is when it began, in quarters of a second since 2023: 31 bits last for
# 17 years.
_SINCE, _PER_SECOND = 1_672_531_200, 4


#: The schema that most tables are in. Its namespace does without it, as all did once.
_PUBLIC = "public"


def namespace_of(database: str, schema: str) -> str:
    """Return what the native locks of a table are named after: its database and its schema."""
    return database if schema == _PUBLIC else f"{database}\0{schema}"


def _schema_in(namespace: str) -> str:
    return namespace.partition("\0")[2]


class PostgreSQLLocks(AdvisoryLocks):
    """Session-level advisory locks, numbered by 64 bits.

    https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS

    A session that waits for long shares the lock ``~key``, and has one of those with two numbers of
    32 bits: the first is half of the key, the second says since when it waits.
    """

    # A waiting statement keeps a snapshot, which VACUUM cannot look past.
    longest_wait: ClassVar[float] = 600.0
    # A session-level lock, which is left at once. One of the transaction would be kept until the
    # commit has ended, which may take long, and would look to others like a long wait.
    nobody_waits_long: ClassVar[str] = (
        "(CASE WHEN pg_try_advisory_lock(%(long_wait_key)s)"
        " THEN pg_advisory_unlock(%(long_wait_key)s) ELSE FALSE END)"
    )
    nobody_waits: ClassVar[str] = f"(pg_try_advisory_xact_lock(%(key)s) AND {nobody_waits_long})"

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - there is one object for each engine
    def key(self, namespace: str, name: str) -> str:
        return str(int.from_bytes(digest(namespace, name)[:8], "big", signed=True))

    def label(self, namespace: str, name: str) -> str:
        schema = _schema_in(namespace)
        key = self.key(namespace, name)
        return f"{key}@{schema}" if schema else key

    def is_in(self, namespace: str, label: str) -> bool:
        return label.partition("@")[2] == _schema_in(namespace)

    def set_up(self) -> Statement:
        return Statement(_SET_UP_WAITS)

    def values(self, key: str) -> Mapping[str, Any]:
        return {"key": int(key), "long_wait_key": ~int(key)}

    def wait(self, key: str, seconds: float) -> str:
        limit = max(seconds * 1000, 1.0)  # 0 would be none
        return f"SET LOCAL lock_timeout = '{limit:.0f}ms'; SELECT 1 FROM pg_advisory_lock({key})"

    def leave(self, key: str) -> str:
        return "SELECT pg_advisory_unlock_all()"  # unlike pg_advisory_unlock() it never warns

    def cancel(self, ident: int) -> Statement:
        return Statement("SELECT pg_cancel_backend(%s)", (ident,))

    def begin_long_wait(self, key: str, waited: float) -> Statement:
        return Statement(
            f"SELECT number, pg_advisory_lock_shared({~int(key)}),"
            f" pg_advisory_lock_shared({_half(key)}, number) FROM (SELECT"
            f" ({_PER_SECOND} * (EXTRACT(EPOCH FROM clock_timestamp()) - {_SINCE} - {waited:.3f}))"
            "::integer AS number) began"
        )

    def nobody_waits_longer(self, key: str, number: int) -> tuple[str, Mapping[str, Any]]:
        return (
            "NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND database"
            " = (SELECT oid FROM pg_database WHERE datname = current_database()) AND objsubid = 2"
            " AND classid::bigint = %(half)s AND objid::bigint < %(number)s)",
            {"half": _half(key) % 2**32, "number": number},
        )

    def free_and_leave(self, key: str, free: Statement) -> Statement:
        # The next one may come as soon as the row is written: it waits for the rest of the
        # transaction.
        return Statement(
            f"{free.sql} RETURNING pg_advisory_unlock_all()", free.params, prepare=True
        )

    def look(self, names: Collection[str]) -> Statement:
        return Statement(
            "SELECT lock, owner, token,"
            " EXTRACT(EPOCH FROM expires_at - clock_timestamp())::double precision"
            f" FROM {TABLE} WHERE lock = ANY(%s)",
            (list(names),),
        )

    def sessions(self, idents: Collection[int]) -> Statement:
        # Whoever runs a statement has a virtual transaction, for whose end others may wait.
        return Statement(
            "WITH locks AS MATERIALIZED (SELECT * FROM pg_locks WHERE locktype = 'virtualxid')"
            " SELECT pid, EXISTS (SELECT FROM locks other"
            " WHERE other.virtualxid = own.virtualxid AND NOT other.granted)::int"
            " FROM locks own WHERE granted AND pid = ANY(%s)",
            (list(idents),),
        )

    def comments(self) -> Statement:
        # What is idle shows its last statement. One that had waited and got in is idle, too.
        return Statement(
            "SELECT CASE WHEN starts_with(query, %(mark)s) THEN query ELSE '' END,"
            " EXTRACT(EPOCH FROM clock_timestamp() - query_start)::double precision"
            " FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " WHERE locktype = 'advisory' AND datname = current_database() AND CASE"
            " WHEN granted THEN starts_with(query, %(first)s)"
            " ELSE starts_with(query, %(mark)s) OR query = '<insufficient privilege>' END"
            " GROUP BY pid, query, query_start ORDER BY query_start",
            {"mark": MARK, "first": FIRST},
        )


def _half(key: str) -> int:
    """Return the lower half of a key, as 32 bits with a sign."""
    half = int(key) % 2**32
    return half - 2**32 if half >= 2**31 else half
