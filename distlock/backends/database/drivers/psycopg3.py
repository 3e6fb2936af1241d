"""psycopg 3: statements are sent without waiting for the answer, and are prepared."""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from distlock.backends.database.drivers.base import Prepared, RawConnection, name_of, poll_of, wait
from distlock.backends.database.statements import Result, Statement
from distlock.concurrency.clock import clock

_ALREADY_PREPARED = "42P05"  # duplicate_prepared_statement


class PsycopgConnection(RawConnection):
    """psycopg 3, https://www.psycopg.org/psycopg3/docs/api/pq.html."""

    def __init__(self, connection: Any) -> None:
        from psycopg import OperationalError, adapt, errors, pq, sql

        self._connection = connection
        self._pgconn = connection.pgconn
        self._socket = poll_of(connection.pgconn.socket)
        self._sql = sql
        self._error, self._lost = errors.error_from_result, OperationalError
        self._good = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}
        self._broken = pq.ConnStatus.BAD
        self._transformer = adapt.Transformer(connection)
        self._escape = pq.Escaping(connection.pgconn).escape_literal
        #: name and parameters, in the order of their numbers, by text
        self._prepared = Prepared[tuple[bytes, tuple[str, ...]]]()

    def execute(self, statement: Statement, limit: float | None) -> list[Result]:
        """See RawConnection.execute()."""
        until = None if limit is None else clock() + limit
        sql, params = statement.sql, statement.params
        *before, last = sql.split("; ")
        # A statement by itself is known to be sent often, the last one of a packet is not.
        prepare = statement.prepare and (
            not before or last in self._prepared or self._prepared.is_due(last)
        )
        if not prepare:
            self._pgconn.send_query(_with_literals(statement, self._literal))
        else:
            assert not isinstance(params, tuple), "what is prepared has named parameters"
            if before:
                literals = {key: self._literal(value) for key, value in params.items()}
                packet = [self._executed(part, literals, until) for part in (*before, last)]
                self._pgconn.send_query("; ".join(packet).encode())
            else:
                name, order = self._prepared.get(sql) or self._prepare(sql, until)
                texts = list(map(str, map(params.__getitem__, order)))
                if "\0" in "".join(texts):  # libpq would send what is before it
                    raise ValueError(f"PostgreSQL stores no NUL characters: {texts!r}")
                self._pgconn.send_query_prepared(name, list(map(str.encode, texts)))
        transformer, results = self._transformer, []
        for result in self._answers(until):
            if result.status not in self._good:
                error = self._error(result)
                # What the library says of a connection that broke has no code from the server.
                broken = self._pgconn.status == self._broken
                raise self._lost(str(error)) if broken else error
            rows = []
            if count := result.ntuples:
                transformer.set_pgresult(result)
                rows = transformer.load_rows(0, count, tuple)
            results.append(Result(rows, result.command_tuples or 0))
        return results

    hears: ClassVar[bool] = True

    def notifications(self) -> list[str]:
        """See RawConnection.notifications()."""
        self._pgconn.consume_input()
        texts = []
        while (told := self._pgconn.notifies()) is not None:
            texts.append(told.extra.decode())
        return texts

    def _answers(self, until: float | None) -> list[Any]:
        """Return all results of what was sent."""
        pgconn = self._pgconn
        results: list[Any] = []
        while pgconn.flush():  # more than the socket takes at once
            wait(poll_of(pgconn.socket, select.POLLIN | select.POLLOUT), until)
            pgconn.consume_input()
        while True:
            while pgconn.is_busy():
                wait(self._socket, until)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                return results
            results.append(result)

    def _prepare(self, sql: str, until: float | None) -> tuple[bytes, tuple[str, ...]]:
        numbers = _Numbers()
        text = (sql % numbers).encode()
        name = name_of(text).encode()
        self._pgconn.send_prepare(name, text)
        for result in self._answers(until):
            if result.status not in self._good:
                error = self._error(result)
                if error.sqlstate != _ALREADY_PREPARED:
                    raise error
        self._prepared[sql] = prepared = name, tuple(numbers)
        return prepared

    def _executed(self, sql: str, literals: Mapping[str, str], until: float | None) -> str:
        """Return what runs one statement of a packet; those that have parameters are prepared."""
        if "%(" not in sql:
            return sql % ()
        name, order = self._prepared.get(sql) or self._prepare(sql, until)
        return f"EXECUTE {name.decode()} ({', '.join([literals[key] for key in order])})"

    def _literal(self, value: Any) -> str:
        # The usual way costs ten times as much.
        if isinstance(value, str) and "\0" not in value:
            return bytes(self._escape(value.encode())).decode()
        if value is None or type(value) is int:
            return "NULL" if value is None else f" {value}"
        return bytes(self._sql.Literal(value).as_bytes(self._connection)).decode()


class _Numbers(dict[str, str]):
    """Numbers the parameters of a text in the order in which they are asked for."""

    def __missing__(self, name: str) -> str:
        self[name] = number = f"${len(self) + 1}"
        return number


def _with_literals(statement: Statement, literal: Callable[[Any], str]) -> bytes:
    sql, params = statement.sql, statement.params
    if isinstance(params, tuple):
        return (sql % tuple(map(literal, params))).encode()
    return (sql % {name: literal(value) for name, value in params.items()}).encode()
