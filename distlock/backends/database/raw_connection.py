"""What every driver has to do, and the drivers whose cursors are used, also Python's for SQLite."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from distlock.backends.database.statements import Result, Statement
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
def hung_up_after(limit: float | None, hang_up: Callable[[], object] | None) -> Iterator[None]:
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
        # Of several statements in one packet psycopg2 tells the last result only.
        self._has_next_set = wrapper.Database.__name__ != "psycopg2"

    def execute(self, statement: Statement, limit: float | None) -> list[Result]:
        """See RawConnection.execute()."""
        with hung_up_after(limit, self._hang_up):
            return self._execute(statement)

    def _execute(self, statement: Statement) -> list[Result]:
        # Not wrapper.cursor(): that logs queries and runs wrappers that are meant for the caller's.
        cursor = self._wrapper.create_cursor()
        try:
            cursor.execute(statement.sql, statement.params)
            return _results(cursor) if self._has_next_set else [_result(cursor)]
        finally:
            # A traceback may keep it, and with SQLite its lock on the file.
            with contextlib.suppress(Exception):  # all was read, or another error is told
                cursor.close()


def _results(cursor: Any) -> list[Result]:
    results = [_result(cursor)]
    while hasattr(cursor, "nextset") and cursor.nextset():
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
