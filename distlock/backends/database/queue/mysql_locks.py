"""MySQL's and MariaDB's named locks, https://mariadb.com/kb/en/get_lock/."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from distlock.backends.database.queue.advisory_locks import AdvisoryLocks, digest
from distlock.backends.database.statements import Result, Statement

#: Seconds between two looks at those who wait: longer than one of them needs for a statement.
_BETWEEN = 0.004

#: A name has 64 characters at the most.
_DIGITS = 60


class MySQLLocks(AdvisoryLocks):
    """``GET_LOCK``. Its names are shared by all databases of a server, hence the digest of both."""

    # A year. A wait without end is an error in MariaDB, and a waiting session costs nothing.
    longest_wait: ClassVar[float] = 365 * 24 * 3600.0

    def key(self, database: str, name: str) -> str:
        return f"'dl:{digest(database, name).hex()[:_DIGITS]}'"

    def set_up(self) -> Statement:
        # Only MariaDB limits these statements, and reads this comment.
        return Statement(
            "SET @distlock = 1 /*M!, max_statement_time = 0 */; SELECT CONNECTION_ID()"
        )

    def nobody_waits(self, key: str) -> tuple[str, Mapping[str, Any]]:
        return f"IS_FREE_LOCK({key}) = 1", {}

    def wait(self, key: str, seconds: float) -> str:
        return f"SELECT GET_LOCK({key}, {seconds:.0f})"

    def got(self, answer: Result) -> bool:
        # 0 after the time is over; NULL when it was cancelled: an answer, and no error.
        return [str(got) for (got,) in answer.rows] == ["1"]

    def has(self, key: str) -> Statement:
        return Statement(f"SELECT COALESCE(IS_USED_LOCK({key}) = CONNECTION_ID(), 0)")

    def leave(self, key: str) -> str:
        return f"DO RELEASE_LOCK({key})"

    def cancel(self, ident: int) -> Statement:
        return Statement(f"KILL QUERY {ident:d}")

    def sleep(self, seconds: float) -> str:
        return f"DO SLEEP({seconds:.3f})"

    def free_and_leave(self, key: str, free: Statement) -> Statement:
        return free._replace(sql=f"{free.sql}; {self.leave(key)}")

    def look(self, table: str, names: Collection[str]) -> Statement:
        marks = ", ".join(["%s"] * len(names))
        return Statement(
            "SELECT `lock`, owner, token,"
            " TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), expires_at) / 1000000"
            f" FROM {table} WHERE `lock` IN ({marks})",
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
        )
        # Two looks: a head may be between two statements at one of them. How long it waits is
        # right to one pause of it.
        return Statement(
            f"SELECT MAX(info), MAX(age) AS oldest FROM ({look}"
            f" UNION ALL SELECT 0, NULL, SLEEP({_BETWEEN}) UNION ALL {look}) seen"
            " GROUP BY id HAVING MAX(info) <> '' ORDER BY oldest DESC, id",
            {"mark": mark, "length": len(mark)},
        )
