"""How statements are sent through each driver, and how long an answer is waited for.

psycopg 3 and mysqlclient can send a statement without waiting for the answer. The thread then
waits at the socket, with a time limit, and can be interrupted. This also skips the drivers'
cursors, which cost more than a short statement does. Other drivers run a statement through a
cursor, and a timer shuts the socket down when the time is up.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import select
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from distlock.backends.database.connection import (
    CursorConnection,
    HangUp,
    RawConnection,
    TimedOut,
    hung_up_after,
)
from distlock.backends.database.statements import Result, Statement
from distlock.concurrency.clock import clock

T = TypeVar("T")

#: A statement is worth it to be prepared when a session sends it for this time.
_OFTEN = 3
#: Statements that a session keeps prepared, at most; and texts that it counts.
_MOST_PREPARED, _MOST_COUNTED = 60, 1000
#: Seconds that have to be left for preparing a statement on MariaDB: a round trip of its own.
_TIME_TO_PREPARE = 1.0

_ALREADY_PREPARED = "42P05"  # duplicate_prepared_statement

#: Finds the names of the parameters of a text, in their order.
_names_in = re.compile(r"%\((\w+)\)s").findall


def raw_connection_for(wrapper: Any, hang_up: HangUp | None) -> RawConnection:
    """Return how to send statements on a Django connection that is open.

    ``hang_up`` shuts its socket down, from another thread; None if it has none.
    """
    driver, connection = wrapper.Database.__name__, wrapper.connection
    # A backend with cursors of its own may send statements to several servers.
    if str(type(wrapper).create_cursor.__module__).startswith("django."):
        if driver == "psycopg" and connection.info.encoding == "utf-8":
            return PsycopgConnection(connection)
        if driver == "MySQLdb" and hasattr(connection, "send_query"):  # PyMySQL in its name
            if "read_timeout" in wrapper.settings_dict["OPTIONS"] or hang_up is None:
                return MySQLConnection(connection, prepares=wrapper.mysql_is_mariadb)
            return WaitingMySQLConnection(connection, hang_up)
        if wrapper.vendor == "sqlite":
            return SQLiteConnection(connection)
    return CursorConnection(wrapper, hang_up)


class Prepared(dict[str, T]):
    """The prepared statements of a session, by text, and how often it has sent other texts.

    Prepared statements keep memory in the server, and most texts are sent once in a while.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sent: dict[str, int] = {}

    def is_due(self, sql: str) -> bool:
        """Count a text once more that is not prepared; return whether it is worth it now."""
        if len(self._sent) > _MOST_COUNTED:
            self._sent.clear()
        self._sent[sql] = sent = self._sent.get(sql, 0) + 1
        return sent >= _OFTEN and len(self) < _MOST_PREPARED


def name_of(text: bytes) -> str:
    """Return the name of a prepared statement, which is made of its text.

    So even where a pooler that nobody knows of mixes up sessions, no name stands for another one.
    """
    return f"distlock_{hashlib.sha256(text).hexdigest()[:32]}"


def filled_in(
    sql: str, params: Mapping[str, Any] | tuple[Any, ...], literal: Callable[[Any], str]
) -> bytes:
    """Return a text with its parameters as ``literal()`` writes them."""
    if isinstance(params, tuple):
        return (sql % tuple(map(literal, params))).encode()
    return (sql % {name: literal(value) for name, value in params.items()}).encode()


def poll_of(fd: int, event: int = select.POLLIN) -> select.poll:
    """Return what waits for an event at a socket."""
    poll = select.poll()
    poll.register(fd, event)
    return poll


def wait(socket: select.poll, until: float | None) -> None:
    """Wait for a socket; TimedOut after the time ``until`` (None: never) of clock()."""
    while True:
        # At most an hour: poll() takes no more than 24 days. It rounds up.
        if socket.poll(None if until is None else min(max(until - clock(), 0.0), 3600.0) * 1000):
            return
        if until is not None and clock() >= until:
            raise TimedOut


class MySQLConnection(RawConnection):
    """mysqlclient, https://mysqlclient.readthedocs.io/user_guide.html#mysql-c-api-translation.

    An answer that stalls halfway is ended by the driver's own ``read_timeout``.
    """

    def __init__(self, connection: Any, *, prepares: bool) -> None:
        """``prepares``: statements that are sent often may be prepared.

        Not on MySQL, which takes nothing but user variables as parameters:
        https://mariadb.com/kb/en/execute-statement/
        """
        self._connection = connection
        self._escape = connection.string_literal
        self._socket = poll_of(connection.fileno())
        self._prepares = prepares
        #: what executes a text with the same parameters
        self._prepared = Prepared[str]()

    def execute(self, statement: Statement, limit: float | None) -> list[Result]:
        """See RawConnection.execute()."""
        connection, sql = self._connection, statement.sql
        if limit is None:  # the driver itself waits for the answer
            connection.query(filled_in(sql, statement.params, self._literal))
        else:
            until = clock() + limit
            if statement.prepare and self._prepares:
                sql = self._prepared.get(sql) or self._prepare(sql, limit) or sql
            self.send(Statement(sql, statement.params))
            wait(self._socket, until)
            connection.read_query_result()
        return self._results()

    def send(self, statement: Statement) -> None:
        """See RawConnection.send()."""
        self._connection.send_query(filled_in(statement.sql, statement.params, self._literal))

    hears: ClassVar[bool] = True

    def notifications(self) -> list[str]:
        """See RawConnection.notifications()."""
        if not self._socket.poll(0):
            return []
        self._connection.read_query_result()
        return [""] * len(self._results())

    def _results(self) -> list[Result]:
        connection, results = self._connection, list[Result]()
        while True:
            found = connection.store_result()
            rows = list(found.fetch_row(0)) if found else []
            affected, insert_id = connection.affected_rows(), connection.insert_id()
            results.append(Result(rows, affected, insert_id))
            if connection.next_result():
                return results

    def _prepare(self, sql: str, limit: float) -> str | None:
        """Return what executes a text, once it is prepared; None if the text is to be sent."""
        # Of several statements at once none can be prepared.
        if limit < _TIME_TO_PREPARE or "; " in sql or not self._prepared.is_due(sql):
            return None
        params = _names_in(sql)
        text = sql % dict.fromkeys(params, "?")
        name = name_of(text.encode())
        try:
            self.execute(Statement(f"PREPARE {name} FROM %s", (text,)), limit)
        except self._connection.Error:
            # The server may have too many. In any case nothing has been carried out.
            self._prepares = False
            return None
        using = f" USING {', '.join(f'%({param})s' for param in params)}" if params else ""
        self._prepared[sql] = execute = f"EXECUTE {name}{using}"
        return execute

    def _literal(self, value: Any) -> str:
        # The driver's own way costs three times as much, and a text has a dozen literals.
        if type(value) is str:
            return str(self._escape(value.encode()).decode())
        if type(value) is int or type(value) is bool:
            return str(value)
        if type(value) is float and math.isfinite(value):
            number = repr(value)
            return number if "e" in number else f"{number}e0"  # else it would be a DECIMAL
        return str(self._connection.literal(value).decode())


class WaitingMySQLConnection(MySQLConnection):
    """A connection in which one waits in the server: a timer in place of a ``read_timeout``."""

    def __init__(self, connection: Any, hang_up: HangUp) -> None:
        """``hang_up`` shuts the socket down."""
        super().__init__(connection, prepares=False)
        self._hang_up = hang_up

    def execute(self, statement: Statement, limit: float | None) -> list[Result]:
        """See RawConnection.execute()."""
        with hung_up_after(limit, self._hang_up):
            return super().execute(statement, None)


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
        # Nearly all that locks send is by itself, and known.
        prepared = self._prepared.get(statement.sql) if statement.prepare else None
        if prepared is None:
            prepared = self._send_text(statement, until)
        if prepared is not None:
            name, order = prepared
            params: Any = statement.params
            texts = list(map(str, map(params.__getitem__, order)))
            if "\0" in "".join(texts):  # libpq would send what is before it
                raise ValueError(f"PostgreSQL stores no NUL characters: {texts!r}")
            self._pgconn.send_query_prepared(name, list(map(str.encode, texts)))
        transformer, results = self._transformer, []
        for result in self._answers(until):
            if result.status not in self._good:
                error = self._error(result)
                # The library's error for a broken connection has no code from the server.
                broken = self._pgconn.status == self._broken
                raise self._lost(str(error)) if broken else error
            rows = []
            if count := result.ntuples:
                transformer.set_pgresult(result)
                rows = transformer.load_rows(0, count, tuple)
            results.append(Result(rows, result.command_tuples or 0))
        return results

    def _send_text(
        self, statement: Statement, until: float | None
    ) -> tuple[bytes, tuple[str, ...]] | None:
        """Send a statement as a text; or return what is prepared for it now, and is to be sent."""
        sql, params = statement.sql, statement.params
        *before, last = _parts(sql)
        # A statement by itself is known to be sent often, the last one of a packet is not.
        if not statement.prepare or (
            before and last not in self._prepared and not self._prepared.is_due(last)
        ):
            self._pgconn.send_query(filled_in(sql, params, self._literal))
            return None
        assert not isinstance(params, tuple), "what is prepared has named parameters"
        if not before:
            return self._prepare(sql, until)
        literals = {key: self._literal(value) for key, value in params.items()}
        packet = [self._executed(part, literals, until) for part in (*before, last)]
        self._pgconn.send_query("; ".join(packet).encode())
        return None

    hears: ClassVar[bool] = True

    def notifications(self) -> list[str]:
        """See RawConnection.notifications()."""
        self._pgconn.consume_input()
        return [told.extra.decode() for told in iter(self._pgconn.notifies, None)]

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
        params = dict.fromkeys(_names_in(sql))  # each has one number, however often it is there
        text = (sql % {param: f"${number}" for number, param in enumerate(params, 1)}).encode()
        name = name_of(text).encode()
        self._pgconn.send_prepare(name, text)
        for result in self._answers(until):
            if result.status not in self._good:
                error = self._error(result)
                if error.sqlstate != _ALREADY_PREPARED:
                    raise error
        self._prepared[sql] = prepared = name, tuple(params)
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
            if "'" not in value and "\\" not in value:
                return f"'{value}'"
            return bytes(self._escape(value.encode())).decode()
        if value is None or type(value) is int:
            return "NULL" if value is None else f" {value}"
        return bytes(self._sql.Literal(value).as_bytes(self._connection)).decode()


@functools.lru_cache(maxsize=256)
def _parts(sql: str) -> tuple[str, ...]:
    """Return the statements of a packet, as the same objects each time: they are keys."""
    return tuple(sql.split("; "))


class SQLiteConnection(RawConnection):
    """Python's own driver. Django's cursor would convert each text again."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: Statement, limit: float | None) -> list[Result]:
        """See RawConnection.execute()."""
        params = statement.params
        numbered = len(params) if isinstance(params, tuple) else None
        cursor = self._connection.cursor()
        try:
            cursor.execute(_sqlite_text(statement.sql, numbered), params)
            rows = cursor.fetchall()
            return [Result(rows, cursor.rowcount, cursor.lastrowid or 0)]
        finally:
            cursor.close()  # a traceback may keep it, and with it the lock on the file


@functools.lru_cache(maxsize=256)
def _sqlite_text(sql: str, numbered: int | None) -> str:
    """Return a text with the placeholders of SQLite; ``numbered`` is how many have no names."""
    if numbered is not None:
        return sql % (("?",) * numbered)
    return sql % {name: f":{name}" for name in _names_in(sql)}
