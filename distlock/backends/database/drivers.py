"""Packets sent past a driver's cursors, which do more work than the server for a short statement.

Whoever has waited for a lock lets the next one wait for all that happens until it is freed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from distlock.backends.database.statements import Result, Statement


class RawConnection(ABC):
    """A connection of a driver, spoken to directly. It raises the driver's own errors."""

    @abstractmethod
    def exchange(self, statement: Statement) -> list[Result]:
        """Run the statements of one packet.

        Their parameters are named, and are str, int, float or bool. Returns an answer to each, or
        to the last one only. Values may come as text.
        """

    @abstractmethod
    def literal(self, value: Any) -> str:
        """Return a value as SQL."""

    def _filled_in(self, statement: Statement) -> bytes:
        literals = {name: self.literal(value) for name, value in statement.named.items()}
        return (statement.sql % literals).encode()


class Psycopg(RawConnection):
    """psycopg 3, https://www.psycopg.org/psycopg3/docs/api/pq.html. Waits without Python's lock."""

    def __init__(self, connection: Any) -> None:
        from psycopg import OperationalError, errors, pq

        self._pgconn = connection.pgconn
        self._escape = pq.Escaping(self._pgconn).escape_literal
        self._error, self._gone = errors.error_from_result, OperationalError
        self._broken = pq.ConnStatus.BAD
        self._good = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}

    def exchange(self, statement: Statement) -> list[Result]:
        """See RawConnection.exchange()."""
        result = self._pgconn.exec_(self._filled_in(statement))
        if result.status not in self._good:
            error = self._error(result)
            # What the library says of a connection that broke has no code from the server.
            raise self._gone(str(error)) if self._pgconn.status == self._broken else error
        rows = [
            tuple(_text(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]
        return [Result(rows, result.command_tuples or 0)]

    def literal(self, value: Any) -> str:
        """See RawConnection.literal()."""
        if isinstance(value, (int, float)):
            return str(value)
        return bytes(self._escape(value.encode())).decode()


class MySQLClient(RawConnection):
    """mysqlclient, https://mysqlclient.readthedocs.io/user_guide.html#mysql-c-api-translation."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def exchange(self, statement: Statement) -> list[Result]:
        """See RawConnection.exchange()."""
        connection = self._connection
        connection.query(self._filled_in(statement))
        answers = []
        while True:
            result = connection.store_result()
            rows = list(result.fetch_row(0)) if result else []
            answers.append(Result(rows, connection.affected_rows()))
            if connection.next_result():
                return answers

    def literal(self, value: Any) -> str:
        """See RawConnection.literal()."""
        if isinstance(value, (int, float)):
            return str(value)
        literal: bytes = self._connection.string_literal(value.encode())
        return literal.decode()


def raw_connection_for(wrapper: Any) -> RawConnection | None:
    """Return the wire of a Django connection that is open; None if its driver has none."""
    driver, connection = wrapper.Database.__name__, wrapper.connection
    if driver == "psycopg" and connection.info.encoding == "utf-8":
        return Psycopg(connection)
    if driver == "MySQLdb" and hasattr(connection, "string_literal"):  # not one in its name
        return MySQLClient(connection)
    return None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


# What PostgreSQL says beside its answers. A commit waits for the synchronous standby, if there is
# one. Ending that wait, as with pg_cancel_backend(), makes the statement succeed with a warning:
# https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION-HA

#: where in the server the warning comes from, which all languages have in common
_SOURCE = "syncrep.c"
#: its words in English, for drivers and servers that do not tell the source
_WORDS = "synchronous replication"


class Notices:
    """The notices of one session, of which only one kind counts."""

    def __init__(self) -> None:
        self._unreplicated = False

    def unreplicated(self) -> bool:
        """Return whether a commit may not have reached the standby since this was asked last."""
        heard, self._unreplicated = self._unreplicated, False
        return heard

    def heard(self, notice: Any) -> None:
        """Note what psycopg 3 has heard: a Diagnostic."""
        source = str(notice.source_file or "")
        if source.endswith(_SOURCE) or (not source and _WORDS in str(notice.message_primary)):
            self._unreplicated = True

    def append(self, text: str) -> None:
        """Note what psycopg 2 has heard, which takes this object for a list."""
        if _WORDS in text:
            self._unreplicated = True


def listen(wrapper: Any) -> Notices:
    """Return what is heard from now on, on a Django connection that is open."""
    notices = Notices()
    if wrapper.vendor == "postgresql":
        if hasattr(wrapper.connection, "add_notice_handler"):
            wrapper.connection.add_notice_handler(notices.heard)
        else:
            wrapper.connection.notices = notices
    return notices
