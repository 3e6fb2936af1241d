"""Sessions to wait in: one that stands in a queue of the server, and those of a process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from django.db import connections

from distlock.backends.database import errors
from distlock.backends.database.advisory_locks import AdvisoryLocks
from distlock.backends.database.connection import Session
from distlock.backends.database.pool import Pool
from distlock.backends.database.statements import Result, Statement
from distlock.concurrency.clock import clock
from distlock.concurrency.timers import call_after
from distlock.concurrency.workers import WorkerThreads

_NOTHING = Statement("SELECT 1")

#: Seconds after which a waiter that was cancelled and does not come back is hung up on.
_CANCEL_LIMIT = 1.0
#: Seconds that a session is kept after a wait, for the next one.
_IDLE = 2.0


class WaitSession:
    """A session of our own that waits in one queue of the server at a time, or is its head.

    One thread at a time uses it; cancel(), hang_up() and waits_since() are for others.
    """

    def __init__(self, session: Session, locks: AdvisoryLocks, limit: float) -> None:
        """Prepare the session; ``limit`` is the seconds that the server gets for a short answer."""
        self.session = session
        self.locks = locks
        self.limit = limit
        self.ident = int(session.run(locks.set_up(), limit).rows[0][0])
        #: the lock that it waited for last
        self.name = ""
        #: whether it has the native lock of that one
        self.is_head = False
        #: its number if it waits for long, until it is closed
        self.long_wait: int | None = None
        self._cancelling = threading.Lock()
        self._waiter: object = None  # whose statement the server may be asked to cancel
        self._sent_at = 0.0  # of that statement
        self._cancelled_at: float | None = None  # first, during that statement

    @property
    def usable(self) -> bool:
        return self.session.usable and not self.session.stale

    @property
    def empty(self) -> bool:
        """Whether it has no native lock of any kind."""
        return not self.is_head and self.long_wait is None

    @property
    def key(self) -> str:
        """The native lock of the lock that it waited for last."""
        return self.locks.key(str(self.session.settings.get("NAME") or ""), self.name)

    def run(self, statement: Statement) -> Result:
        """Run a statement that answers at once, and is never cancelled."""
        self._drain_cancel()
        return self.session.run(statement, self.limit)

    def wait(self, name: str, waiter: object, seconds: float, comment: str = "") -> None:
        """Wait for the native lock of ``name``; ``is_head`` tells afterwards whether it was got.

        Nothing is written meanwhile, so a session whose client has died takes nothing. ``comment``
        is SQL that others can read. If ``waiter`` was cancelled, or so many ``seconds`` have
        passed, it returns without the native lock, or raises Cancelled, with or without it.
        """
        self._drain_cancel()
        self.name = name
        statement = Statement(f"{comment}{self.locks.wait(self.key, seconds)}")
        self._sent_at, self._waiter = clock(), waiter
        try:
            answer = self.session.run(statement, None)
            self.is_head = self.locks.got(answer)
        except errors.StatementFailed as failed:
            self._waiter = None
            if self.session.usable:
                self._ask_whether_head()
            if not isinstance(failed, errors.RowLocked):  # the seconds have passed
                raise
        finally:
            self._waiter = None

    def _ask_whether_head(self) -> None:
        try:
            self.is_head = bool(int(self.run(self.locks.has(self.key)).rows[0][0]))
        except errors.StatementFailed:
            self.hang_up()  # else the native lock could be got twice, and left once
            raise

    def begin_long_wait(self, name: str, waited: float) -> None:
        """Come before all who stand in the queue of ``name``, by the seconds that it has waited."""
        self.name = name
        try:
            answer = self.run(self.locks.begin_long_wait(self.key, waited))
        except errors.StatementFailed:
            self.hang_up()  # it may have some of the locks that this needs
            raise
        self.long_wait = int(answer.rows[0][0])

    def run_after(
        self, statement: Statement, seconds: float, waiter: object, comment: str = ""
    ) -> Result:
        """Run a statement that answers at once, after a pause that the server makes.

        ``comment`` is SQL that others can read meanwhile. If ``waiter`` was cancelled, raises
        Cancelled.
        """
        steps = [self.locks.sleep(seconds), statement.sql] if seconds else [statement.sql]
        packet = statement._replace(sql="; ".join(f"{comment}{step}" for step in steps))
        self._drain_cancel()
        self._sent_at, self._waiter = clock(), waiter
        try:
            return self.session.run(packet, seconds + self.limit)
        finally:
            self._waiter = None

    def leave(self, free: Statement | None = None, limit: float | None = None) -> Result | None:
        """Run ``free``, if any, and give the native lock to the next one; the answer to ``free``.

        ``limit`` is the seconds that the server gets for each answer.
        """
        limit = self.limit if limit is None else limit
        answer = None
        self._drain_cancel()
        if free is not None:
            packet = self.locks.free_and_leave(self.key, free) if self.is_head else free
            answer = self.session.run(packet, limit)
        if self.is_head and (answer is None or not answer.affected):
            self.session.run(Statement(self.locks.leave(self.key)), limit)
        self.is_head = False
        return answer

    def cancel(self, waiter: object, run: Callable[[Statement], object]) -> None:
        """End the statement in which ``waiter`` waits, if any, through ``run`` on another session.

        Only statements that write nothing are cancelled: a commit that is kept from waiting for
        its standby is told as a success. A waiter that was cancelled before and does not come back
        is hung up on. MariaDB, cancelled between two statements of a packet, may announce an answer
        that it does not give.
        """
        with self._cancelling:
            if self._waiter is not waiter:
                return
            self._cancelled_at = self._cancelled_at or clock()
            if clock() - self._cancelled_at >= _CANCEL_LIMIT:
                self.hang_up()
                return
            try:
                run(self.locks.cancel(self.ident))
            except errors.StatementFailed:
                self.hang_up()  # a late cancel would end a statement it was not meant for

    def _drain_cancel(self) -> None:
        """Wait until no cancel is under way that would end a statement it was not meant for."""
        with self._cancelling:
            if self._cancelled_at is None:
                return
            self._cancelled_at = None
        with suppress(errors.Cancelled):
            self.session.run(_NOTHING, self.limit)

    def waits_since(self, waiter: object, moment: float) -> bool:
        """Return whether the server keeps ``waiter`` waiting since ``moment`` or before."""
        return self._waiter is waiter and self._sent_at <= moment

    def hang_up(self) -> None:
        """End whatever goes on here, from this side. The session is of no use afterwards."""
        self.session.hang_up()

    def close(self) -> None:
        """Close the session. The server gives its native lock to the next one."""
        self.session.close()


class WaitSessionPool:
    """The sessions of a process in which nobody waits now.

    Whoever waited for a lock keeps its session, with the native lock, until the release, which
    wakes the next one. After that it is kept for some seconds more, because a lock in demand is
    waited for again at once, and to connect takes longer than most turns.
    """

    def __init__(self, pool: Pool, threads: WorkerThreads) -> None:
        self._pool = pool
        self._threads = threads
        self._mutex = threading.Lock()
        self._kept: dict[str, WaitSession] = {}  # by nonce of the lease, longest kept first
        self._idle: list[tuple[WaitSession, float]] = []  # and since when
        self._reaping = False

    @property
    def holding(self) -> int:
        """How many sessions have the native lock of a lease."""
        return len(self._kept)

    @property
    def total(self) -> int:
        return len(self._kept) + len(self._idle)

    def keep(self, nonce: str, session: WaitSession) -> None:
        """Keep a session and its native lock for as long as a lease is held."""
        with self._mutex:
            self._kept[nonce] = session

    def pop(self, nonce: str) -> WaitSession | None:
        """Return the session that was kept for a lease, and keep it no longer."""
        with self._mutex:
            return self._kept.pop(nonce, None)

    def drop_oldest(self) -> bool:
        """Drop the native lock that was kept longest. The row holds its lock all the same."""
        with self._mutex:
            session = self._kept.pop(next(iter(self._kept)), None) if self._kept else None
        if session is not None:
            self.drop(session)
        return session is not None

    def waited_for(self, name: str) -> bool:
        """Return whether the lock ``name`` was waited for here some seconds ago."""
        return bool(self._idle) and any(session.name == name for session, _ in self._idle)

    def take(self) -> WaitSession | None:
        """Return a session that is idle, if any."""
        settings = connections[self._pool.database].settings_dict
        while True:
            with self._mutex:
                if not self._idle:
                    return None
                session, _ = self._idle.pop()
            # The test runner points an alias to another database.
            if session.usable and session.session.settings == settings:
                return session
            self.drop(session)

    def put(self, session: WaitSession, *, full: bool) -> None:
        """Keep a session for the next wait, unless there are enough, or it cannot be used."""
        seconds = min(self._pool.idle, _IDLE)
        wanted = not full and seconds > 0 and session.session.usable and session.empty
        if not wanted:
            session.close()
            return
        with self._mutex:
            self._idle.append((session, clock()))
            if not self._reaping:
                with suppress(RuntimeError):  # no more threads: the next one tries again
                    call_after(seconds, self._reap)
                    self._reaping = True

    def close(self) -> None:
        """Close all. Locks that are held stay held, by their rows."""
        with self._mutex:
            sessions = [*self._kept.values(), *(session for session, _ in self._idle)]
            self._kept, self._idle = {}, []
        for session in sessions:
            self.drop(session)

    def drop(self, session: WaitSession) -> None:
        """End a session without a word that could block; the server frees its native lock."""
        session.hang_up()
        # Django would refuse to close it where an event loop runs.
        with suppress(RuntimeError):  # no more threads; the server knows all the same
            self._threads.submit(session.close)

    def _reap(self) -> None:
        seconds = min(self._pool.idle, _IDLE)
        now = clock()
        with self._mutex:
            old = [session for session, since in self._idle if now - since >= seconds]
            self._idle = [(session, since) for session, since in self._idle if session not in old]
            self._reaping = bool(self._idle)
            if self._idle:
                call_after(self._idle[0][1] + seconds - now, self._reap)
        for session in old:
            with suppress(RuntimeError):  # no more threads: it is closed with its last reference
                self._threads.submit(session.close)
