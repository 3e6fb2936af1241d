"""MySQL and MariaDB: their words for statements about locks, and their own, native locks."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from distlock.backends.database.advisory_locks import AdvisoryLocks, digest
from distlock.backends.database.sql import TABLE, Dialect, row_columns, update
from distlock.backends.database.statements import Statement
from distlock.types.lease import Lease

_NOW = "UTC_TIMESTAMP(6)"
_LATER = f"{_NOW} + INTERVAL {{0}} MICROSECOND"
_MICROSECONDS = f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {_NOW})"

# Assignments are made from left to right, and later ones see what earlier ones have assigned. The
# assignment to nonce decides, and the others test nonce. owner and expires_at come last, because
# the decision reads them. https://dev.mysql.com/doc/refman/8.4/en/update.html
# Where SQL_MODE has them made all at once, the nonce is ours and the owner is not: see _VERDICT.
_MINE = "nonce = VALUES(nonce)"
_ACQUIRE = f"""
INSERT INTO {TABLE}
    (`lock`, description, owner, nonce, host, process, thread, lease, renews, token, acquired_at,
     expires_at)
VALUES
    (%(lock)s, %(description)s, %(owner)s, %(nonce)s, %(host)s, %(process)s, %(thread)s,
     %(lease)s, %(renews)s,
     {_MICROSECONDS}, {_NOW}, {_LATER.format("%(duration)s")})
ON DUPLICATE KEY UPDATE
    nonce = IF((owner = '' OR owner = VALUES(owner) OR expires_at <= {_NOW}) AND {{condition}},
               VALUES(nonce), nonce),
    token = IF({_MINE}, GREATEST(token + 1, {_MICROSECONDS}), token),
    description = IF({_MINE}, VALUES(description), description),
    host = IF({_MINE}, VALUES(host), host),
    process = IF({_MINE}, VALUES(process), process),
    thread = IF({_MINE}, VALUES(thread), thread),
    lease = IF({_MINE}, VALUES(lease), lease),
    renews = IF({_MINE}, VALUES(renews), renews),
    acquired_at = IF({_MINE}, {_NOW}, acquired_at),
    owner = IF({_MINE}, VALUES(owner), owner),
    expires_at = IF({_MINE}, {_LATER.format("%(duration)s")}, expires_at)
"""


# Its verdict is the number of rows that it matched: with and without CLIENT_FOUND_ROWS that is one
# or none, because the token of a row that it matched always changes. Its token is what
# LAST_INSERT_ID(expr) was given, which the OK packet carries, so that nothing has to be read.
# https://dev.mysql.com/doc/refman/8.4/en/information-functions.html
# Where Galera runs it again after it lost against another node, there is one OK packet, of the last
# time.
_ACQUIRE_EXISTING = update(
    _NOW, _LATER, f"LAST_INSERT_ID(GREATEST(token + 1, {_MICROSECONDS}))", lock="`lock`"
)

_VERDICT = f"IF(owner = %(owner)s, nonce, '') AS nonce, token, {row_columns('`lock`', _NOW)}"


class MySQL(Dialect):
    """MySQL, which has to be asked for the row after it was written, in the same packet.

    ``UTC_TIMESTAMP(6)`` is the time at which the statement began, in every session alike. If a
    statement waited for a row, it may see an ended lease as running, never the reverse; and what it
    grants is counted from when it was sent.
    """

    LOCK: ClassVar[str] = "`lock`"
    HELD: ClassVar[str] = ""
    NOW: ClassVar[str] = _NOW
    LATER: ClassVar[str] = _LATER
    MICROSECONDS: ClassVar[str] = _MICROSECONDS
    EARLIER: ClassVar[str] = f"{_NOW} - INTERVAL {{0}} MICROSECOND"
    ACQUIRE: ClassVar[str] = f"{_ACQUIRE}; SELECT {_VERDICT} FROM {TABLE} WHERE `lock` = %(lock)s"
    ACQUIRE_EXISTING: ClassVar[str] = _ACQUIRE_EXISTING

    def ends_within(self, seconds: str) -> str:
        # Its other form, a time of each row's own, takes twice as long.
        return f"TIMESTAMPDIFF(MICROSECOND, {_NOW}, expires_at) <= ({seconds}) * 1000000"

    def guard(self, lease: Lease, table: str = TABLE) -> Statement:
        # Galera compares what transactions at different nodes have changed, not what they have
        # locked: the row must be another afterwards.
        where, params = self.where_held([lease])
        later = "expires_at + INTERVAL 1 MICROSECOND"
        return Statement(f"UPDATE {table} SET expires_at = {later} WHERE {where}", params)


class MariaDB(MySQL):
    """MariaDB, which returns the row that it wrote."""

    # MySQL takes nothing but user variables as parameters.
    # https://mariadb.com/kb/en/execute-statement/
    prepares: ClassVar[bool] = True
    ACQUIRE: ClassVar[str] = f"{_ACQUIRE} RETURNING {_VERDICT}"


#: Seconds between two looks at those who wait: longer than one of them needs for a statement.
_SECOND_LOOK_AFTER = 0.004

#: The name of a native lock has 64 characters at the most.
_KEY_DIGITS = 60


class MySQLLocks(AdvisoryLocks):
    """Named locks, https://mariadb.com/kb/en/get_lock/.

    Their names are shared by all databases of a server, hence the digest of both names. The
    namespace is what the server calls the database.
    """

    # A year. A wait without end is an error in MariaDB, and a waiting session costs nothing.
    longest_wait: ClassVar[float] = 365 * 24 * 3600.0
    nobody_waits: ClassVar[str] = "IS_FREE_LOCK(%(native_lock)s) = 1"

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - there is one object for each engine
    def key(self, namespace: str, name: str) -> str:
        return f"'dl:{digest(namespace, name).hex()[:_KEY_DIGITS]}'"

    def set_up(self) -> Statement:
        # Nothing may limit the wait. MariaDB reads the first comment, MySQL the second one.
        return Statement(
            "SET @distlock = 1 /*M!, max_statement_time = 0 */"
            " /*!50708 , max_execution_time = 0 */; SELECT CONNECTION_ID()"
        )

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

    def look(self, names: Collection[str]) -> Statement:
        marks = ", ".join(["%s"] * len(names))
        return Statement(
            "SELECT `lock`, owner, token,"
            " TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), expires_at) / 1000000"
            f" FROM {TABLE} WHERE `lock` IN ({marks})",
            tuple(names),
        )

    def sessions(self, idents: Collection[int]) -> Statement:
        marks = ", ".join(["%s"] * len(idents))
        return Statement(
            f"SELECT id, 0 FROM information_schema.processlist WHERE id IN ({marks})"
            " AND command NOT IN ('Sleep', 'Killed')",
            tuple(idents),
        )

    def comments(self, mark: str, first: str) -> Statement:
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
            {"mark": mark, "length": len(mark)},
        )
