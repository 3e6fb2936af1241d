"""Sessions with SQLite, which runs in this process, and locks in the transactions of callers."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from distlock.backends.database.connection import (
    SHORTEST_LIMIT,
    Connection,
    CursorConnection,
    DatabaseSession,
)
from distlock.backends.database.errors import (
    ConnectionLost,
    FileLocked,
    NoSession,
    StatementFailed,
    TableLocked,
)
from distlock.backends.database.statements import Result, Statement
from distlock.backends.open_transactions import (
    TransactionOutcomeHook,
    blocks_of_test_case,
    connection_of_test_case,
)
from distlock.concurrency import fork
from distlock.concurrency.clock import backoff, clock, left
from distlock.concurrency.steps import despite
from distlock.concurrency.threads import start
from distlock.exceptions import NotSupported
from distlock.types.lease import Claim

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

#: Seconds between two attempts to write while others do.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.02

#: the level of ``PRAGMA synchronous`` with this name
_NORMAL = 1


class ForkGate:
    """Makes a fork wait while SQLite runs a statement of ours.

    SQLite keeps the file locks of a process in memory. The child would take them for its own, and
    never free them:
    https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_across_a_fork_

    A fork without Python's hooks does not wait, and neither does one in the middle of a statement
    of its own thread: that of a signal handler, or of a destructor. If a statement was running
    then, the child uses SQLite no more.
    """

    def __init__(self) -> None:
        #: whether the parent was inside of SQLite when this process was forked
        self.broken = False
        self._begin()
        os.register_at_fork(before=self._close, after_in_parent=self._open)

    def _begin(self) -> None:
        self.closed = threading.RLock()
        #: how many forks of the thread that has closed it have begun, one inside of the other
        self._forks = 0
        #: whether the outermost of them came in the middle of a statement
        self._is_inside = False
        self._process = fork.current()
        self._process.connections.add(self)

    def _close(self) -> None:
        fork.current()  # else it may have been closed by a thread of the parent
        owned: bool = self.closed._is_owned()  # type: ignore[attr-defined]
        self.closed.acquire()  # another thread may be forking, too
        if not self._forks:
            self._is_inside = owned
        self._forks += 1

    def _open(self) -> None:
        self._forks = max(self._forks - 1, 0)  # an interrupt may have ended _close()
        self.closed.release()

    def leave_to_parent(self) -> None:
        """In the child of a fork: open it; the thread that had closed it may be the parent's."""
        if self._process is fork.current():  # a session has called this
            return
        if self._forks:
            self.broken = self.broken or self._is_inside
        elif not self.broken:
            # A thread of the child may have the number of the one that had closed it.
            owned: bool = self.closed._is_owned()  # type: ignore[attr-defined]
            self.broken = owned or not self.closed.acquire(blocking=False)
        self._begin()


gate = ForkGate()


#: for each connection of a caller: the mutex by which our threads take turns
_turns: fork.PerProcess[WeakKeyDictionary[Any, threading.RLock]] = fork.PerProcess(
    WeakKeyDictionary
)


class CallerConnection(Connection):
    """Runs statements on the caller's own connection.

    While others write it waits as the caller has set it to, but no longer than it was lent for.

    In a test case all our threads use the connection of the test, so they take turns. Otherwise, on
    Python 3.12 and later, two that run the same statement at once can get each other's rows.
    """

    of_caller: ClassVar[bool] = True

    def __init__(self, wrapper: Any) -> None:
        """``wrapper`` is a ``DatabaseWrapper`` that is connected."""
        super().__init__(wrapper, CursorConnection(wrapper))
        #: is held while one of our threads uses the connection
        self.turn = _turns().setdefault(wrapper, threading.RLock())

    def ask(self, statement: Statement) -> Result:
        """See Connection.ask()."""
        with self.turn:
            connection, until = self.wrapper.connection, self.until
            own = connection.execute("PRAGMA busy_timeout").fetchone()[0]
            most = own if until is None else math.ceil(max(until - clock(), SHORTEST_LIMIT) * 1000)
            try:
                if most < own:
                    connection.execute(f"PRAGMA busy_timeout = {most}")
                # A shared cache (the in-memory test database) refuses at once instead of waiting.
                return _retried(super().ask, statement, until, TableLocked)
            finally:
                if most < own:
                    connection.execute(f"PRAGMA busy_timeout = {own}")


class SQLiteSession(DatabaseSession):
    """A session of our own. The time it was lent for is for the wait while others write.

    Where the file has a write-ahead log, a statement that a power cut may undo runs under
    ``synchronous = NORMAL``: its commit is in the log, but not yet on the disk. The next grant
    syncs the log with all earlier commits. If some are lost, nothing later is left, because the
    checksum of each frame covers those before it. So no grant and no token is lost, and no grant
    outlives a release before it: https://www.sqlite.org/fileformat2.html#the_write_ahead_log

    No other connection can take the file out of that mode while this one is open. With another
    journal a power cut under NORMAL might harm the file.
    """

    #: the level of ``PRAGMA synchronous`` for all else; NORMAL if it is the same for everything
    _level: int | None = None
    #: whether NORMAL is set now, or may be
    _is_lean = False

    def ask(self, statement: Statement) -> Result:
        """See Connection.ask()."""
        # The library could wait by itself, but the process could not fork meanwhile.
        return _retried(self._ask_once, statement, self.until, FileLocked)

    def _ask_once(self, statement: Statement) -> Result:
        with gate.closed:
            if self.wrapper.connection is None:
                raise ConnectionLost("it was closed, or left to the parent of a fork")
            if statement.may_be_undone is not self._is_lean and self._level != _NORMAL:
                self._set_lean(statement.may_be_undone)
            return super().ask(statement)

    def _set_lean(self, is_lean: bool) -> None:
        ask = super().ask
        if self._level is None:
            ((journal,),) = ask(Statement("PRAGMA journal_mode")).rows
            ((level,),) = ask(Statement("PRAGMA synchronous")).rows
            self._level = max(level, _NORMAL) if journal == "wal" else _NORMAL
            if self._level == _NORMAL:
                return
        # An interrupt may come in between: a grant must not go by a level that is not known.
        self._is_lean = True
        ask(Statement(f"PRAGMA synchronous = {_NORMAL if is_lean else self._level}"))
        self._is_lean = is_lean

    def close(self) -> None:
        """See DatabaseSession.close()."""
        with gate.closed:
            self._close()
            super().close()

    def leave_to_parent(self) -> None:
        """See DatabaseSession.leave_to_parent()."""
        super().leave_to_parent()
        gate.leave_to_parent()
        if gate.broken:
            # Closing it would roll back the parent's transaction in the file. It is never deleted.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.wrapper.connection))
            # This thread may go on with the parent's method: it must neither write nor close it.
            self.wrapper.connection = None
        else:
            self._close()  # no statement is running, and the child must not keep its file locks

    def _close(self) -> None:
        # Django's close() leaves a connection open whose database is in memory.
        with despite(Exception):
            self.wrapper.connection.close()


def open_in_process(wrapper: Any, opened: Callable[[], DatabaseSession]) -> DatabaseSession:
    """Return what ``opened()`` returns, which connects the wrapper."""
    if wrapper.settings_dict["NAME"] == ":memory:":
        raise ImproperlyConfigured(
            f"DATABASES[{wrapper.alias!r}] is ':memory:', and every connection has its own: none"
            f" would see the locks of others. Use a file, or for the threads of one"
            " process 'file:locks?mode=memory&cache=shared'."
        )
    if gate.broken:
        raise NoSession(
            "this process was forked in the middle of a statement of SQLite; start it again"
        )
    try:
        with gate.closed:
            return opened()
    except Exception:  # after an interrupt the garbage collector closes it
        with despite(Exception):  # there may be none yet
            wrapper.connection.close()
        raise


def in_transaction(
    method: Callable[Concatenate[S, Connection, P], T],
) -> Callable[Concatenate[S, Connection, P], T]:
    """Be the only one who writes while a method runs, and commit at its end.

    After an error nothing was written. On the caller's own connection this is a part of the
    transaction there, and our other threads wait for its end. So does a fork: the child would take
    the open transaction for its own.

    It is no generator for ``with``: an interrupt between two lines of one would leave it, and the
    gate closed, for as long as its traceback is kept.
    """

    @functools.wraps(method)
    def run(self: S, connection: Connection, /, *args: P.args, **kwargs: P.kwargs) -> T:
        call = functools.partial(method, self, connection, *args, **kwargs)
        if isinstance(connection, CallerConnection):
            with connection.turn:
                return _committed(connection, call)
        return _committed(connection, call)

    return run


def _committed(connection: Connection, call: Callable[[], T]) -> T:
    begin, end, undo = _IN_CALLERS if connection.of_caller else _OF_OUR_OWN
    # Others may be writing, and a fork need not wait for them. Before the first change a child
    # has nothing to take for its own.
    connection.ask(Statement(begin))
    with gate.closed:
        is_done = False
        try:
            result = call()
            connection.ask(Statement(end))
            is_done = True
            return result
        finally:
            try:
                for statement in () if is_done else undo:
                    connection.ask(Statement(statement))
            except StatementFailed:
                connection.usable = False


#: how a transaction begins, how it ends, and how it is undone
_OF_OUR_OWN = "BEGIN IMMEDIATE", "COMMIT", ["ROLLBACK"]
_IN_CALLERS = (
    "SAVEPOINT distlock_records",
    "RELEASE distlock_records",
    ["ROLLBACK TO distlock_records", "RELEASE distlock_records"],
)


def _retried(
    ask: Callable[[Statement], Result],
    statement: Statement,
    until: float | None,
    locked: type[StatementFailed],
) -> Result:
    """Run a statement again for as long as the database is ``locked``, and there is time."""
    deadline = None if until is None else max(until, clock() + SHORTEST_LIMIT)
    pauses = backoff(_SHORTEST_PAUSE, _LONGEST_PAUSE)
    while True:
        try:
            return ask(statement)
        except locked:
            if deadline is not None and clock() >= deadline:
                raise
        time.sleep(left(deadline, next(pauses)))


def in_own_transaction(database: str) -> bool:
    """Return whether this thread is in a transaction on SQLite, other than that of a test case."""
    wrapper: Any = connections[database]
    if wrapper.connection is None or not wrapper.connection.in_transaction:
        return False
    own = len(wrapper.atomic_blocks) - blocks_of_test_case(wrapper)
    return bool(own) or not wrapper.in_atomic_block


def connection_of_test(database: str, nonce: str | None = None) -> CallerConnection | None:
    """Return the connection of a test case, whose transaction locks our own sessions out."""
    connection = connection_of_test_case(database)
    return None if connection is None else CallerConnection(connection)


class CallerTransaction:
    """The holds that were acquired in transactions of callers, and what became of these.

    A session of our own would wait for a transaction that waits for us. So the lock is acquired in
    that very transaction: nobody else can take it before the commit, but a rollback undoes it.
    """

    def __init__(
        self,
        database: str,
        on_abandoned: Callable[[str], None],
        release_later: Callable[[Claim, Callable[[float], object] | None], None],
    ) -> None:
        """``on_abandoned`` gets the nonce of a hold that a test case has left behind.

        ``release_later`` is Cleanup.add().
        """
        self.database = database
        self._on_abandoned = on_abandoned
        self._release_later = release_later
        # By nonce of a hold: the connection in whose open transaction it was acquired, and the
        # savepoints that were open then.
        self._open: dict[str, tuple[Any, frozenset[str]]] = {}
        self._rolled_back: set[str] = set()

    def connection(self, nonce: str | None = None) -> CallerConnection | None:
        """Return a connection whose open transaction locks us out, to be used in place of our own.

        The caller's, or the one in which the hold ``nonce`` was acquired, or a test case's.
        """
        connection = connections[self.database]
        if connection.connection is not None and connection.connection.in_transaction:
            return CallerConnection(connection)
        if nonce is not None and (found := self._open.get(nonce)) is not None:
            return CallerConnection(found[0])
        return connection_of_test(self.database)

    def is_open(self, nonce: str) -> bool:
        """Return whether the transaction in which a hold was acquired is still open."""
        return nonce in self._open

    def was_rolled_back(self, nonce: str) -> bool:
        """Return whether a hold was acquired in a transaction that has been rolled back."""
        return nonce in self._rolled_back

    def refuse_if_begun_by_hand(self, connection: Connection, claim: Claim) -> None:
        """Raise NotSupported in a transaction whose rollback would not be noticed."""
        if not connection.wrapper.in_atomic_block:
            raise NotSupported(
                f"lock {claim.name!r}: on SQLite a lock cannot be taken in a transaction that was"
                " begun by hand, whose rollback would not be noticed; use transaction.atomic()"
            )

    def note_acquired(self, connection: Any, nonce: str) -> None:
        """Note that a lock was acquired in the open transaction, and watch how that ends."""
        self._open[nonce] = connection, frozenset(connection.savepoint_ids)
        around = blocks_of_test_case(connection)

        def rollback() -> None:
            if self._open.pop(nonce, None) is not None:
                self._rolled_back.add(nonce)
                if blocks_of_test_case(connection) < around:  # not a block of the code under test
                    self._on_abandoned(nonce)

        connection.on_commit(TransactionOutcomeHook(lambda: self._open.pop(nonce, None), rollback))
        # To the front: if a callback fails after the commit, Django drops those that follow.
        hooks = connection.run_on_commit
        hooks.insert(0, hooks.pop())

    def note_released(
        self, used: Connection, claim: Claim, again: Callable[[float], object] | None = None
    ) -> None:
        """Note that a lock was released on a connection, perhaps in the caller's transaction.

        A rollback of that would bring the hold back: then it is released once more, on another
        thread, by ``again`` if that is given.
        """
        acquired = self._open.get(claim.nonce)
        self.discard(claim.nonce)
        if not used.of_caller:
            return
        connection = used.wrapper

        def rollback() -> None:
            # If the rollback also undid the acquire, there is nothing to release.
            open_now = connection.in_atomic_block and frozenset(connection.savepoint_ids)
            if acquired is None or (open_now is not False and acquired[1] <= open_now):
                start(self._release_later, "distlock-rollback", claim, again)

        if connection.in_atomic_block:
            connection.on_commit(TransactionOutcomeHook(lambda: None, rollback))
        elif connection.connection.in_transaction:
            # It was begun by hand, so its end is not known. Release the lock again after that,
            # which does nothing to a free lock.
            rollback()

    def discard(self, nonce: str) -> None:
        """Keep nothing for a hold that is over."""
        self._open.pop(nonce, None)
        self._rolled_back.discard(nonce)
