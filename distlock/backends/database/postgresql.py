"""PostgreSQL: its words for statements about locks and records, and its own, native locks."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from distlock.backends.database.advisory_locks import FIRST, MARK, AdvisoryLocks, digest, listen_key
from distlock.backends.database.connection import Connection, DatabaseSession, at_most
from distlock.backends.database.record_sql import (
    DIRECTORIES,
    RECORDS,
    SESSIONS,
    ApplyResult,
    Edit,
    RecordSQL,
    by_shape,
)
from distlock.backends.database.sql import TABLE, Dialect
from distlock.backends.database.statements import Statement, in_list, named_values
from distlock.backends.open_transactions import reads_snapshot
from distlock.backends.store import Address


class PostgreSQL(Dialect):
    """PostgreSQL. Drivers return timestamptz differently, so times are read as UTC."""

    # Not now() or CURRENT_TIMESTAMP, which are the time at which the transaction began.
    NOW: ClassVar[str] = "clock_timestamp()"
    LATER: ClassVar[str] = f"{NOW} + {{0}} * interval '1 microsecond'"
    EARLIER: ClassVar[str] = f"{NOW} - {{0}} * interval '1 microsecond'"
    READ: ClassVar[str] = "{0} AT TIME ZONE 'UTC'"
    MICROSECONDS: ClassVar[str] = f"(extract(epoch FROM {NOW}) * 1000000)::bigint"
    CONTAINS: ClassVar[str] = "strpos(LOWER({0}), LOWER(%(search)s)) > 0"
    BEGINS: ClassVar[str] = "strpos(LOWER({0}), LOWER(%(search)s)) = 1"

    def _upsert(self) -> str:
        # One row in any case: what was taken, and the row as it was before.
        return (
            f"WITH taken AS ({super()._upsert()})"
            " SELECT taken.nonce, taken.token, before.* FROM (SELECT 1) one"
            f" LEFT JOIN taken ON true LEFT JOIN (SELECT {self.columns}"
            f" FROM {TABLE} WHERE lock = %(lock)s) before ON true"
        )

    def _update_existing(self) -> str:
        # Its conditions are computed once more if another session has just changed the row:
        # https://www.postgresql.org/docs/current/transaction-iso.html#XACT-READ-COMMITTED
        return self._update(f"GREATEST(token + 1, {self.MICROSECONDS})") + "RETURNING token"

    def reads_snapshot(self, connection: Any) -> bool:
        return reads_snapshot(connection)

    def free(self, lock: str, ended: str = "", **hold: str | int) -> Statement:
        # The commit need not be waited for: should it be lost in a crash, the lease still ends.
        statement = super().free(lock, ended, **hold)
        return statement._replace(
            sql=f"{statement.sql} AND set_config('synchronous_commit', 'off', true) = 'off'"
        )

    def to_db(self, moment: datetime) -> datetime:
        return moment.astimezone(UTC)


POSTGRESQL = PostgreSQL()

# A grant must be on disk, and on the synchronous standby if there is one, before we report it,
# whatever the defaults of the database and of the role are. Warnings: see Notices in connection.py.
_ONCE = (
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED;"
    " SET lock_timeout = '1s'; SET synchronous_commit = 'on'; SET client_min_messages = 'warning'"
)
# Behind a pooler the search_path may be what another client of it has set.
_EVERY_TIME = (
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SELECT set_config('lock_timeout', '1s', true), set_config('synchronous_commit', 'on', true),"
    " set_config('client_min_messages', 'warning', true), set_config('search_path', {0}, true)",
)
# Which server process answers, and where the tables are: in the schema in which the one of the
# locks is found or, if there is none yet, will be made. A proxy that splits reads sends several
# statements to the primary.
_ASKED = (
    "SET LOCAL lock_timeout = '1s';"
    " SELECT pg_backend_pid(), current_database()::text, COALESCE((SELECT nspname FROM pg_class"
    " JOIN pg_namespace ON pg_namespace.oid = relnamespace"
    f" WHERE pg_class.oid = to_regclass('{TABLE}')), current_schema(), '')::text,"
    " quote_literal(current_setting('search_path'))"
)


def set_options(options: dict[str, Any], limit: float, timeout: float, blocking: bool) -> None:
    """Set the driver's options for a session; see open_session() for the arguments."""
    for option in ("pool", "isolation_level", "server_side_binding"):
        options.pop(option, None)
    options["application_name"] = f"distlock {socket.gethostname()}:{os.getpid()}"
    options["connect_timeout"] = at_most(options, "connect_timeout", limit)
    for option, seconds in {"idle": 30, "interval": 10, "count": 3}.items():
        options.setdefault(f"keepalives_{option}", seconds)


def set_up(session: DatabaseSession, limit: float, blocking: bool, pooled: bool | None) -> None:
    """Set in the server what the statements about locks rely on; nothing behind a pooler."""
    session.notices.listen(session.wrapper)
    # Asked before anything is set, because a pooler would hand that to others.
    ident, database, schema, search_path = session.run_as_engine(Statement(_ASKED), limit).rows[0]
    if pooled is None:
        # A pooler invents the ids for its clients.
        pooled = int(ident) != session.wrapper.connection.info.backend_pid
    session.schema, session.pooled = schema, pooled
    # The most usual schema, public, has no suffix, for compatibility.
    session.namespace = database if schema == "public" else f"{database}\0{schema}"
    if pooled:
        path = search_path.replace("%", "%%")
        session.before = tuple(text.format(path) for text in _EVERY_TIME)
    else:
        session.run(Statement(_ONCE), limit)


#: Limits of the server's own would end a wait; without the others it would grant the lock to a
#: waiter that has died. Settings that a server does not know, or cannot use where it runs, are left
#: alone.
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


class PostgreSQLLocks(AdvisoryLocks):
    """Session-level advisory locks, numbered by 64 bits.

    https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS

    A session that waits for long shares the lock ``~key``, and has one of those with two numbers of
    32 bits: the first is half of the key, the second says since when it waits.
    """

    remaining: ClassVar[str] = (
        "EXTRACT(EPOCH FROM expires_at - clock_timestamp())::double precision"
    )
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
        key, schema = self.key(namespace, name), namespace.partition("\0")[2]
        return f"{key}@{schema}" if schema else key

    def is_in(self, namespace: str, label: str) -> bool:
        return label.partition("@")[2] == namespace.partition("\0")[2]

    def set_up(self) -> Statement:
        return Statement(_SET_UP_WAITS)

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - as key()
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

    def sessions(self, idents: Collection[int]) -> Statement:
        # A session that runs a statement has a virtual transaction, for whose end others may wait.
        return Statement(
            "WITH locks AS MATERIALIZED (SELECT * FROM pg_locks WHERE locktype = 'virtualxid')"
            " SELECT pid, EXISTS (SELECT FROM locks other"
            " WHERE other.virtualxid = own.virtualxid AND NOT other.granted)::int"
            " FROM locks own WHERE granted AND pid = ANY(%s)",
            (list(idents),),
        )

    def comments(self) -> Statement:
        # An idle session shows its last statement. One that has acquired its lock is idle, too.
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


# A text with a mark for the name of the first record of a prefix; and the move of that.
_NAMED = "replace({0}, %(mark)s, substr(first.name, length(%(begin)s::text) + 1))"
_MOVED = (
    f"moved AS (UPDATE {RECORDS} r SET name = {_NAMED.format('%(moved)s')},"
    " value = %(after)s || substr(first.value, length(%(before)s::text) + 1),"
    " created = changed.revision, revision = changed.revision"
    " FROM first, changed WHERE r.id = first.id)"
)


class PostgreSQLRecords(RecordSQL):
    """PostgreSQL: a packet is one transaction, and each of its statements sees what is committed.

    So the first statement waits for the row of the directory, and the next one decides.
    """

    PRIMARY: ClassVar[str] = "SET LOCAL lock_timeout = '1s'; "
    BY_INDEX: ClassVar[str] = "SET LOCAL enable_seqscan = off; "
    LISTENS: ClassVar[str] = "NOTIFY"
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
        params = edit.params()
        # The channels that are notified, and the locks of those who listen there.
        for number, key in enumerate([None, *edit.keys]):
            params[f"channel{number}"] = channel = self.channel_of(edit.directory, key)
            params[f"listens{number}"] = listen_key(channel)
        statement = Statement(self._packet(edit, create=create), params, prepare=not create)
        revision, found, held, stale, heard, *moved = connection.ask(statement).rows[-1]
        told = heard.split(",") if heard else ()
        return ApplyResult(revision, found, held, stale, told, moved)

    @by_shape
    def _packet(self, edit: Edit, *, create: bool) -> str:
        lock = f"SELECT id FROM {DIRECTORIES} WHERE name = %(directory)s FOR UPDATE"
        conditions = self._conditions(edit, "directory.id", "directory.revision")
        first = moved = ""
        if edit.move is not None:
            first = f"first AS (SELECT r.* {self.FIRST.format('(SELECT id FROM directory)')}), "
            conditions += " AND EXISTS (SELECT 1 FROM first WHERE starts_with(value, %(before)s))"
            moved = ", name, value, created, revision FROM (SELECT 1) one LEFT JOIN first ON TRUE"
        parts = [
            f"directory AS (SELECT id, revision FROM {DIRECTORIES} WHERE name = %(directory)s)",
            f"{first}held AS (SELECT * FROM directory WHERE {conditions})",
            f"changed AS (UPDATE {DIRECTORIES} d SET revision"
            f" = GREATEST(d.revision + 1, {self.now}) FROM held WHERE d.id = held.id"
            f"{self._alive(edit)} RETURNING d.id, d.revision)",
            *self._changes(edit),
        ]
        verdict = (
            "SELECT (SELECT revision FROM changed), EXISTS (SELECT 1 FROM directory),"
            " EXISTS (SELECT 1 FROM held), CASE WHEN EXISTS (SELECT 1 FROM changed) THEN FALSE"
            f" ELSE {self._stale.format('(SELECT id FROM directory)')} END,"
            f" CASE WHEN EXISTS (SELECT 1 FROM changed) THEN ({self._heard(edit)}) END{moved}"
        )
        create_first = [self._create] if create else []
        every = [*create_first, lock, f"WITH {', '.join(parts)} {verdict}"]
        return self.BY_INDEX + "; ".join(every)

    def _heard(self, edit: Edit) -> str:
        """Ask for the channels on which somebody listens.

        The locks are kept until the commit: who begins to listen before that waits for it, and
        then sees the change.
        """
        row = "(%(channel{0})s, %(listens{0})s::bigint)"
        values = ", ".join(map(row.format, range(len(edit.keys) + 1)))
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
            f" WHERE {in_list('id', 'session', edit.sessions)} AND {self.sessions.runs}"
            " FOR KEY SHARE) alive)"
        )

    def _changes(self, edit: Edit) -> list[str]:
        parts = []
        if edit.deleted:
            keys = [f"%(deleted{number})s" for number in range(len(edit.deleted))]
            ids = f"SELECT o.id {self._among('(SELECT id FROM changed)', keys)}"
            parts.append(f"deleted AS (DELETE FROM {RECORDS} r WHERE r.id = ANY (ARRAY({ids})))")
        put, source = "p.name, p.value", "changed"
        if edit.move is not None:
            parts.append(_MOVED)
            put, source = f"{_NAMED.format('p.name')}, {_NAMED.format('p.value')}", "changed, first"
        if edit.puts:
            row = "(%(key{0})s, %(value{0})s, %(bound{0})s::varchar)"
            values = ", ".join(map(row.format, range(len(edit.puts))))
            parts.append(
                f"put AS ({self.PUT}"
                f" SELECT changed.id, {put}, changed.revision, changed.revision, p.session"
                f" FROM {source}, (VALUES {values}) p (name, value, session) {self.REPLACE})"
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
