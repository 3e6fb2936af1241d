"""How statements are sent through each driver, and how long an answer is waited for.

psycopg 3 and mysqlclient can send a statement without waiting for the answer. The thread then
waits at the socket, with a time limit, and can be interrupted. This also skips the drivers'
cursors, which cost more than a short statement does. Other drivers run a statement through a
cursor, and a timer shuts the socket down when the time is up.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import select
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from distlock.backends.database.statements import Result, Statement
from distlock.concurrency.clock import clock
from distlock.concurrency.timers import call_after


class TimedOut(Exception):
    """The answer did not come within the time limit. It may come later."""


class RawConnection(ABC):
    """A connection of a driver. It raises the driver's own errors."""

    @abstractmethod
    def execute(self, statement: Statement, limit: float | None) -> list[Result]:
        """Run the statements of one packet; returns the result of each.

        Raises TimedOut after ``limit`` seconds (None: never).
        """

    #: whether notifications() works
    hears: ClassVar[bool] = False

    def notifications(self) -> list[str]:
        """PostgreSQL: return what NOTIFY has told this session since the last time."""
        raise NotImplementedError


@contextlib.contextmanager
def _hung_up_after(limit: float | None, hang_up: Callable[[], object] | None) -> Iterator[None]:
    """Let a timer end what is waited for; TimedOut if it had to."""
    if limit is None or hang_up is None:
        yield
        return
    timer = call_after(limit, hang_up)
    try:
        yield
    except Exception as error:
        if not timer.cancel():
            raise TimedOut from error
        raise
    finally:
        timer.cancel()


class CursorConnection(RawConnection):
    """Any driver that Django has a backend for."""

    def __init__(self, wrapper: Any, hang_up: Callable[[], object] | None = None) -> None:
        """``wrapper`` is a ``DatabaseWrapper`` that is connected.

        ``hang_up`` shuts its socket down; without that there is no time limit.
        """
        self._wrapper = wrapper
        self._hang_up = hang_up

    def execute(self, statement: Statement, limit: float | None) -> list[Result]:
        """See RawConnection.execute()."""
        with _hung_up_after(limit, self._hang_up):
            return self._execute(statement)

    def _execute(self, statement: Statement) -> list[Result]:
        # Not wrapper.cursor(): that logs queries and runs wrappers that are meant for the caller's.
        cursor = self._wrapper.create_cursor()
        try:
            cursor.execute(statement.sql, statement.params)
            results = _results(cursor)
            cursor.close()
            return results
        except BaseException:
            # The traceback keeps the cursor, and with SQLite that keeps its lock on the file.
            with contextlib.suppress(Exception):
                cursor.close()
            raise


def _results(cursor: Any) -> list[Result]:
    results = [_result(cursor)]
    next_set = getattr(cursor, "nextset", None)
    while next_set is not None and next_set():
        results.append(_result(cursor))
    return results


def _result(cursor: Any) -> Result:
    rows = [] if cursor.description is None else [tuple(row) for row in cursor.fetchall()]
    return Result(rows, cursor.rowcount, getattr(cursor, "lastrowid", None) or 0)


class SQLiteConnection(RawConnection):
    """Python's own driver. Django's cursor would convert each text anew."""

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
    return sql % (_Named() if numbered is None else ("?",) * numbered)


class _Named(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return f":{name}"


class PsycopgConnection(RawConnection):
    """psycopg 3, https://www.psycopg.org/psycopg3/docs/api/pq.html."""

    def __init__(self, connection: Any) -> None:
        from psycopg import OperationalError, adapt, errors, pq, sql

        self._connection = connection
        self._pgconn = connection.pgconn
        self._socket = _poll_of(connection.pgconn.socket)
        self._sql = sql
        self._error, self._lost = errors.error_from_result, OperationalError
        self._good = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}
        self._broken = pq.ConnStatus.BAD
        self._transformer = adapt.Transformer(connection)
        self._escape = pq.Escaping(connection.pgconn).escape_literal
        #: name and parameters, in the order of their numbers, by text
        self._prepared: dict[str, tuple[bytes, tuple[str, ...]]] = {}
        #: by text, how often the last statement of a packet was sent before it was prepared
        self._sent: dict[str, int] = {}

    def execute(self, statement: Statement, limit: float | None) -> list[Result]:
        """See RawConnection.execute()."""
        until = None if limit is None else clock() + limit
        sql, params = statement.sql, statement.params
        *before, last = sql.split("; ")
        if not statement.prepare or (before and not self._is_used_often(last)):
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
            _wait(_poll_of(pgconn.socket, select.POLLIN | select.POLLOUT), until)
            pgconn.consume_input()
        while True:
            while pgconn.is_busy():
                _wait(self._socket, until)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                return results
            results.append(result)

    def _prepare(self, sql: str, until: float | None) -> tuple[bytes, tuple[str, ...]]:
        numbers = _Numbers()
        text = (sql % numbers).encode()
        # Named after its text: even where a pooler that nobody knows of mixes up sessions, no name
        # stands for another statement.
        name = b"distlock_" + hashlib.sha256(text).hexdigest()[:32].encode()
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

    def _is_used_often(self, sql: str) -> bool:
        """Return whether it is worth it to prepare a statement, which keeps memory in the server.

        Packets have many texts, most of them used once in a while.
        """
        if sql in self._prepared:
            return True
        if len(self._sent) > _MOST_COUNTED:
            self._sent.clear()
        self._sent[sql] = sent = self._sent.get(sql, 0) + 1
        return sent >= _OFTEN and len(self._prepared) < _MOST_PREPARED

    def _literal(self, value: Any) -> str:
        # The usual way costs ten times as much.
        if isinstance(value, str) and "\0" not in value:
            return bytes(self._escape(value.encode())).decode()
        if value is None or type(value) is int:
            return "NULL" if value is None else f" {value}"
        return bytes(self._sql.Literal(value).as_bytes(self._connection)).decode()


_ALREADY_PREPARED = "42P05"  # duplicate_prepared_statement
#: The statement of a packet is prepared when a session sends it for this time.
_OFTEN = 3
#: Statements that a session keeps prepared, at the most; and texts that it counts.
_MOST_PREPARED, _MOST_COUNTED = 60, 1000


class _Numbers(dict[str, str]):
    """Numbers the parameters of a text in the order in which they are asked for."""

    def __missing__(self, name: str) -> str:
        self[name] = number = f"${len(self) + 1}"
        return number


class MySQLConnection(RawConnection):
    """mysqlclient, https://mysqlclient.readthedocs.io/user_guide.html#mysql-c-api-translation.

    An answer that stalls halfway is ended by the driver's own ``read_timeout``. A connection in
    which one waits in the server has none, and needs a timer instead.
    """

    def __init__(self, connection: Any, hang_up: Callable[[], object] | None) -> None:
        """``hang_up`` shuts the socket down; None if the connection has a ``read_timeout``."""
        self._connection = connection
        self._escape = connection.string_literal
        self._socket = _poll_of(connection.fileno())
        self._hang_up = hang_up

    def execute(self, statement: Statement, limit: float | None) -> list[Result]:
        """See RawConnection.execute()."""
        connection = self._connection
        text = self._text(statement)
        if limit is None or self._hang_up is not None:
            with _hung_up_after(limit, self._hang_up):
                connection.query(text)
                return self._results()
        connection.send_query(text)
        _wait(self._socket, clock() + limit)
        connection.read_query_result()
        return self._results()

    def _results(self) -> list[Result]:
        connection, results = self._connection, []
        while True:
            found = connection.store_result()
            rows = list(found.fetch_row(0)) if found else []
            affected, insert_id = connection.affected_rows(), connection.insert_id()
            results.append(Result(rows, affected, insert_id))
            if connection.next_result():
                return results

    def _text(self, statement: Statement) -> bytes:
        literal, params = self._connection.literal, statement.params
        if isinstance(params, tuple):
            return _with_literals(statement, lambda value: literal(value).decode())
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
        return (statement.sql % literals).encode()


def _with_literals(statement: Statement, literal: Callable[[Any], str]) -> bytes:
    sql, params = statement.sql, statement.params
    if isinstance(params, tuple):
        return (sql % tuple(map(literal, params))).encode()
    return (sql % {name: literal(value) for name, value in params.items()}).encode()


def _poll_of(fd: int, event: int = select.POLLIN) -> select.poll:
    poll = select.poll()
    poll.register(fd, event)
    return poll


def _wait(socket: select.poll, until: float | None) -> None:
    """Wait for a socket; TimedOut after the time ``until`` (None: never) of clock()."""
    while True:
        rest = None
        if until is not None:
            # At most an hour: poll() takes no more than 24 days.
            rest = math.ceil(min(max(until - clock(), 0.0), 3600.0) * 1000)
        if socket.poll(rest):
            return
        if until is not None and clock() >= until:
            raise TimedOut


def raw_connection_for(wrapper: Any, hang_up: Callable[[], object] | None) -> RawConnection:
    """Return how to send statements on a Django connection that is open.

    ``hang_up`` shuts its socket down, from another thread; None if it has none.
    """
    driver, connection = wrapper.Database.__name__, wrapper.connection
    # A backend with cursors of its own may send statements to several servers.
    if _has_djangos_cursors(wrapper):
        if driver == "psycopg" and connection.info.encoding == "utf-8":
            return PsycopgConnection(connection)
        if driver == "MySQLdb" and hasattr(connection, "send_query"):  # PyMySQL in its name
            ends_by_itself = "read_timeout" in wrapper.settings_dict["OPTIONS"]
            return MySQLConnection(connection, None if ends_by_itself else hang_up)
        if wrapper.vendor == "sqlite":
            return SQLiteConnection(connection)
    return CursorConnection(wrapper, hang_up)


def _has_djangos_cursors(wrapper: Any) -> bool:
    return str(type(wrapper).create_cursor.__module__).startswith("django.")
