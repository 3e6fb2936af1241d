"""Runs statements of the backend: the one way from it to the database.

- ``work(function, deadline)`` calls ``function(connection)``, which runs statements with
  ``connection.ask(statement)``; ``connection.dialect`` makes them. It waits for rows that others
  keep locked, and raises LockUnavailable.
- ``attempt(function, deadline)`` is work() without that wait; it raises a StatementFailed, which
  unavailable() translates.

Both may call the function twice: a session may turn out to be dead, and the engine may choose a
statement to end a deadlock. So twice must be as good as once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from distlock.backends.database.connection import Connection
from distlock.backends.database.errors import (
    ROW_WAIT,
    RowLocked,
    StatementFailed,
    unavailable,
)
from distlock.backends.database.pool import Pool
from distlock.concurrency.clock import clock
from distlock.exceptions import LockUnavailable

T = TypeVar("T")

Function = Callable[[Connection], T]


class FindsConnection(Protocol):
    """Says which connection of the caller is to be used in place of our own."""

    def connection(self, nonce: str | None = None) -> Connection | None: ...


class StatementRunner:
    """A database, through shared sessions or, where that must be, the caller's own connection."""

    def __init__(self, pool: Pool, caller: FindsConnection | None) -> None:
        """``caller``: None where the transactions of callers do not lock out our sessions."""
        self.pool = pool
        self.caller = caller

    def work(
        self,
        function: Function[T],
        deadline: float | None,
        nonce: str | None = None,
        *,
        at_once: bool = False,
    ) -> T:
        """Call a function, again while others keep a row locked; LockUnavailable if it fails.

        ``nonce`` says whose hold it is about; that may be known to one connection only.
        ``at_once``: if all sessions are in use, open one more.
        """
        until = clock() + self.pool.limit(deadline)
        while True:
            try:
                return self.attempt(function, until, nonce, at_once=at_once)
            except RowLocked as failed:
                if clock() + ROW_WAIT >= until:
                    raise self.unavailable(failed) from failed.__cause__
            except StatementFailed as failed:
                raise self.unavailable(failed) from failed.__cause__

    def attempt(
        self,
        function: Function[T],
        deadline: float | None,
        nonce: str | None = None,
        *,
        at_once: bool = False,
    ) -> T:
        """Call a function; raises a StatementFailed. See work()."""

        if self.caller and (connection := self.caller.connection(nonce)):
            connection.dialect = self.pool.dialect_for(connection.wrapper)
            connection.until = clock() + self.pool.limit(deadline)
            return function(connection)
        return self.pool.work(function, deadline, at_once=at_once)

    def unavailable(self, failed: StatementFailed) -> LockUnavailable:
        """Return what callers of the backend are told of a failure."""
        return unavailable(failed, self.pool.database)
