"""PostgreSQL: its words for statements about locks and records, and its own, native locks."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from distlock.backends.database.advisory_locks import FIRST, MARK, AdvisoryLocks, digest
from distlock.backends.database.connection import Connection
from distlock.backends.database.record_sql import (
    DIRECTORIES,
    RECORDS,
    SESSIONS,
    ApplyResult,
    Edit,
    RecordSQL,
)
from distlock.backends.database.sql import TABLE, Dialect, row_columns, update, upsert
from distlock.backends.database.statements import Statement, in_list, named_values
from distlock.backends.store import Address


class PostgreSQL(Dialect):
    """PostgreSQL. Drivers return timestamptz differently, so times are read as UTC."""

    # Not now() or CURRENT_TIMESTAMP, which are the time at which the transaction began.
    NOW: ClassVar[str] = "clock_timestamp()"
    LATER: ClassVar[str] = f"{NOW} + {{0}} * interval '1 microsecond'"
    EARLIER: ClassVar[str] = f"{NOW} - {{0}} * interval '1 microsecond'"
    READ: ClassVar[str] = "{0} AT TIME ZONE 'UTC'"
    MICROSECONDS: ClassVar[str] = f"(extract(epoch FROM {NOW}) * 1000000)::bigint"
    # One row in any case: what was taken, and the row as it was before.
    ACQUIRE: ClassVar[str] = (
        f"WITH taken AS ({upsert(NOW, LATER, MICROSECONDS, greatest='GREATEST')})"
        " SELECT taken.nonce, taken.token, before.* FROM (SELECT 1) one"
        f" LEFT JOIN taken ON true LEFT JOIN (SELECT {row_columns('lock', NOW, READ)}"
        f" FROM {TABLE} WHERE lock = %(lock)s) before ON true"
    )
    # Its conditions are computed once more if another session has just changed the row:
    # https://www.postgresql.org/docs/current/transaction-iso.html#XACT-READ-COMMITTED
    ACQUIRE_EXISTING: ClassVar[str] = (
        update(NOW, LATER, f"GREATEST(token + 1, {MICROSECONDS})", table=f"{TABLE} AS held")
        + "RETURNING token"
    )
    prepares: ClassVar[bool] = True
    CONTAINS: ClassVar[str] = "strpos(LOWER({0}), LOWER(%(search)s)) > 0"
    BEGINS: ClassVar[str] = "strpos(LOWER({0}), LOWER(%(search)s)) = 1"

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


#: Bytes of a text that NOTIFY takes, at the most.
_LONGEST_TEXT = 7999


def channel_of(directory: str, key: str | None = None) -> str:
    """Return the channel on which changes of a directory, or of one record, are told."""
    name = directory if key is None else f"{directory}\0{key}"
    return f"distlock_records_{hashlib.sha256(name.encode()).digest()[0]}"


@functools.cache
def key_of(channel: str) -> int:
    """Return the advisory lock that says that somebody listens. Never change this."""
    digest = hashlib.sha256(f"distlock records\0{channel}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class ChangeNotice(NamedTuple):
    """What is told of a change; None for what is not known."""

    directory: str
    revision: int | None = None
    keys: Collection[str] | None = None

    def text(self) -> str:
        """Return it as one text of the length that NOTIFY takes."""
        keys = None if self.keys is None else sorted(self.keys)
        text = json.dumps([self.directory, self.revision, keys], ensure_ascii=False)
        if len(text.encode()) > _LONGEST_TEXT:
            return ChangeNotice(self.directory, self.revision).text()
        return text

    @classmethod
    def read(cls, text: str) -> ChangeNotice:
        return cls(*json.loads(text))


class PostgreSQLRecords(RecordSQL):
    """PostgreSQL: a packet is one transaction, and each of its statements sees what is committed.

    So the first statement waits for the row of the directory, and the next one decides.
    """

    PRIMARY: ClassVar[str] = "SET LOCAL lock_timeout = '1s'; "
    now: ClassVar[str] = PostgreSQL.MICROSECONDS
    BY_INDEX: ClassVar[str] = "SET LOCAL enable_seqscan = off; "
    HAS: ClassVar[str] = (
        'strpos(LOWER(r.value COLLATE "C"), %(text)s) > 0 OR strpos(r.value, %(escape)s) > 0'
        " OR octet_length(r.value) <> length(r.value)"
    )
    # For a list of keys the server would read all records of the directory, which it expects to be
    # a few: it does not know how many each directory has.
    AMONG: ClassVar[str] = (
        f"FROM (VALUES ({{2}})) wanted (name) CROSS JOIN LATERAL (SELECT * FROM {RECORDS} one"
        " WHERE one.directory = {0} AND one.name = wanted.name LIMIT 1) o WHERE TRUE"
    )
    # A statement that waited for a row looks at it once more, but at others as they were before.
    UNCHANGED: ClassVar[str] = (
        f" AND revision = (SELECT d.revision FROM {DIRECTORIES} d WHERE d.id = {DIRECTORIES}.id)"
    )

    def apply(self, connection: Connection, edit: Edit, *, create: bool) -> ApplyResult:
        """See RecordSQL.apply()."""
        lock = f"SELECT id FROM {DIRECTORIES} WHERE name = %(directory)s FOR UPDATE"
        parts = [
            f"directory AS (SELECT id, revision FROM {DIRECTORIES} WHERE name = %(directory)s)",
            "held AS (SELECT * FROM directory WHERE "
            + self._conditions(edit, "directory.id", "directory.revision")
            + ")",
            f"changed AS (UPDATE {DIRECTORIES} d SET revision"
            f" = GREATEST(d.revision + 1, {self.now}) FROM held WHERE d.id = held.id"
            f"{self._alive(edit)} RETURNING d.id, d.revision)",
            *self._changes(edit),
        ]
        verdict = (
            "SELECT (SELECT revision FROM changed), EXISTS (SELECT 1 FROM directory),"
            " EXISTS (SELECT 1 FROM held), CASE WHEN EXISTS (SELECT 1 FROM changed) THEN FALSE"
            f" ELSE {self._stale.format('(SELECT id FROM directory)')} END,"
            f" CASE WHEN EXISTS (SELECT 1 FROM changed) THEN ({self._heard(edit)}) END"
        )
        statements = [lock, f"WITH {', '.join(parts)} {verdict}"]
        if create:
            statements.insert(0, self._create)
        params = edit.params()
        # The channels on which it is told, and the locks of those who listen there.
        for number, key in enumerate([None, *edit.keys]):
            params[f"channel{number}"] = channel = channel_of(edit.directory, key)
            params[f"listens{number}"] = key_of(channel)
        text = self.BY_INDEX + "; ".join(statements)
        answer = connection.ask(Statement(text, params, prepare=not create))
        revision, found, held, stale, heard = answer.rows[-1]
        return ApplyResult(revision, found, held, stale, heard.split(",") if heard else ())

    def _heard(self, edit: Edit) -> str:
        """Ask for the channels on which somebody listens.

        The locks are kept until the commit: who begins to listen before that waits for it, and
        then sees the change.
        """
        values = ", ".join(
            f"(%(channel{n})s, %(listens{n})s::bigint)" for n in range(len(edit.keys) + 1)
        )
        return (
            f"SELECT string_agg(DISTINCT channel, ',') FROM (VALUES {values}) c (channel, key)"
            " WHERE NOT pg_try_advisory_xact_lock(key)"
        )

    def _alive(self, edit: Edit) -> str:
        if not edit.sessions:
            return ""
        # The lock keeps others from deleting the row, and lets its renewals pass.
        return (
            f" AND {len(edit.sessions)} = (SELECT COUNT(*) FROM (SELECT id FROM {SESSIONS}"
            f" WHERE {in_list('id', 'session', edit.sessions)} AND expires_at > {self.now}"
            " FOR KEY SHARE) alive)"
        )

    def _changes(self, edit: Edit) -> list[str]:
        parts = []
        if edit.deleted:
            keys = [f"%(deleted{number})s" for number in range(len(edit.deleted))]
            ids = f"SELECT o.id {self._among('(SELECT id FROM changed)', keys)}"
            parts.append(f"deleted AS (DELETE FROM {RECORDS} r WHERE r.id = ANY (ARRAY({ids})))")
        if edit.puts:
            values = ", ".join(
                f"(%(key{n})s, %(value{n})s, %(bound{n})s::varchar)" for n in range(len(edit.puts))
            )
            parts.append(
                f"put AS (INSERT INTO {RECORDS} AS r"
                " (directory, name, value, created, revision, session)"
                " SELECT changed.id, p.name, p.value, changed.revision, changed.revision, p.session"
                f" FROM changed, (VALUES {values}) p (name, value, session)"
                " ON CONFLICT (directory, name) DO UPDATE SET value = EXCLUDED.value,"
                " revision = EXCLUDED.revision, session = EXCLUDED.session)"
            )
        return parts

    def end(
        self, connection: Connection, sessions: Sequence[str], *, expired: bool
    ) -> Sequence[Address]:
        """See RecordSQL.end()."""
        delete, touch, clear = self._ending(sessions, expired=expired)
        clear = clear.replace(" WHERE ", f" USING {DIRECTORIES} d WHERE d.id = directory AND ", 1)
        sql = f"{delete}; {touch}; {clear} RETURNING d.name, {RECORDS}.name"
        rows = connection.ask(Statement(sql, named_values("session", sessions))).rows
        return [(directory, key) for directory, key in rows]

    def notify(self, notices: Collection[tuple[str, str]]) -> Statement | None:
        """See RecordSQL.notify()."""
        calls = ", ".join(["pg_notify(%s, %s)"] * len(notices))
        return Statement(f"SELECT {calls}", tuple(chain.from_iterable(notices)))
