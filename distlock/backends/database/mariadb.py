"""MySQL and MariaDB: their words for statements about locks and records, and their native locks."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

from distlock.backends.database.advisory_locks import MARK, AdvisoryLocks, digest, listener_locks
from distlock.backends.database.connection import Connection, DatabaseSession, at_most
from distlock.backends.database.errors import StatementFailed
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
from distlock.backends.database.statements import Result, Statement, in_list, named_values
from distlock.backends.open_transactions import SEES_COMMITS
from distlock.backends.store import Address

_MINE = "nonce = VALUES(nonce)"


class MySQL(Dialect):
    """MySQL, which has to be asked for the row after it was written, in the same packet.

    ``UTC_TIMESTAMP(6)`` is the time at which the statement began, in every session alike. If a
    statement waited for a row, it may see an ended lease as running, never the reverse; and what it
    grants is counted from when it was sent.
    """

    LOCK: ClassVar[str] = "`lock`"
    HELD: ClassVar[str] = ""
    TABLE_AS_HELD: ClassVar[str] = TABLE
    NOW: ClassVar[str] = "UTC_TIMESTAMP(6)"
    LATER: ClassVar[str] = f"{NOW} + INTERVAL {{0}} MICROSECOND"
    EARLIER: ClassVar[str] = f"{NOW} - INTERVAL {{0}} MICROSECOND"
    MICROSECONDS: ClassVar[str] = f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {NOW})"
    # To look each row up in the order of the names takes twice as long.
    WHOLE: ClassVar[str] = " USE INDEX ()"
    # To compare the names themselves takes four times as long. Each number has 32 bits.
    GROUPED: ClassVar[str] = "MIN(host)"
    BY_HOST: ClassVar[str] = "CRC32(host), CRC32(REVERSE(host))"
    # Galera compares what transactions at different nodes have changed, not what they have locked:
    # the row must be another afterwards.
    GUARD: ClassVar[str] = "expires_at = expires_at + INTERVAL 1 MICROSECOND"

    def _write(self) -> str:
        # Assignments are made from left to right, and later ones see what earlier ones have
        # assigned. The assignment to nonce decides, and the others test nonce. owner and expires_at
        # come last, because the decision reads them.
        # https://dev.mysql.com/doc/refman/8.4/en/update.html
        # Where SQL_MODE has them made all at once, the nonce is ours and the owner is not: see
        # _verdict().
        copied = ("description", "host", "process", "thread", "lease", "renews")
        taken_over = ",\n    ".join(f"{one} = IF({_MINE}, VALUES({one}), {one})" for one in copied)
        return f"""{self._insert()}\
ON DUPLICATE KEY UPDATE
    nonce = IF((owner = '' OR owner = VALUES(owner) OR expires_at <= {self.NOW}) AND {{condition}},
               VALUES(nonce), nonce),
    token = IF({_MINE}, GREATEST(token + 1, {self.MICROSECONDS}), token),
    {taken_over},
    acquired_at = IF({_MINE}, {self.NOW}, acquired_at),
    owner = IF({_MINE}, VALUES(owner), owner),
    expires_at = IF({_MINE}, {self.LATER.format("%(duration)s")}, expires_at)
"""

    def _verdict(self) -> str:
        return f"IF(owner = %(owner)s, nonce, '') AS nonce, token, {self.columns}"

    def _upsert(self) -> str:
        return f"{self._write()}; SELECT {self._verdict()} FROM {TABLE} WHERE `lock` = %(lock)s"

    def _update_existing(self) -> str:
        # Its verdict is the number of rows that it matched: with and without CLIENT_FOUND_ROWS that
        # is one or none, because the token of a row that it matched always changes. Its token is
        # what LAST_INSERT_ID(expr) was given, which the OK packet carries, so that nothing has to
        # be read. https://dev.mysql.com/doc/refman/8.4/en/information-functions.html
        # Where Galera runs it again after it lost against another node, there is one OK packet, of
        # the last time.
        return self._update(f"LAST_INSERT_ID(GREATEST(token + 1, {self.MICROSECONDS}))")

    def ends_within(self, seconds: str) -> str:
        # Its other form, a time of each row's own, takes twice as long.
        return f"TIMESTAMPDIFF(MICROSECOND, {self.NOW}, expires_at) <= ({seconds}) * 1000000"


class MariaDB(MySQL):
    """MariaDB, which returns the row that it wrote."""

    def _upsert(self) -> str:
        return f"{self._write()} RETURNING {self._verdict()}"

    def reads_snapshot(self, connection: Any) -> bool:
        if connection.isolation_level in SEES_COMMITS:
            return False
        with connection.cursor() as cursor:
            # https://mariadb.com/kb/en/innodb-system-variables/#innodb_snapshot_isolation
            cursor.execute("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'")
            return ("innodb_snapshot_isolation", "ON") in cursor.fetchall()


MARIADB, MYSQL = MariaDB(), MySQL()


def dialect_for(wrapper: Any) -> MySQL:
    """Return how to speak on a Django connection that is open."""
    # Django has asked for the version while it connected.
    return MARIADB if wrapper.mysql_is_mariadb else MYSQL


#: Updates then count the rows that they matched, and a packet may have several statements, which
#: PyMySQL does not ask for by itself. MySQLdb.constants.CLIENT.FOUND_ROWS and MULTI_STATEMENTS
_CLIENT_FLAGS = 2 | 65536
# Both time limits are in seconds, see ROW_WAIT; the second one is for whole tables. The sql_mode is
# set because the statement that acquires a lock relies on assignments from left to right, which the
# mode ORACLE makes all at once, and on '', which other modes read as NULL.
_ONCE = (
    "SET autocommit = 1, time_zone = '+00:00', innodb_lock_wait_timeout = 1, lock_wait_timeout = 1,"
    " sql_mode = 'STRICT_TRANS_TABLES'; SHOW VARIABLES LIKE 'wsrep_on'"
)
# wsrep_retry_autocommit: the server must not run a statement again that lost against another node,
# because it would send the rows of both runs. wsrep_sync_wait: each statement sees what other nodes
# have committed before it. Sessions that wait for native locks leave SELECT out: a node that is cut
# off would fail their SELECT with the error of a locked row.
# https://mariadb.com/kb/en/galera-cluster-system-variables/
_GALERA = "SET SESSION wsrep_retry_autocommit = 0, SESSION wsrep_sync_wait = {0}"
_ALL, _NO_SELECT = 7, 6


def set_options(options: dict[str, Any], limit: float, timeout: float, blocking: bool) -> None:
    """Set the driver's options for a session; see open_session() for the arguments."""
    options.update(charset="utf8mb4", isolation_level="read committed")
    options["connect_timeout"] = at_most(options, "connect_timeout", limit)
    options["client_flag"] = options.get("client_flag", 0) | _CLIENT_FLAGS
    for option in ("read_timeout", "write_timeout"):
        # They end an answer that stalls halfway. For the usual time limit see MySQLConnection.
        if blocking:
            options.pop(option, None)
        else:
            options[option] = at_most(options, option, timeout + 1)


def set_up(session: DatabaseSession, limit: float, blocking: bool, pooled: bool | None) -> None:
    """Set in the server what the statements about locks rely on."""
    session.pooled = bool(pooled)
    if ("wsrep_on", "ON") in session.run(Statement(_ONCE), limit).rows:
        session.run(Statement(_GALERA.format(_NO_SELECT if blocking else _ALL)), limit)
    ((database,),) = session.run(Statement("SELECT DATABASE()"), limit).rows
    session.schema = session.namespace = database or ""


#: Seconds between two looks at those who wait: longer than one of them needs for a statement.
_SECOND_LOOK_AFTER = 0.004

#: The name of a native lock has 64 characters at most.
_KEY_DIGITS = 60


class MySQLLocks(AdvisoryLocks):
    """Named locks, https://mariadb.com/kb/en/get_lock/.

    Their names are shared by all databases of a server, hence the digest of both names. The
    namespace is what the server calls the database.
    """

    # A year. A wait without end is an error in MariaDB, and a waiting session costs nothing.
    longest_wait: ClassVar[float] = 365 * 24 * 3600.0
    nobody_waits: ClassVar[str] = "IS_FREE_LOCK(%(native_lock)s) = 1"
    lock: ClassVar[str] = MySQL.LOCK
    # Under Galera UTC_TIMESTAMP stands still in a packet of several statements. Without (6) SYSDATE
    # cuts off the fraction of the second.
    remaining: ClassVar[str] = "TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), expires_at) / 1000000"

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - there is one object for each engine
    def key(self, namespace: str, name: str) -> str:
        return f"'dl:{digest(namespace, name).hex()[:_KEY_DIGITS]}'"

    def set_up(self) -> Statement:
        # Nothing may limit the wait. MariaDB reads the first comment, MySQL the second one.
        return Statement(
            "SET @distlock = 1 /*M!, max_statement_time = 0 */"
            " /*!50708 , max_execution_time = 0 */; SELECT CONNECTION_ID()"
        )

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - as key()
    def values(self, key: str) -> Mapping[str, Any]:
        return {"native_lock": key.strip("'")}

    def wait(self, key: str, seconds: float) -> str:
        # 0 after the time is over; NULL when it was cancelled: an answer, and no error.
        return f"SELECT GET_LOCK({key}, {seconds:.0f})"

    def leave(self, key: str) -> str:
        return f"DO RELEASE_LOCK({key})"

    def cancel(self, ident: int) -> Statement:
        return Statement(f"KILL QUERY {ident:d}")

    def sleep(self, seconds: float) -> str:
        return f"DO SLEEP({seconds:.3f})"

    def free_and_leave(self, key: str, free: Statement) -> Statement:
        return free._replace(sql=f"{free.sql}; {self.leave(key)}", prepare=False)

    def sessions(self, idents: Collection[int]) -> Statement:
        marks = ", ".join(["%s"] * len(idents))
        return Statement(
            f"SELECT id, 0 FROM information_schema.processlist WHERE id IN ({marks})"
            " AND command NOT IN ('Sleep', 'Killed')",
            tuple(idents),
        )

    def comments(self) -> Statement:
        # Without the privilege PROCESS a user is shown its own sessions. MariaDB reads the comment.
        look = (
            "SELECT id, info, /*M! time_ms / 1000 + 0 * */ time AS age"
            " FROM information_schema.processlist WHERE LEFT(info, %(length)s) = %(mark)s"
            " AND db = DATABASE()"
        )
        # Two looks: a head may be between two statements at one of them. How long it waits is
        # right to one pause of it.
        return Statement(
            f"SELECT MAX(info), MAX(age) AS oldest FROM ({look}"
            f" UNION ALL SELECT 0, NULL, SLEEP({_SECOND_LOOK_AFTER}) UNION ALL {look}) seen"
            " GROUP BY id HAVING MAX(info) <> '' ORDER BY oldest DESC, id",
            {"mark": MARK, "length": len(MARK)},
        )


# Seconds after which MariaDB and MySQL end a session that is idle. It is set while a transaction is
# open: if a statement fails in the middle of a packet, the transaction would stay open, with its
# locks, for as long as its client is stopped.
_IDLE_IN_TRANSACTION = 2

# Whether a statement of apply() may write. When another node of a Galera cluster wins,
# MariaDB rolls the transaction back between two statements of the packet, carries out the next one
# by itself, and only then reports the deadlock. Only MariaDB reads the comment.
_MAY_WRITE = "@distlock_new IS NOT NULL /*M! AND @@in_transaction = 1 */"


# The first record of a prefix, whether its value begins as it has to, and a text with a mark for
# its name: a session may have any collation, and a variable that is NULL has none.
_FIRST = "@distlock_name, @distlock_value, @distlock_created, @distlock_revision"
_IS_FIRST = (
    " AND COALESCE(CAST(LEFT(@distlock_value, CHAR_LENGTH(%(before)s)) AS BINARY)"
    " = CAST(%(before)s AS BINARY), FALSE)"
)
_NAMED = (
    "REPLACE({0}, %(mark)s, CONVERT(SUBSTRING(@distlock_name, CHAR_LENGTH(%(begin)s) + 1)"
    " USING utf8mb4) COLLATE utf8mb4_bin)"
)


class MySQLRecords(RecordSQL):
    """MariaDB and MySQL. User variables pass results from one statement to the next.

    If Galera finds that another node has changed the same rows, the COMMIT fails. A row on which a
    decision depends is therefore always changed, too: FOR UPDATE is known to one node only.
    """

    PRIMARY: ClassVar[str] = "DO 0; "
    LISTENS: ClassVar[str] = "KILL"
    CHANNELS: ClassVar[int] = 2**32
    HAS: ClassVar[str] = (
        "INSTR(LOWER(r.value), %(text)s) > 0 OR INSTR(r.value, %(escape)s) > 0"
        " OR LENGTH(r.value) <> CHAR_LENGTH(r.value)"
    )
    ON_CONFLICT: ClassVar[str] = "ON DUPLICATE KEY UPDATE {0} = {0}"
    # A single EXISTS becomes a semi-join that reads all records of each directory.
    # https://mariadb.com/kb/en/semi-join-subquery-optimizations/
    IN_USE: ClassVar[str] = (
        f"(EXISTS (SELECT 1 FROM {RECORDS} r WHERE r.directory = d.id AND r.session IS NULL)"
        f" OR EXISTS (SELECT 1 FROM {RECORDS} r JOIN {SESSIONS} s ON s.id = r.session"
        " WHERE r.directory = d.id AND s.{0}))"
    )

    def apply(self, connection: Connection, edit: Edit, *, create: bool) -> ApplyResult:
        """See RecordSQL.apply()."""
        channels = [self.channel_of(edit.directory, key) for key in (None, *edit.keys)]
        listeners = list(chain(*[listener_locks(connection.namespace, one) for one in channels]))
        params = edit.params() | named_values("listener", listeners)
        answer = _in_transaction(connection, self._packet(edit, create=create), params)
        revision, found, held, stale, heard, *moved = answer.rows[-1]
        new = None if revision is None else int(revision)
        told = [listeners[int(number)] for number in heard.split(",")] if heard else ()
        return ApplyResult(new, bool(found), bool(held), bool(stale), told, moved)

    @by_shape
    def _packet(self, edit: Edit, *, create: bool) -> str:
        statements = [self._create] if create else []
        first, is_first, moved = list[str](), "", ""
        if edit.move is not None:
            these = self.FIRST.format("@distlock_id")
            first = [
                f"SET {_FIRST.replace(',', ' = NULL,')} = NULL",
                f"SELECT r.name, r.value, r.created, r.revision INTO {_FIRST} {these}",
            ]
            is_first, moved = _IS_FIRST, f", {_FIRST}"
        statements += [
            "SELECT MAX(id), MAX(revision) INTO @distlock_id, @distlock_old"
            f" FROM {DIRECTORIES} WHERE name = %(directory)s FOR UPDATE",
            *first,
            "SET @distlock_held = @distlock_id IS NOT NULL AND "
            + self._conditions(edit, "@distlock_id", "@distlock_old")
            + is_first,
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
            f" IF(@distlock_new IS NULL, {stale}, 0), {self._heard(edit)}{moved}"
        )
        return _transaction(statements, verdict)

    def _heard(self, edit: Edit) -> str:
        """Ask for the numbers of the listener locks that somebody has.

        It is after the commit: who takes one later looks after that, and sees the change.
        """
        number = "IF(IS_USED_LOCK(%(listener{0})s), '{0}', NULL)"
        count = len(listener_locks("", "")) * (len(edit.keys) + 1)
        numbers = ", ".join(map(number.format, range(count)))
        return f"IF(@distlock_new IS NULL, '', CONCAT_WS(',', {numbers}))"

    def _alive(self, edit: Edit) -> list[str]:
        if not edit.sessions:
            return ["SET @distlock_alive = 0"]
        return [
            # By the microsecond it is another row afterwards, see guard() of the locks.
            f"UPDATE {SESSIONS} SET expires_at = expires_at + 1 WHERE @distlock_held"
            f" AND {in_list('id', 'session', edit.sessions)} AND {self.sessions.runs}",
            "SET @distlock_alive = ROW_COUNT()",
        ]

    def _changes(self, edit: Edit) -> list[str]:
        statements, put = [], "p.name, p.value"
        if edit.move is not None:
            put = f"{_NAMED.format('p.name')}, {_NAMED.format('p.value')}"
            statements.append(
                f"UPDATE {RECORDS} SET name = {_NAMED.format('%(moved)s')}, value ="
                " CONCAT(%(after)s, SUBSTRING(@distlock_value, CHAR_LENGTH(%(before)s) + 1)),"
                f" created = @distlock_new, revision = @distlock_new WHERE {_MAY_WRITE}"
                " AND directory = @distlock_id AND name = @distlock_name"
            )
        if edit.deleted:
            statements.append(
                f"DELETE FROM {RECORDS} WHERE {_MAY_WRITE}"
                f" AND directory = @distlock_id AND {in_list('name', 'deleted', edit.deleted)}"
            )
        if edit.puts:
            row = "SELECT %(key{0})s AS name, %(value{0})s AS value, %(bound{0})s AS session"
            values = " UNION ALL ".join(map(row.format, range(len(edit.puts))))
            statements.append(
                f"{self.PUT} SELECT @distlock_id, {put}, @distlock_new, @distlock_new,"
                f" p.session FROM ({values}) p WHERE {_MAY_WRITE} ON DUPLICATE KEY UPDATE"
                " value = VALUES(value), revision = VALUES(revision), session = VALUES(session)"
            )
        return statements

    def end(
        self, connection: Connection, sessions: Sequence[str], *, expired: bool
    ) -> Sequence[Address]:
        """See RecordSQL.end()."""
        statements = self._ending(sessions, expired=expired)
        _in_transaction(connection, _transaction(statements), named_values("session", sessions))
        return []

    def _touch(self, directories: str) -> str:
        # Joined: for IN with a subquery the server would lock one row after the other to look.
        return (
            f"UPDATE {DIRECTORIES} d JOIN ({directories}) touched ON touched.directory = d.id"
            f" SET d.revision = {self.next}"
        )


def _transaction(statements: Sequence[str], *after: str) -> str:
    """Return a packet that is a transaction, and what comes after it."""
    begin = f"SET @distlock_wait = @@wait_timeout, wait_timeout = {_IDLE_IN_TRANSACTION}"
    end = "SET wait_timeout = @distlock_wait"
    return "; ".join([begin, "START TRANSACTION", *statements, "COMMIT", end, *after])


def _in_transaction(connection: Connection, sql: str, params: Mapping[str, Any]) -> Result:
    """Run a packet that is a transaction.

    It is left open if one of its statements fails. The pool then closes the session, and with that
    the server rolls back.
    """
    try:
        return connection.ask(Statement(sql, params))
    except StatementFailed:
        connection.usable = False
        raise
