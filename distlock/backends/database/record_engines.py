"""What each engine says about records, and how it changes several rows at once.

``apply()`` is one packet that the server carries out without us, so that a client that is stopped
in the middle keeps no row locked. SQLite has no server; there it is a transaction of this process.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from distlock.backends.database.connection import Connection
from distlock.backends.database.errors import StatementFailed
from distlock.backends.database.record_listener import ChangeNotice, channel_of, key_of
from distlock.backends.database.record_sql import (
    DIRECTORIES,
    RECORDS,
    SESSIONS,
    ApplyResult,
    Edit,
    RecordSQL,
)
from distlock.backends.database.sql import in_list, named_values
from distlock.backends.database.sqlite_session import in_transaction
from distlock.backends.database.statements import Result, Statement
from distlock.backends.store import Address

# Seconds after which MariaDB and MySQL end a session that is idle. It is set while a transaction is
# open: if a statement fails in the middle of a packet, the transaction would stay open, with its
# locks, for as long as its client is stopped.
_IDLE_IN_TRANSACTION = 2

# Whether a statement of apply() may write. When another node of a Galera cluster wins,
# MariaDB rolls the transaction back between two statements of the packet, carries out the next one
# by itself, and only then reports the deadlock. Only MariaDB reads the comment.
_MAY_WRITE = "@distlock_new IS NOT NULL /*M! AND @@in_transaction = 1 */"


class MySQLRecords(RecordSQL):
    """MariaDB and MySQL. What one statement finds out is passed to the next in user variables.

    If Galera finds that another node has changed the same rows, the COMMIT fails. What is decided
    on is therefore always changed, too: FOR UPDATE is known to one node only.
    """

    PRIMARY: ClassVar[str] = "DO 0; "
    ON_CONFLICT: ClassVar[str] = "ON DUPLICATE KEY UPDATE {0} = {0}"

    def apply(self, connection: Connection, edit: Edit, *, create: bool) -> ApplyResult:
        """See RecordSQL.apply()."""
        statements = [self._create] if create else []
        statements += [
            "SELECT MAX(id), MAX(revision) INTO @distlock_id, @distlock_old"
            f" FROM {DIRECTORIES} WHERE name = %(directory)s FOR UPDATE",
            "SET @distlock_held = @distlock_id IS NOT NULL AND "
            + self._conditions(edit, "@distlock_id", "@distlock_old"),
            *self._alive(edit),
            f"SET @distlock_new = IF(@distlock_held AND @distlock_alive = {len(edit.sessions)},"
            f" GREATEST(@distlock_old + 1, {self.now}), NULL)",
            f"UPDATE {DIRECTORIES} SET revision = @distlock_new WHERE {_MAY_WRITE}"
            " AND id = @distlock_id",
            *self._changes(edit),
        ]
        stale = self._stale.format("@distlock_id")
        verdict = (
            "SELECT @distlock_new, @distlock_id IS NOT NULL, @distlock_held,"
            f" IF(@distlock_new IS NULL, {stale}, 0)"
        )
        sql = f"{_in_transaction(statements)}; {verdict}"
        revision, found, held, stale = _ask(connection, Statement(sql, edit.params())).rows[-1]
        new = None if revision is None else int(revision)
        return ApplyResult(new, bool(found), bool(held), bool(stale))

    def _alive(self, edit: Edit) -> list[str]:
        if not edit.sessions:
            return ["SET @distlock_alive = 0"]
        return [
            # By the microsecond it is another row afterwards, see guard() of the locks.
            f"UPDATE {SESSIONS} SET expires_at = expires_at + 1 WHERE @distlock_held"
            f" AND {in_list('id', 'session', edit.sessions)} AND expires_at > {self.now}",
            "SET @distlock_alive = ROW_COUNT()",
        ]

    def _changes(self, edit: Edit) -> list[str]:
        statements = []
        if edit.deleted:
            statements.append(
                f"DELETE FROM {RECORDS} WHERE {_MAY_WRITE}"
                f" AND directory = @distlock_id AND {in_list('name', 'deleted', edit.deleted)}"
            )
        if edit.puts:
            values = " UNION ALL ".join(
                f"SELECT %(key{n})s AS name, %(value{n})s AS value, %(bound{n})s AS session"
                for n in range(len(edit.puts))
            )
            statements.append(
                f"INSERT INTO {RECORDS} (directory, name, value, created, revision, session)"
                " SELECT @distlock_id, p.name, p.value, @distlock_new, @distlock_new, p.session"
                f" FROM ({values}) p WHERE {_MAY_WRITE} ON DUPLICATE KEY UPDATE"
                " value = VALUES(value), revision = VALUES(revision), session = VALUES(session)"
            )
        return statements

    def end(
        self, connection: Connection, sessions: Sequence[str], *, expired: bool
    ) -> Sequence[Address]:
        """See RecordSQL.end()."""
        sql = _in_transaction(self._ending(sessions, expired=expired))
        _ask(connection, Statement(sql, named_values("session", sessions)))
        return []

    def _touch(self, directories: str) -> str:
        # Joined: for IN with a subquery the server would lock one row after the other to look.
        return (
            f"UPDATE {DIRECTORIES} d JOIN ({directories}) touched ON touched.directory = d.id"
            f" SET d.revision = {self.next}"
        )


def _ask(connection: Connection, statement: Statement) -> Result:
    """Send a packet with a transaction, which is left open if one of its statements fails.

    The pool then closes the session, and with that the server rolls back.
    """
    try:
        return connection.ask(statement)
    except StatementFailed:
        connection.usable = False
        raise


def _in_transaction(statements: Sequence[str]) -> str:
    return "; ".join(
        [
            f"SET @distlock_wait = @@wait_timeout, wait_timeout = {_IDLE_IN_TRANSACTION}",
            "START TRANSACTION",
            *statements,
            "COMMIT",
            "SET wait_timeout = @distlock_wait",
        ]
    )


class PostgreSQLRecords(RecordSQL):
    """PostgreSQL: a packet is one transaction, and each of its statements sees what is committed.

    So the first statement waits for the row of the directory, and the next one decides.
    """

    PRIMARY: ClassVar[str] = "SET LOCAL lock_timeout = '1s'; "
    BY_INDEX: ClassVar[str] = "SET LOCAL enable_seqscan = off; "
    # For a list of keys the server would read all records of the directory, which it expects to be
    # a few: it does not know how many each directory has.
    AMONG: ClassVar[str] = (
        f"FROM (VALUES ({{2}})) wanted (name) CROSS JOIN LATERAL (SELECT * FROM {RECORDS} one"
        " WHERE one.directory = {0} AND one.name = wanted.name LIMIT 1) o WHERE TRUE"
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
        params = {**edit.params(), **_channels(edit)}
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

    def notify(self, notices: Collection[tuple[str, ChangeNotice]]) -> Statement | None:
        """See RecordSQL.notify()."""
        calls = ", ".join(["pg_notify(%s, %s)"] * len(notices))
        texts = [text for channel, one in notices for text in (channel, one.text())]
        return Statement(f"SELECT {calls}", tuple(texts))


def _channels(edit: Edit) -> dict[str, Any]:
    """Return the channels on which a change is told, and the locks of those who listen there."""
    params: dict[str, Any] = {}
    for number, key in enumerate([None, *edit.keys]):
        params[f"channel{number}"] = channel = channel_of(edit.directory, key)
        params[f"listens{number}"] = key_of(channel)
    return params


class SQLiteRecords(RecordSQL):
    """SQLite: transactions of this process, which keep all others from writing."""

    PAUSES: ClassVar[tuple[float, float]] = (0.02, 0.25)
    GREATEST: ClassVar[str] = "max"

    @in_transaction
    def apply(self, connection: Connection, edit: Edit, *, create: bool) -> ApplyResult:
        """See RecordSQL.apply()."""
        params, ask = edit.params(), connection.ask
        if create:
            ask(Statement(self._create, params))
        held = self._conditions(edit, "d.id", "d.revision")
        alive = f"SELECT COUNT(*) FROM {SESSIONS} WHERE expires_at > {self.now}"
        if edit.sessions:
            alive += f" AND {in_list('id', 'session', edit.sessions)}"
        else:
            alive = "SELECT 0"
        look = (
            f"SELECT d.id, {self.next}, {held}, ({alive})"
            f" FROM {DIRECTORIES} d WHERE d.name = %(directory)s"
        )
        rows = ask(Statement(look, params)).rows
        if not rows:
            return ApplyResult(None, found=False)
        ((directory, revision, is_held, living),) = rows
        params |= {"id": directory, "new": revision}
        if not is_held or living != len(edit.sessions):
            look = f"SELECT {self._stale.format('%(id)s')}"  # it looks at all that has a session
            ((stale,),) = ask(Statement(look, params)).rows
            return ApplyResult(None, held=bool(is_held), stale=bool(stale))
        ask(Statement(f"UPDATE {DIRECTORIES} SET revision = %(new)s WHERE id = %(id)s", params))
        for statement in self._changes(edit):
            ask(Statement(statement, params))
        return ApplyResult(int(revision))

    def _changes(self, edit: Edit) -> list[str]:
        statements = []
        if edit.deleted:
            statements.append(
                f"DELETE FROM {RECORDS} WHERE directory = %(id)s"
                f" AND {in_list('name', 'deleted', edit.deleted)}"
            )
        if edit.puts:
            values = ", ".join(
                f"(%(id)s, %(key{n})s, %(value{n})s, %(new)s, %(new)s, %(bound{n})s)"
                for n in range(len(edit.puts))
            )
            statements.append(
                f"INSERT INTO {RECORDS} (directory, name, value, created, revision, session)"
                f" VALUES {values} ON CONFLICT (directory, name) DO UPDATE SET"
                " value = excluded.value, revision = excluded.revision, session = excluded.session"
            )
        return statements

    def unlocked(self, sessions: Sequence[str]) -> Statement | None:
        return None  # it has no locks of rows

    def renew_all(
        self, connection: Connection, sessions: Sequence[str], records: Sequence[Address]
    ) -> list[tuple[str, str]]:
        """See RecordSQL.renew_all()."""
        if sessions:
            connection.ask(self.renew(sessions))
        return connection.ask(self.there(sessions, records)).rows

    @in_transaction
    def end(
        self, connection: Connection, sessions: Sequence[str], *, expired: bool
    ) -> Sequence[Address]:
        """See RecordSQL.end()."""
        for statement in self._ending(sessions, expired=expired):
            connection.ask(Statement(statement, named_values("session", sessions)))
        return []


_KINDS: dict[str, type[RecordSQL]] = {
    "mysql": MySQLRecords,
    "postgresql": PostgreSQLRecords,
    "sqlite": SQLiteRecords,
}


def record_sql_for(vendor: str) -> RecordSQL:
    """Return the statements for an engine, by its vendor's name in Django."""
    return _KINDS[vendor](vendor)
