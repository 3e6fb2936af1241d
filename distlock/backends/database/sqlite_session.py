"""Sessions with a database that runs in this process (SQLite)."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from distlock.backends.database.connection import Connection, Session
from distlock.backends.database.errors import FileLocked, StatementFailed, TableLocked
from distlock.backends.database.statements import Result, Statement
from distlock.clock import clock, left

T = TypeVar("T")

#: Seconds between two attempts to write while others do.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.02


class ForkGate:
    """Lets nobody fork while SQLite works for us.

    It keeps the locks of a process in memory, where the child would take them for its own, and
    nobody would ever free them:
    https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_across_a_fork_
    """

    def __init__(self) -> None:
        self.closed = threading.RLock()

    def close(self) -> None:
        self.closed.acquire()

    def open(self) -> None:
        self.closed.release()

    def renew(self) -> None:
        self.closed = threading.RLock()


gate = ForkGate()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=gate.close, after_in_parent=gate.open, after_in_child=gate.renew)


class CallerConnection(Connection):
    """Runs statements on the caller's own connection, which waits as the caller has set it to."""

    def run_all(self, statement: Statement, limit: float | None) -> list[Result]:
        """See Connection.run_all()."""
        # A shared cache (the in-memory test database) refuses at once instead of waiting.
        run_all = super().run_all
        return _patiently(lambda: run_all(statement, limit), TableLocked, limit)


class SQLiteSession(Session):
    """A session of our own. ``limit`` is for the wait while others write."""

    def run_all(self, statement: Statement, limit: float | None) -> list[Result]:
        """See Connection.run_all()."""
        run_all = super().run_all

        def attempt() -> list[Result]:
            with gate.closed:
                return run_all(statement, limit)

        # The library could wait, too, but nobody could fork meanwhile.
        return _patiently(attempt, FileLocked, limit)

    def close(self) -> None:
        """See Session.close()."""
        with gate.closed:
            self._close()
            super().close()

    def leave_to_parent(self) -> None:
        """See Session.leave_to_parent()."""
        super().leave_to_parent()
        self._close()  # it is at rest, and what is known of its locks must be forgotten

    def _close(self) -> None:
        # Django's close() leaves a connection open whose database is in memory.
        with contextlib.suppress(Exception):
            self.wrapper.connection.close()


def _patiently(attempt: Callable[[], T], locked: type[StatementFailed], limit: float | None) -> T:
    """Try again for as long as the database is ``locked``, and there is time."""
    until = None if limit is None else clock() + limit
    pause = _SHORTEST_PAUSE
    while True:
        try:
            return attempt()
        except locked:
            if until is not None and clock() >= until:
                raise
        time.sleep(left(until, pause * random.uniform(0.5, 1.0)))
        pause = min(pause * 1.5, _LONGEST_PAUSE)
