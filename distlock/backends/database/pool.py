"""A few shared sessions with one database, and the one place where statements are tried again."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import ref

from django.core import mail
from django.db import connections

from distlock.backends.database import errors
from distlock.backends.database.connect import (
    dialect_for,
    open_session,
    target_of,
)
from distlock.backends.database.connection import SHORTEST_LIMIT, DatabaseSession
from distlock.backends.database.statements import Result, Statement, with_tables_renamed
from distlock.concurrency import fork
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Latch, Loan, Loans
from distlock.concurrency.threads import Timer, call_after, start

#: Seconds that a session is kept while nobody uses it, unless the settings say otherwise.
IDLE = 60.0

#: Seconds after its last use in which a session is taken to be alive.
_FRESH = 0.25

logger = logging.getLogger("distlock")

T = TypeVar("T")


class _Loan(Loan):
    """A session that one thread uses; after an interrupt the garbage collector may close it."""

    session: DatabaseSession | None = None
    #: whether what it was lent for came to its end; else it may be in the middle of a packet
    is_whole = False
    #: where the session is kept after this; another list since, if the pool was closed
    home: list[DatabaseSession]


class Pool(Loans):
    """Sessions with one database, which the threads of a process share."""

    def __init__(
        self,
        database: str,
        *,
        timeout: float,
        sessions: int,
        idle: float | None = None,
        pooled: bool | None = False,
    ) -> None:
        """``timeout`` and ``idle`` are seconds: the most for any answer, and to keep a session.

        At most ``sessions`` are in use at a time; further threads wait, unless they must not, see
        ``at_once`` of work().

        ``idle=None`` is a minute, but nothing where Django's tests run: an open session would keep
        the test database from being dropped. See open_session() for ``pooled``.
        """
        super().__init__(sessions)
        self.database = database
        self.timeout = timeout
        #: whether a pooler is known that may give every packet to another session of the server
        self.pooled = bool(pooled)
        #: where the server finds the table, and what its native locks are named after, by what it
        #: said to the last session that was opened; "" before the first one
        self.schema = self.namespace = ""
        #: how to speak on a Django connection that is open
        self.dialect_for = dialect_for
        self._pooled = pooled
        self._keep_idle = idle
        _pools().add(self)
        #: the sessions that are not in use now, in the order of their last use
        self._idle: list[DatabaseSession] = []
        self._trusted_since = -math.inf
        self._reaper: Timer | None = None

    def limit(self, deadline: float | None) -> float:
        """Return the seconds that the server gets for an answer that is due by ``deadline``."""
        rest = self.timeout if deadline is None else deadline - clock()
        return min(max(rest, SHORTEST_LIMIT), self.timeout)

    @property
    def idle(self) -> float:
        """The seconds that a session is kept while nobody uses it."""
        if self._keep_idle is not None:
            return self._keep_idle
        return 0.0 if "outbox" in vars(mail) else IDLE

    def run(self, statement: Statement, deadline: float | None = None) -> Result:
        """Run a statement that may be repeated: twice must be as good as once. See work()."""
        return self.work(lambda session: session.ask(statement), deadline)

    def work(
        self,
        function: Callable[[DatabaseSession], T],
        deadline: float | None = None,
        *,
        at_once: bool = False,
    ) -> T:
        """Call ``function(session)`` with a shared session; it may be called twice.

        ``session.ask()`` runs statements in the time that is left. ``at_once``: if all sessions are
        in use, open one more.

        It is called once more, with a fresh session, if the first one was lost; and again until
        then if the engine chose its statement to end a deadlock. Raises a StatementFailed.
        """
        until = clock() + self.limit(deadline)
        lost = maybe_applied = False
        while True:
            began, loan = clock(), _Loan()
            try:
                session = self._take(loan, until, fresh=lost, at_once=at_once)
                result = function(session)
                loan.is_whole = True
                return result
            except errors.StatementFailed as failed:
                loan.is_whole = True
                maybe_applied = failed.maybe_applied = failed.maybe_applied or maybe_applied
                if isinstance(failed, errors.StatementTimeout):
                    # A network may have forgotten all connections that were idle for a while.
                    self._trusted_since = max(self._trusted_since, began)
                if not isinstance(failed, _MAY_BE_TRIED_AGAIN) or clock() >= until:
                    raise
                if isinstance(failed, errors.ConnectionLost):
                    if lost:
                        raise
                    lost = True
            finally:
                self._give_back(loan)

    def open(self, deadline: float | None = None, *, blocking: bool = False) -> DatabaseSession:
        """Open a session that the caller alone uses, and closes; raises NoSession.

        ``blocking``: its statements may take as long as they like.
        """
        session = open_session(
            self.database,
            self.limit(deadline),
            timeout=self.timeout,
            blocking=blocking,
            pooled=self._pooled,
        )
        session.dialect = self.dialect_for(session.wrapper)
        self.schema, self.namespace = session.schema, session.namespace
        was_pooled, self.pooled = self.pooled, session.pooled
        if session.pooled and not was_pooled:
            logger.warning(
                "the database %r is reached through a connection pooler: waiters for its locks"
                " poll, and are not served first come, first served. Set 'wait' in"
                " DISTLOCK's OPTIONS to 'poll' to accept that, or to 'native' if the pooler"
                " keeps one session for each client (PgBouncer's pool_mode = session).",
                self.database,
            )
        return session

    def close(self) -> None:
        """Close the sessions that nobody uses now, and the others when they are given back."""
        idle, self._idle = self._idle, []
        _close_while(idle, lambda session: True)

    def table_for(self, connection: Any, table: str) -> str:
        """Return the SQL of a table on a connection of the caller.

        The caller's connection may find another one by itself: its search_path may be changed.
        """
        table = with_tables_renamed(table, connection.vendor)
        if not self.schema:
            return table
        schema: str = connection.ops.quote_name(self.schema)
        return f"{schema.replace('%', '%%')}.{table}"

    # Lending

    def _take(
        self, loan: _Loan, until: float, *, fresh: bool = False, at_once: bool = False
    ) -> DatabaseSession:
        """Return a session for a loan, which is given back in any case; NoSession after ``until``.

        ``fresh``: where one session was dead, others that were idle most likely are, too.
        """
        loans, now = self._loans, clock()
        with self._mutex:
            # As begin() and, in _give_back(), end() do it: two calls less on the way of each lock.
            if at_once or (len(loans) < self.most and not self._waiting):
                loans.add(ref(loan, loans.discard))
            else:
                loan.latch = Latch()
                self._waiting.append(ref(loan))
        if loan.latch is not None and not self._is_granted(loan, loan.latch, until):
            raise errors.NoSession(f"none of {self.most} sessions was free in time")
        target = target_of(connections.settings[self.database])
        loan.home = self._idle
        while True:
            try:
                session = loan.home.pop()
            except IndexError:
                break
            if (
                not fresh
                and session.usable
                and session.idle_since >= self._trusted_since
                and session.target == target  # the test runner points aliases elsewhere
                and (now - session.idle_since < _FRESH or not session.stale)
            ):
                loan.session = session
                session.until = until
                return session
            session.close()
        loan.session = session = self.open(until)
        session.until = until
        return session

    def _give_back(self, loan: _Loan) -> None:
        """Keep the session if it can still be used, else close it; let the next thread have one."""
        try:
            session = loan.session
            keep = self._keep_idle  # as idle, but without a call on the way of each lock
            keeps = "outbox" not in vars(mail) if keep is None else keep > 0
            if session is None:
                pass
            elif session.usable and loan.is_whole and loan.home is self._idle and keeps:
                session.idle_since = clock()
                loan.home.append(session)
                if loan.home is not self._idle:  # all were closed just now
                    _close_while(loan.home, lambda session: True)
                elif self._reaper is None:
                    with suppress(RuntimeError):  # no more threads: it is kept longer
                        self._reaper = call_after(self.idle, self._start_reaping)
            else:
                session.close()
        finally:
            self._loans.discard(ref(loan))
            if loan.latch is not None or self._waiting:
                self.end(loan)

    def _start_reaping(self) -> None:
        try:
            # Not on the thread of the timers, on which all renewals depend: closing may take long.
            start(self._reap, "distlock-idle")
        except RuntimeError:  # no more threads: the next session that is given back tries again
            self._reaper = None

    def _reap(self) -> None:
        """Close what was idle for long."""
        keep, idle = self.idle, self._idle
        _close_while(idle, lambda session: clock() - session.idle_since >= keep)
        # Two threads that gave back the first sessions may have set a timer each.
        other, self._reaper = self._reaper, None
        if other is not None:
            other.cancel()
        for oldest in idle[:1]:
            self._reaper = call_after(oldest.idle_since + keep - clock(), self._start_reaping)


#: A server that restarts, a deadlock, an operator who cancels what takes long.
_MAY_BE_TRIED_AGAIN = (
    errors.ConnectionLost,
    errors.SerializationFailure,
    errors.StatementCancelled,
)


def _close_while(
    sessions: list[DatabaseSession], condition: Callable[[DatabaseSession], bool]
) -> None:
    """Close the first ones, for as long as the condition is true for the next one."""
    try:
        while condition(sessions[0]):
            sessions.pop(0).close()  # perhaps another one: then the first one was lent just now
    except IndexError:
        pass


_pools: fork.PerProcess[weakref.WeakSet[Pool]] = fork.PerProcess(weakref.WeakSet)


@fork.at_exit
def _at_exit() -> None:
    for pool in list(_pools()):
        pool.close()
