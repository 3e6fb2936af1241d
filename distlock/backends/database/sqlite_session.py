"""Sessions with a database that runs in this process (SQLite)."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from distlock.backends.database.connection import Connection, Session
from distlock.backends.database.errors import FileLocked, StatementFailed, TableLocked
from distlock.backends.database.raw_connection import CursorConnection
from distlock.backends.database.statements import Result, Statement
from distlock.concurrency import fork
from distlock.concurrency.backoff import backoff
from distlock.concurrency.clock import clock, left

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

#: Seconds between two attempts to write while others do.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.02


class ForkGate:
    """Makes a fork wait while SQLite runs a statement of ours.

    SQLite keeps the file locks of a process in memory. The child would take them for its own, and
    never free them:
    https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_across_a_fork_

    A fork without Python's hooks does not wait. If a statement was running then, the child uses
    SQLite no more.
    """

    def __init__(self) -> None:
        self.closed = threading.RLock()
        self._closed_for_fork = False
        #: whether a thread of the parent was inside of SQLite when this process was forked
        self.broken = False
        os.register_at_fork(before=self._close, after_in_parent=self._open)
        fork.reset_in_child(self)

    def _close(self) -> None:
        fork.ensure_reset()  # else it may have been closed by a thread of the parent
        self.closed.acquire()
        self._closed_for_fork = True

    def _open(self) -> None:
        self._closed_for_fork = False
        self.closed.release()

    def is_broken(self) -> bool:
        """In the child of a fork: return whether a thread of the parent was inside of SQLite."""
        if not (self.broken or self._closed_for_fork):
            # A thread of the child may have the number of the one that had closed it.
            owned: bool = self.closed._is_owned()  # type: ignore[attr-defined]
            self.broken = owned or not self.closed.acquire(blocking=False)
            self._closed_for_fork = not self.broken
        return self.broken

    def after_fork_in_child(self) -> None:
        """Open it: the thread that had closed it may be the parent's."""
        self.is_broken()
        self.closed = threading.RLock()
        self._closed_for_fork = False


gate = ForkGate()


class CallerConnection(Connection):
    """Runs statements on the caller's own connection.

    While others write it waits as the caller has set it to, but for ``limit`` seconds at the most.
    """

    of_caller: ClassVar[bool] = True

    def __init__(self, wrapper: Any) -> None:
        """``wrapper`` is a ``DatabaseWrapper`` that is connected."""
        super().__init__(wrapper, CursorConnection(wrapper))

    def run(self, statement: Statement, limit: float | None) -> Result:
        """See Connection.run()."""
        with _busy_timeout(self.wrapper.connection, limit):
            # A shared cache (the in-memory test database) refuses at once instead of waiting.
            return _retried(super().run, statement, limit, TableLocked)


@contextlib.contextmanager
def _busy_timeout(connection: Any, limit: float | None) -> Iterator[None]:
    """Let SQLite wait for other writers for this many seconds at most."""
    ((own,),) = connection.execute("PRAGMA busy_timeout")
    most = own if limit is None else math.ceil(limit * 1000)
    if most >= own:
        yield
        return
    try:
        connection.execute(f"PRAGMA busy_timeout = {most}")
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout = {own}")


class SQLiteSession(Session):
    """A session of our own. ``limit`` is for the wait while others write."""

    def run(self, statement: Statement, limit: float | None) -> Result:
        """See Connection.run()."""
        # The library could wait by itself, but the process could not fork meanwhile.
        return _retried(self._run, statement, limit, FileLocked)

    def _run(self, statement: Statement, limit: float | None) -> Result:
        with gate.closed:
            return super().run(statement, limit)

    def close(self) -> None:
        """See Session.close()."""
        with gate.closed:
            self._close()
            super().close()

    def leave_to_parent(self) -> None:
        """See Session.leave_to_parent()."""
        super().leave_to_parent()
        if gate.is_broken():
            # Closing it would roll back the parent's transaction in the file. It is never deleted.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.wrapper.connection))
        else:
            self._close()  # no statement is running, and the child must not keep its file locks

    def _close(self) -> None:
        # Django's close() leaves a connection open whose database is in memory.
        with contextlib.suppress(Exception):
            self.wrapper.connection.close()


def in_transaction(
    method: Callable[Concatenate[S, Connection, P], T],
) -> Callable[Concatenate[S, Connection, P], T]:
    """Be the only one who writes while a method runs, and commit at its end.

    After an error nothing was written. On the caller's own connection this is a part of the
    transaction there. A fork waits for the end: the child would take the open transaction for its
    own.

    It is no generator for ``with``: an interrupt between two lines of one would leave it, and the
    gate closed, for as long as its traceback is kept.
    """

    @functools.wraps(method)
    def run(self: S, connection: Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
        begin, end, undo = _IN_CALLERS if connection.of_caller else _OF_OUR_OWN
        # Others may be writing, and a fork need not wait for them. Before the first change a child
        # has nothing to take for its own.
        connection.ask(Statement(begin))
        with gate.closed:
            try:
                result = method(self, connection, *args, **kwargs)
                connection.ask(Statement(end))
                return result
            except BaseException:
                try:
                    for statement in undo:
                        connection.ask(Statement(statement))
                except StatementFailed:
                    connection.usable = False
                raise

    return run


#: how a transaction begins, how it ends, and how it is undone
_OF_OUR_OWN = "BEGIN IMMEDIATE", "COMMIT", ["ROLLBACK"]
_IN_CALLERS = (
    "SAVEPOINT distlock_records",
    "RELEASE distlock_records",
    ["ROLLBACK TO distlock_records", "RELEASE distlock_records"],
)


def _retried(
    run: Callable[[Statement, float | None], Result],
    statement: Statement,
    limit: float | None,
    locked: type[StatementFailed],
) -> Result:
    """Run a statement again for as long as the database is ``locked``, and there is time."""
    deadline = None if limit is None else clock() + limit
    pauses = backoff(_SHORTEST_PAUSE, _LONGEST_PAUSE)
    while True:
        try:
            return run(statement, limit)
        except locked:
            if deadline is not None and clock() >= deadline:
                raise
        time.sleep(left(deadline, next(pauses)))
