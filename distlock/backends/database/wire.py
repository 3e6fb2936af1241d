"""Packets sent past a driver's cursors, which do more work than the server for a short statement.

Whoever has waited for a lock lets the next one wait for all that happens until it is freed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from distlock.backends.database.statements import Answer, Statement


class Wire(ABC):
    """A connection of a driver, spoken to directly. It raises the driver's own errors."""

    @abstractmethod
    def exchange(self, statement: Statement) -> list[Answer]:
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


class Psycopg(Wire):
    """psycopg 3, https://www.psycopg.org/psycopg3/docs/api/pq.html. Waits without Python's lock."""

    def __init__(self, connection: Any) -> None:
        from psycopg import OperationalError, errors, pq

        self._pgconn = connection.pgconn
        self._escape = pq.Escaping(self._pgconn).escape_literal
        self._error, self._gone = errors.error_from_result, OperationalError
        self._broken = pq.ConnStatus.BAD
        self._good = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}

    def exchange(self, statement: Statement) -> list[Answer]:
        """See Wire.exchange()."""
        result = self._pgconn.exec_(self._filled_in(statement))
        if result.status not in self._good:
            error = self._error(result)
            # What the library says of a connection that broke has no code from the server.
            raise self._gone(str(error)) if self._pgconn.status == self._broken else error
        rows = [
            tuple(_text(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]
        return [Answer(rows, result.command_tuples or 0)]

    def literal(self, value: Any) -> str:
        """See Wire.literal()."""
        if isinstance(value, (int, float)):
            return str(value)
        return bytes(self._escape(value.encode())).decode()


class MySQLClient(Wire):
    """mysqlclient, https://mysqlclient.readthedocs.io/user_guide.html#mysql-c-api-translation."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def exchange(self, statement: Statement) -> list[Answer]:
        """See Wire.exchange()."""
        connection = self._connection
        connection.query(self._filled_in(statement))
        answers = []
        while True:
            result = connection.store_result()
            rows = list(result.fetch_row(0)) if result else []
            answers.append(Answer(rows, connection.affected_rows()))
            if connection.next_result():
                return answers

    def literal(self, value: Any) -> str:
        """See Wire.literal()."""
        if isinstance(value, (int, float)):
            return str(value)
        literal: bytes = self._connection.string_literal(value.encode())
        return literal.decode()


def wire_for(wrapper: Any) -> Wire | None:
    """Return the wire of a Django connection that is open; None if its driver has none."""
    driver, connection = wrapper.Database.__name__, wrapper.connection
    if driver == "psycopg" and connection.info.encoding == "utf-8":
        return Psycopg(connection)
    if driver == "MySQLdb" and hasattr(connection, "string_literal"):  # not one in its name
        return MySQLClient(connection)
    return None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
