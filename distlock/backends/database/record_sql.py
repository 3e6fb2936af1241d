"""The statements about records, in SQL with an engine's own words filled in.

``apply()`` is one packet that the server carries out without us, so that a client that is stopped
in the middle keeps no row locked. SQLite has no server; there it is a transaction of this process.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from distlock.backends.database.connection import Connection
from distlock.backends.database.engines import dialect_of
from distlock.backends.database.sql import LONGEST, in_list, named_values
from distlock.backends.database.sqlite_session import transaction
from distlock.backends.database.statements import Statement
from distlock.backends.store import Absent, Address, Change, Condition, Delete, Exists, Put

#: The tables of distlock.models, which cannot be imported while Django starts.
DIRECTORIES = "database_lock_directory"
RECORDS = "database_lock_record"
SESSIONS = "database_lock_session"

#: Microseconds that are added to a session: the server's time, from which it is counted, may be
#: rounded down, on SQLite to a millisecond.
_ROUNDED = 1001

# Seconds after which MariaDB and MySQL end a session that is idle. It is set while a transaction is
# open: if a statement fails in the middle of a packet, the transaction would stay open, with its
# locks, for as long as its client is stopped.
_IDLE_IN_TRANSACTION = 2


@dataclass(frozen=True, slots=True)
class Edit:
    """The changes of one apply(), at most one for each key."""

    directory: str
    puts: Sequence[Put]
    deleted: Sequence[str]
    #: keys of records that are put after they were deleted, so that they are new ones
    renewed: Sequence[str]
    #: sessions that must be alive
    sessions: Sequence[str]
    conditions: Sequence[Condition]

    @classmethod
    def of(
        cls, directory: str, changes: Sequence[Change], conditions: Collection[Condition]
    ) -> Edit:
        """Return what comes of changes that are made one after the other."""
        last = {change.key: change for change in changes}
        deleted = {change.key for change in changes if isinstance(change, Delete)}
        puts = [change for change in last.values() if isinstance(change, Put)]
        return cls(
            directory,
            puts,
            [key for key, change in last.items() if isinstance(change, Delete)],
            [put.key for put in puts if put.key in deleted],
            sorted({put.session for put in changes if isinstance(put, Put) and put.session}),
            list(conditions),
        )

    def params(self) -> dict[str, Any]:
        """Return the parameters of all statements that make the changes."""
        params = {
            "directory": self.directory,
            **named_values("deleted", self.deleted),
            **named_values("renewed", self.renewed),
            **named_values("session", self.sessions),
        }
        for number, put in enumerate(self.puts):
            params[f"key{number}"] = put.key
            params[f"value{number}"] = put.text
            params[f"bound{number}"] = put.session
        for number, condition in enumerate(self.conditions):
            if isinstance(condition, (Absent, Exists)):
                params[f"other{number}"] = condition.key
            if not isinstance(condition, Absent) and condition.revision is not None:
                params[f"revision{number}"] = condition.revision
        return params


class Verdict(NamedTuple):
    """What came of an apply(): the new revision, or why nothing was changed."""

    revision: int | None
    #: the directory has a row
    found: bool = True
    #: all conditions hold
    held: bool = True
    #: it has records of sessions whose time is over
    stale: bool = False


class RecordSQL(ABC):
    """How one kind of database is spoken to about records."""

    #: begins a packet that only reads: a proxy that splits reads sends several statements to the
    #: primary
    PRIMARY: ClassVar[str] = ""
    GREATEST: ClassVar[str] = "GREATEST"
    ON_CONFLICT: ClassVar[str] = "ON CONFLICT ({0}) DO NOTHING"

    def __init__(self, vendor: str) -> None:
        """``vendor`` is the engine's name in Django."""
        #: the server's time in microseconds since 1970
        self.now = dialect_of(vendor).MICROSECONDS
        #: the next revision of a directory
        self.next = f"{self.GREATEST}(revision + 1, {self.now})"
        ended = f"(s.id IS NULL OR s.expires_at <= {self.now})"
        self._stale = (
            f"EXISTS (SELECT 1 FROM {RECORDS} r LEFT JOIN {SESSIONS} s ON s.id = r.session"
            f" WHERE r.directory = {{0}} AND r.session IS NOT NULL AND {ended})"
        )
        self._create = (
            f"INSERT INTO {DIRECTORIES} (name, revision) VALUES (%(directory)s, 0)"
            f" {self.ON_CONFLICT.format('name')}"
        )

    # Records

    def read(self, directory: str) -> Statement:
        """Ask for a directory: time, its revision, and of each record its columns.

        There is always one row at least.
        """
        return Statement(
            f"{self.PRIMARY}SELECT {self.now}, d.revision, r.name, r.value, r.created, r.revision,"
            " r.session, s.expires_at FROM (SELECT 1 AS one) one"
            f" LEFT JOIN {DIRECTORIES} d ON d.name = %(directory)s"
            f" LEFT JOIN {RECORDS} r ON r.directory = d.id"
            f" LEFT JOIN {SESSIONS} s ON s.id = r.session",
            {"directory": directory},
        )

    @abstractmethod
    def apply(self, connection: Connection, edit: Edit, *, create: bool) -> Verdict:
        """Make the changes, or none. ``create``: make the row of the directory if it is missing."""

    def in_use(self, prefix: str) -> Statement:
        """Ask for the names of directories that have records of sessions that run, or of none."""
        return Statement(
            f"{self.PRIMARY}SELECT DISTINCT d.name FROM {DIRECTORIES} d"
            f" JOIN {RECORDS} r ON r.directory = d.id LEFT JOIN {SESSIONS} s ON s.id = r.session"
            f" WHERE substr(d.name, 1, {len(prefix)}) = %(prefix)s"
            f" AND (r.session IS NULL OR s.expires_at > {self.now})",
            {"prefix": prefix},
        )

    def _conditions(self, edit: Edit, directory: str, revision: str) -> str:
        """Return what must be true; the arguments are the id and the revision of the directory."""
        found = f"EXISTS (SELECT 1 FROM {RECORDS} o WHERE o.directory = {directory}"
        texts = ["1 = 1"]
        for number, condition in enumerate(edit.conditions):
            same = f"%(revision{number})s"
            if isinstance(condition, Absent):
                texts.append(f"NOT {found} AND o.name = %(other{number})s)")
            elif isinstance(condition, Exists):
                exactly = "" if condition.revision is None else f" AND o.revision = {same}"
                texts.append(f"{found} AND o.name = %(other{number})s{exactly})")
            else:
                texts.append(f"{revision} = {same}")
        return " AND ".join(texts)

    # Sessions

    def open_session(self, session: str, seconds: float) -> Statement:
        """Insert a session; doing it again does no harm."""
        return Statement(
            f"INSERT INTO {SESSIONS} (id, duration, expires_at)"
            f" VALUES (%(session)s, %(duration)s, {self.now} + %(duration)s)"
            f" {self.ON_CONFLICT.format('id')}",
            {
                "session": session,
                "duration": math.ceil(min(seconds, LONGEST) * 1_000_000) + _ROUNDED,
            },
        )

    def renew(self, sessions: Sequence[str]) -> Statement:
        """Let those sessions run anew that have not ended."""
        return Statement(
            f"UPDATE {SESSIONS} SET expires_at = {self.now} + duration"
            f" WHERE {in_list('id', 'session', sessions)} AND expires_at > {self.now}",
            named_values("session", sessions),
        )

    def there(self, sessions: Sequence[str], records: Sequence[Address]) -> Statement:
        """Ask which of the sessions run, and which of the records are there, and perhaps more.

        Rows are two texts: a session and an empty one, or a directory and a key.
        """
        alive = f"s.expires_at > {self.now}"
        parts, params = [], named_values("session", sessions)
        if sessions:
            parts.append(
                f"SELECT s.id, '' FROM {SESSIONS} s WHERE {in_list('s.id', 'session', sessions)}"
                f" AND {alive}"
            )
        if records:
            directories = sorted({directory for directory, _ in records})
            keys = sorted({key for _, key in records})
            params |= {**named_values("directory", directories), **named_values("key", keys)}
            parts.append(
                f"SELECT d.name, r.name FROM {DIRECTORIES} d JOIN {RECORDS} r ON r.directory = d.id"
                f" LEFT JOIN {SESSIONS} s ON s.id = r.session"
                f" WHERE {in_list('d.name', 'directory', directories)}"
                f" AND {in_list('r.name', 'key', keys)} AND (r.session IS NULL OR {alive})"
            )
        return Statement(" UNION ALL ".join(parts), params)

    def renew_all(
        self, connection: Connection, sessions: Sequence[str], records: Sequence[Address]
    ) -> list[tuple[str, str]]:
        """Renew, and then ask for what is there(), in one packet."""
        asked = self.there(sessions, records)
        text = f"{self.renew(sessions).sql}; " if sessions else self.PRIMARY
        return connection.ask(asked._replace(sql=text + asked.sql)).rows

    @abstractmethod
    def end(self, connection: Connection, sessions: Sequence[str], *, expired: bool) -> None:
        """Delete sessions with their records, and touch the directories of these.

        ``expired``: only those whose time is over. That is decided under the lock of the row, so
        a renewal comes before or after it.
        """

    def _ending(self, sessions: Sequence[str], *, expired: bool) -> list[str]:
        """Return the statements of end(), in their order."""
        over = f" AND expires_at <= {self.now}" if expired else ""
        some = in_list("id", "session", sessions)
        gone = (
            f"{in_list('session', 'session', sessions)}"
            f" AND session NOT IN (SELECT id FROM {SESSIONS} WHERE {some})"
        )
        return [
            f"DELETE FROM {SESSIONS} WHERE {some}{over}",
            self._touch(f"SELECT DISTINCT directory FROM {RECORDS} WHERE {gone}"),
            f"DELETE FROM {RECORDS} WHERE {gone}",
        ]

    def _touch(self, directories: str) -> str:
        return f"UPDATE {DIRECTORIES} SET revision = {self.next} WHERE id IN ({directories})"

    # Looking for changes

    def look(self, directories: Sequence[str]) -> Statement:
        """Ask for name, revision, and the microseconds until the first session ends, if any."""
        first = (
            f"SELECT MIN(s.expires_at) FROM {RECORDS} r JOIN {SESSIONS} s ON s.id = r.session"
            " WHERE r.directory = d.id"
        )
        return Statement(
            f"SELECT d.name, d.revision, ({first}) - {self.now} FROM {DIRECTORIES} d"
            f" WHERE {in_list('d.name', 'directory', directories)}",
            named_values("directory", directories),
        )

    def look_at_records(self, addresses: Collection[Address]) -> Statement:
        """Ask for directory, key and revision of these records, and perhaps of more."""
        directories = sorted({directory for directory, _ in addresses})
        keys = sorted({key for _, key in addresses})
        return Statement(
            f"SELECT d.name, r.name, r.revision FROM {DIRECTORIES} d"
            f" JOIN {RECORDS} r ON r.directory = d.id"
            f" WHERE {in_list('d.name', 'directory', directories)}"
            f" AND {in_list('r.name', 'key', keys)}",
            {**named_values("directory", directories), **named_values("key", keys)},
        )

    # Sweeping

    def ended(self, size: int) -> Statement:
        """Ask for some sessions whose time is over."""
        return Statement(f"SELECT id FROM {SESSIONS} WHERE expires_at <= {self.now} LIMIT {size}")

    def empty(self, after: int, size: int, newest: int) -> Statement:
        """Ask for the first ids after ``after`` of directories without records.

        Those whose revision is greater than ``newest`` are left out.
        """
        return Statement(
            f"SELECT id FROM {DIRECTORIES} WHERE id > %(after)s AND {self._empty}"
            f" ORDER BY id LIMIT {size}",
            {"after": after, "newest": newest},
        )

    def remove_empty(self, ids: Sequence[int], newest: int) -> Statement:
        """Remove those of the directories that empty() would name."""
        return Statement(
            f"DELETE FROM {DIRECTORIES} WHERE {in_list('id', 'id', ids)} AND {self._empty}",
            {**named_values("id", ids), "newest": newest},
        )

    @property
    def _empty(self) -> str:
        return (
            f"revision <= %(newest)s AND NOT EXISTS (SELECT 1 FROM {RECORDS} r"
            f" WHERE r.directory = {DIRECTORIES}.id)"
        )

    def server_time(self) -> Statement:
        """Ask for the server's time in microseconds since 1970."""
        return Statement(f"SELECT {self.now}")


class MySQLRecords(RecordSQL):
    """MariaDB and MySQL. What one statement finds out is passed to the next in user variables.

    If Galera finds that another node has changed the same rows, the COMMIT fails. What is decided
    on is therefore always changed, too: FOR UPDATE is known to one node only.
    """

    PRIMARY: ClassVar[str] = "DO 0; "
    ON_CONFLICT: ClassVar[str] = "ON DUPLICATE KEY UPDATE {0} = {0}"

    def apply(self, connection: Connection, edit: Edit, *, create: bool) -> Verdict:
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
            f"UPDATE {DIRECTORIES} SET revision = @distlock_new"
            " WHERE @distlock_new IS NOT NULL AND id = @distlock_id",
            *self._changes(edit),
        ]
        stale = self._stale.format("@distlock_id")
        verdict = (
            "SELECT @distlock_new, @distlock_id IS NOT NULL, @distlock_held,"
            f" IF(@distlock_new IS NULL, {stale}, 0)"
        )
        sql = f"{_in_transaction(statements)}; {verdict}"
        revision, found, held, stale = connection.ask(Statement(sql, edit.params())).rows[-1]
        new = None if revision is None else int(revision)
        return Verdict(new, bool(found), bool(held), bool(stale))

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
                f"DELETE FROM {RECORDS} WHERE @distlock_new IS NOT NULL"
                f" AND directory = @distlock_id AND {in_list('name', 'deleted', edit.deleted)}"
            )
        if edit.puts:
            values = " UNION ALL ".join(
                f"SELECT %(key{n})s AS name, %(value{n})s AS value, %(bound{n})s AS session"
                for n in range(len(edit.puts))
            )
            new = ""
            if edit.renewed:
                some = in_list("VALUES(name)", "renewed", edit.renewed)
                new = f"created = IF({some}, VALUES(created), created), "
            statements.append(
                f"INSERT INTO {RECORDS} (directory, name, value, created, revision, session)"
                " SELECT @distlock_id, p.name, p.value, @distlock_new, @distlock_new, p.session"
                f" FROM ({values}) p WHERE @distlock_new IS NOT NULL ON DUPLICATE KEY UPDATE {new}"
                "value = VALUES(value), revision = VALUES(revision), session = VALUES(session)"
            )
        return statements

    def end(self, connection: Connection, sessions: Sequence[str], *, expired: bool) -> None:
        """See RecordSQL.end()."""
        sql = _in_transaction(self._ending(sessions, expired=expired))
        connection.ask(Statement(sql, named_values("session", sessions)))

    def _touch(self, directories: str) -> str:
        # Joined: for IN with a subquery the server would lock one row after the other to look.
        return (
            f"UPDATE {DIRECTORIES} d JOIN ({directories}) touched ON touched.directory = d.id"
            f" SET d.revision = {self.next}"
        )


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

    def apply(self, connection: Connection, edit: Edit, *, create: bool) -> Verdict:
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
            f" ELSE {self._stale.format('(SELECT id FROM directory)')} END"
        )
        statements = [lock, f"WITH {', '.join(parts)} {verdict}"]
        if create:
            statements.insert(0, self._create)
        answer = connection.ask(Statement("; ".join(statements), edit.params()))
        return Verdict._make(answer.rows[-1])

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
            parts.append(
                f"deleted AS (DELETE FROM {RECORDS} r USING changed WHERE r.directory = changed.id"
                f" AND {in_list('r.name', 'deleted', edit.deleted)})"
            )
        if edit.puts:
            values = ", ".join(
                f"(%(key{n})s, %(value{n})s, %(bound{n})s::varchar)" for n in range(len(edit.puts))
            )
            new = ""
            if edit.renewed:
                some = in_list("EXCLUDED.name", "renewed", edit.renewed)
                new = f"created = CASE WHEN {some} THEN EXCLUDED.created ELSE r.created END, "
            parts.append(
                f"put AS (INSERT INTO {RECORDS} AS r"
                " (directory, name, value, created, revision, session)"
                " SELECT changed.id, p.name, p.value, changed.revision, changed.revision, p.session"
                f" FROM changed, (VALUES {values}) p (name, value, session)"
                f" ON CONFLICT (directory, name) DO UPDATE SET {new}value = EXCLUDED.value,"
                " revision = EXCLUDED.revision, session = EXCLUDED.session)"
            )
        return parts

    def end(self, connection: Connection, sessions: Sequence[str], *, expired: bool) -> None:
        """See RecordSQL.end()."""
        sql = "; ".join(self._ending(sessions, expired=expired))
        connection.ask(Statement(sql, named_values("session", sessions)))


class SQLiteRecords(RecordSQL):
    """SQLite: transactions of this process, which keep all others from writing."""

    GREATEST: ClassVar[str] = "max"

    def apply(self, connection: Connection, edit: Edit, *, create: bool) -> Verdict:
        """See RecordSQL.apply()."""
        params, ask = edit.params(), connection.ask
        with transaction(connection):
            if create:
                ask(Statement(self._create, params))
            held = self._conditions(edit, "d.id", "d.revision")
            alive = f"SELECT COUNT(*) FROM {SESSIONS} WHERE expires_at > {self.now}"
            if edit.sessions:
                alive += f" AND {in_list('id', 'session', edit.sessions)}"
            else:
                alive = "SELECT 0"
            look = (
                f"SELECT d.id, {self.next}, {held}, ({alive}), {self._stale.format('d.id')}"
                f" FROM {DIRECTORIES} d WHERE d.name = %(directory)s"
            )
            rows = ask(Statement(look, params)).rows
            if not rows:
                return Verdict(None, found=False)
            ((directory, revision, is_held, living, stale),) = rows
            if not is_held or living != len(edit.sessions):
                return Verdict(None, held=bool(is_held), stale=bool(stale))
            params |= {"id": directory, "new": revision}
            ask(Statement(f"UPDATE {DIRECTORIES} SET revision = %(new)s WHERE id = %(id)s", params))
            for statement in self._changes(edit):
                ask(Statement(statement, params))
            return Verdict(int(revision))

    def _changes(self, edit: Edit) -> list[str]:
        statements = []
        if removed := [*edit.deleted, *edit.renewed]:
            names = [f"%(deleted{n})s" for n in range(len(edit.deleted))]
            names += [f"%(renewed{n})s" for n in range(len(edit.renewed))]
            assert len(names) == len(removed)
            statements.append(
                f"DELETE FROM {RECORDS} WHERE directory = %(id)s AND name IN ({', '.join(names)})"
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

    def renew_all(
        self, connection: Connection, sessions: Sequence[str], records: Sequence[Address]
    ) -> list[tuple[str, str]]:
        """See RecordSQL.renew_all()."""
        if sessions:
            connection.ask(self.renew(sessions))
        return connection.ask(self.there(sessions, records)).rows

    def end(self, connection: Connection, sessions: Sequence[str], *, expired: bool) -> None:
        """See RecordSQL.end()."""
        with transaction(connection):
            for statement in self._ending(sessions, expired=expired):
                connection.ask(Statement(statement, named_values("session", sessions)))


_KINDS: dict[str, type[RecordSQL]] = {
    "mysql": MySQLRecords,
    "postgresql": PostgreSQLRecords,
    "sqlite": SQLiteRecords,
}


def record_sql_for(vendor: str) -> RecordSQL:
    """Return the statements for an engine, by its vendor's name in Django."""
    return _KINDS[vendor](vendor)
