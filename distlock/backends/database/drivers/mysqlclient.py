"""mysqlclient: statements are sent without waiting for the answer, and are prepared on MariaDB."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from distlock.backends.database.drivers.base import (
    Prepared,
    RawConnection,
    hung_up_after,
    name_of,
    poll_of,
    wait,
)
from distlock.backends.database.statements import Result, Statement
from distlock.concurrency.clock import clock

#: Seconds that have to be left for preparing a statement, which takes a round trip of its own.
_TIME_TO_PREPARE = 1.0


class MySQLConnection(RawConnection):
    """mysqlclient, https://mysqlclient.readthedocs.io/user_guide.html#mysql-c-api-translation.

    An answer that stalls halfway is ended by the driver's own ``read_timeout``. A connection in
    which one waits in the server has none, and needs a timer instead.
    """

    def __init__(
        self, connection: Any, hang_up: Callable[[], object] | None, *, prepares: bool
    ) -> None:
        """``hang_up`` shuts the socket down; None if the connection has a ``read_timeout``.

        ``prepares``: statements that are sent often may be prepared.
        """
        self._connection = connection
        self._escape = connection.string_literal
        self._socket = poll_of(connection.fileno())
        self._hang_up = hang_up
        self._prepares = prepares and hang_up is None
        #: what executes a text with the same parameters
        self._prepared = Prepared[str]()

    def execute(self, statement: Statement, limit: float | None) -> list[Result]:
        """See RawConnection.execute()."""
        if limit is None or self._hang_up is not None:
            text = self._text(statement.sql, statement.params)
            with hung_up_after(limit, self._hang_up):
                return self._ask(text, None)
        until = clock() + limit
        sql, params = statement.sql, statement.params
        if statement.prepare and self._prepares:
            execute = self._prepared.get(sql)
            if execute is None and limit >= _TIME_TO_PREPARE:
                execute = self._prepare(sql, until)
            sql = execute or sql
        return self._ask(self._text(sql, params), until)

    def _ask(self, text: bytes, until: float | None) -> list[Result]:
        """Return the results of a text; without ``until``, the driver waits for the answer."""
        connection = self._connection
        if until is None:
            connection.query(text)
        else:
            connection.send_query(text)
            wait(self._socket, until)
            connection.read_query_result()
        results = []
        while True:
            found = connection.store_result()
            rows = list(found.fetch_row(0)) if found else []
            affected, insert_id = connection.affected_rows(), connection.insert_id()
            results.append(Result(rows, affected, insert_id))
            if connection.next_result():
                return results

    def _prepare(self, sql: str, until: float) -> str | None:
        """Return what executes a text, once it is prepared; None if the text is to be sent."""
        # Of several statements at once none can be prepared.
        if "; " in sql or not self._prepared.is_due(sql):
            return None
        marks = _Marks()
        text = (sql % marks).encode()
        name = name_of(text)
        try:
            self._ask(b"PREPARE %b FROM %b" % (name.encode(), self._escape(text)), until)
        except self._connection.Error:
            # The server may have too many. Whatever it is, nothing has been carried out.
            self._prepares = False
            return None
        using = f" USING {marks}" if marks.names else ""
        self._prepared[sql] = execute = f"EXECUTE {name}{using}"
        return execute

    def _text(self, sql: str, params: Mapping[str, Any] | tuple[Any, ...]) -> bytes:
        literal = self._connection.literal
        if isinstance(params, tuple):
            return (sql % tuple(literal(value).decode() for value in params)).encode()
        literals = {}
        for name, value in params.items():
            # The driver's own way costs three times as much, and a text has a dozen literals.
            if type(value) is str:
                literals[name] = self._escape(value.encode()).decode()
            elif type(value) is int or type(value) is bool:
                literals[name] = str(value)
            elif type(value) is float and math.isfinite(value):
                number = repr(value)
                # Without an exponent it would be a DECIMAL.
                literals[name] = number if "e" in number else f"{number}e0"
            else:
                literals[name] = literal(value).decode()
        return (sql % literals).encode()


class _Marks:
    """Puts a question mark for each parameter of a text; then its str() are all of them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __getitem__(self, name: str) -> str:
        self.names.append(name)
        return "?"

    def __str__(self) -> str:
        return ", ".join(f"%({name})s" for name in self.names)
