"""MySQL's and MariaDB's named locks, https://mariadb.com/kb/en/get_lock/."""

from __future__ import annotations

from collections.abc import Collection

from distlock.backends.database.queue.advisory_locks import AdvisoryLocks, digest
from distlock.backends.database.statements import Result, Statement

#: Seconds. A wait without end is an error in MariaDB, and this is one for people.
_FOR_EVER = 365 * 24 * 3600

#: Seconds between two looks at those who wait: longer than one of them needs for a statement.
_BETWEEN = 0.004

#: A name has 64 characters at the most.
_DIGITS = 60


class MySQL(AdvisoryLocks):
    """``GET_LOCK``. Its names are shared by all databases of a server, hence the digest of both."""

    def key(self, database: str, name: str) -> str:
        return f"'dl:{digest(database, name).hex()[:_DIGITS]}'"

    def set_up(self) -> Statement:
        # Only MariaDB limits these statements, and reads this comment.
        return Statement(
            "SET @distlock = 1 /*M!, max_statement_time = 0 */; SELECT CONNECTION_ID()"
        )

    def is_free(self, key: str) -> str:
        return f"IS_FREE_LOCK({key}) = 1"

    def enter(self, key: str) -> str:
        return f"SELECT GET_LOCK({key}, {_FOR_EVER})"

    def entered(self, answer: Result) -> bool:
        # NULL when it was called out: an answer, and no error.
        return [str(got) for (got,) in answer.rows] == ["1"]

    def has_entered(self, key: str) -> Statement:
        return Statement(f"SELECT COALESCE(IS_USED_LOCK({key}) = CONNECTION_ID(), 0)")

    def leave(self, key: str) -> str:
        return f"DO RELEASE_LOCK({key})"

    def cancel(self, ident: int) -> Statement:
        return Statement(f"KILL QUERY {ident:d}")

    def look(self, table: str, names: Collection[str]) -> Statement:
        marks = ", ".join(["%s"] * len(names))
        return Statement(
            "SELECT `lock`, owner, token,"
            " TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), expires_at) / 1000000"
            f" FROM {table} WHERE `lock` IN ({marks})",
            tuple(names),
        )

    def signed(self, mark: str, first: str) -> Statement:
        # Without the privilege PROCESS a user is shown its own sessions. MariaDB reads the comment.
        look = (
            "SELECT id, info, /*M! time_ms / 1000 + 0 * */ time AS age"
            " FROM information_schema.processlist WHERE LEFT(info, %(length)s) = %(mark)s"
        )
        # Two looks: who is first may be between two statements at one of them. How long it waits
        # is right to one pause of it.
        return Statement(
            f"SELECT MAX(info), MAX(age) AS oldest FROM ({look}"
            f" UNION ALL SELECT 0, NULL, SLEEP({_BETWEEN}) UNION ALL {look}) seen"
            " GROUP BY id HAVING MAX(info) <> '' ORDER BY oldest DESC, id",
            {"mark": mark, "length": len(mark)},
        )

    def sleep(self, seconds: float) -> str:
        return f"DO SLEEP({seconds:.3f})"

    def sessions(self, idents: Collection[int]) -> Statement:
        marks = ", ".join(["%s"] * len(idents))
        return Statement(
            f"SELECT id, 0, 0 FROM information_schema.processlist WHERE id IN ({marks})"
            " AND command NOT IN ('Sleep', 'Killed')",
            tuple(idents),
        )
