"""What waiters ask the server: about the row of a lock, and in sessions that stand in its queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from django.db import connections

from distlock.backends.database import errors
from distlock.backends.database.advisory_locks import AdvisoryLocks
from distlock.backends.database.connect import target_of
from distlock.backends.database.connection import DatabaseSession
from distlock.backends.database.pool import Pool
from distlock.backends.database.sql import holder
from distlock.backends.database.statements import Result, Statement
from distlock.concurrency.clock import clock
from distlock.concurrency.threads import Timer, call_after
from distlock.concurrency.workers import WorkerThreads
from distlock.types.lease import Claim, Lease
from distlock.types.owners import is_named

#: Seconds that those in front are given to take a lock that can be taken. Longer than the longest
#: pause between two looks of the head of the queue.
GRACE = 0.5
#: Seconds after which a waiter that was cancelled and does not come back is hung up on.
_CANCEL_LIMIT = 1.0
#: This part of its time the server gets for a look of the head of the queue. If it is not enough,
#: the session is given up, and its place in the queue with it.
_MOST = 3 / 4
#: Seconds that a session is kept after a wait, for the next one.
_IDLE = 2.0


class RowSnapshot(NamedTuple):
    """The row of a lock at one moment.

    ``remaining`` is the seconds until the lease ends; below zero, since it ended or was freed.
    """

    name: str
    owner: str
    token: int
    remaining: float

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> RowSnapshot:
        """Read a row of the answer to ``AdvisoryLocks.look()``."""
        name, owner, token, remaining = row
        return cls(str(name), str(owner), int(token), float(remaining))

    @property
    def stalled(self) -> bool:
        """Whether those in front have had the time to take the lock, and did not."""
        return self.remaining <= -GRACE

    def grantable_to(self, claim: Claim) -> bool:
        """Return whether the claim can be granted now."""
        return not self.owner or self.remaining <= 0 or self.is_held_by(claim)

    def is_held_by(self, claim: Claim) -> bool:
        """Return whether the claim's owner holds it, perhaps from elsewhere by its name."""
        return self.owner == holder(claim)


class LockRows:
    """The table of a database with native locks. Everything raises a StatementFailed."""

    def __init__(self, pool: Pool, locks: AdvisoryLocks) -> None:
        self.pool = pool
        self.locks = locks

    def take_if_no_waiters(self, claim: Claim, session: DatabaseSession) -> int | None:
        """Take the row if nobody waits for the lock, or if it is the owner's; the token, or None.

        ``session`` is one of the pool, see Pool.work(). Also if those who wait have not taken it in
        time: the native lock may be kept for a hold that was broken, or was freed elsewhere by its
        owner's name. Raises RowLocked if a transaction of someone else kept the row, whether the
        lock is free or not, and SerializationFailure if someone is writing the row at the moment.
        """
        dialect, locks = session.dialect, self.locks
        if session.pooled:  # nobody waits in a queue; a native lock there was left behind
            return dialect.acquire(session.ask, claim)
        values = locks.values(locks.key(session.namespace, claim.name))
        return dialect.acquire(
            session.ask, claim, dialect.in_order(locks.nobody_waits, GRACE), values
        )

    def look(self, names: Iterable[str], deadline: float | None = None) -> dict[str, RowSnapshot]:
        """Look at the rows of some locks, by name."""
        answer = self.pool.run(self.locks.look(list(names)), deadline)
        return {row.name: row for row in map(RowSnapshot.of, answer.rows)}


class WaitSession:
    """A session of our own that waits in one queue of the server at a time, or is its head.

    One thread at a time uses it; cancel(), hang_up() and waits_since() are for others.
    """

    def __init__(self, session: DatabaseSession, locks: AdvisoryLocks, limit: float) -> None:
        """Prepare the session; ``limit`` is the seconds that the server gets for a short answer."""
        self.session = session
        self.locks = locks
        self.limit = limit
        self.ident = int(session.run(locks.set_up(), limit).rows[0][0])
        #: the lock that it waits for, or waited for last
        self.name = ""
        #: whether it has the native lock of that one
        self.is_head = False
        #: its number if it waits for long
        self.long_wait: int | None = None
        #: closes it if it is idle for long
        self.idle_timer: Timer | None = None
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
        """The native lock of the lock ``name``."""
        return self.locks.key(self.session.namespace, self.name)

    @property
    def label(self) -> str:
        """What comments call that native lock."""
        return self.locks.label(self.session.namespace, self.name)

    def wait(self, waiter: object, seconds: float, comment: str) -> None:
        """Wait for the native lock; ``is_head`` tells afterwards whether the session has it.

        It has not if ``waiter`` was cancelled, or so many ``seconds`` have passed. Nothing is
        written meanwhile, so a session whose client has died takes no row. ``comment`` is SQL that
        other sessions can read.
        """
        statement = Statement(f"{comment}{self.locks.wait(self.key, seconds)}")
        self._sent_at, self._waiter = clock(), waiter
        try:
            # RowLocked: the seconds are over.
            with suppress(errors.StatementCancelled, errors.RowLocked):
                answer = self.session.run(statement, None)
                self.is_head = [str(got) for (got,) in answer.rows] == ["1"]
        finally:
            with self._cancelling:  # a cancel that is being sent would end the next statement
                self._waiter, cancelled = None, self._cancelled_at is not None
                self._cancelled_at = None
        if cancelled or not self.is_head:
            self._leave_after_cancel()

    def _leave_after_cancel(self) -> None:
        """Give the native lock back, if it was granted just when the wait was cancelled."""
        leave = Statement(self.locks.leave(self.key))
        try:
            # Cancelled: the cancel of the wait came late; there is one only.
            with suppress(errors.StatementCancelled):
                self.session.run(leave, self.limit)
                return
            self.session.run(leave, self.limit)
        except errors.StatementFailed:
            self.hang_up()  # else the native lock could be got twice, and left once
            raise
        finally:
            self.is_head = False

    def begin_long_wait(self, waited: float) -> None:
        """Come before all who stand in the queue. ``waited`` is the seconds of the wait so far."""
        try:
            answer = self.session.run(self.locks.begin_long_wait(self.key, waited), self.limit)
        except errors.StatementFailed:
            self.hang_up()  # it may have one of the two advisory locks already
            raise
        self.long_wait = int(answer.rows[0][0])

    def take(self, claim: Claim, *, in_turn: bool) -> int | None:
        """Take the row of the lock; the token, or None.

        ``in_turn``: only if it is the head, and nobody waits for long, or is the longest of those.
        """
        dialect, locks = self.session.dialect, self.locks
        run = partial(self.session.run, limit=self.limit)
        if not in_turn:
            return dialect.acquire(run, claim)
        first, values = locks.nobody_waits_long, locks.values(self.key)
        if self.long_wait is not None:
            first, values = locks.nobody_waits_longer(self.key, self.long_wait)
        return dialect.acquire(run, claim, dialect.in_order(first), values)

    def look(self, pause: float, comment: str) -> RowSnapshot | None:
        """Look at the row of the lock after a pause that the server makes; None if there is none.

        ``pause`` is in seconds, ``comment`` is SQL that others can read meanwhile. The server gets
        most of its time for the answer, so that another session can be tried in the rest.
        """
        look = self.locks.look([self.name])
        steps = [self.locks.sleep(pause), look.sql] if pause else [look.sql]
        packet = look._replace(sql="; ".join(f"{comment}{step}" for step in steps))
        rows = self.session.run(packet, pause + self.limit * _MOST).rows
        return RowSnapshot.of(rows[0]) if rows else None

    def leave(self, lease: Lease | None = None, limit: float | None = None) -> Result | None:
        """Free the row of a lease, if any, and give the native lock to the next one.

        Returns the answer about the row. ``limit`` is the seconds that the server gets for each
        answer.
        """
        limit = self.limit if limit is None else limit
        answer = None
        if lease is not None:
            free = self.session.dialect.release_sql(lease)
            answer = self.session.run(self.locks.free_and_leave(self.key, free), limit)
        if not self.empty and not (answer and answer.affected):
            self.session.run(Statement(self.locks.leave(self.key)), limit)
        self.is_head, self.long_wait = False, None
        return answer

    def cancel(self, waiter: object, run: Callable[[Statement], object]) -> None:
        """End the statement in which ``waiter`` waits, if any, through ``run`` on another session.

        Only wait() is cancelled, which writes nothing: the server reports a commit that is kept
        from waiting for its standby as a success. The session of a waiter that was cancelled before
        and does not come back is closed.
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

    def waits_since(self, waiter: object, moment: float) -> bool:
        """Return whether the server keeps ``waiter`` in its queue since ``moment`` or before."""
        return self._waiter is waiter and self._sent_at <= moment

    def hang_up(self) -> None:
        """End whatever goes on here, from this side. The session is of no use afterwards."""
        self.session.hang_up()

    def close(self) -> None:
        """Close the session. The server gives its native lock to the next one."""
        self.session.close()


class WaitSessionPool:
    """The sessions of a process in which nobody waits now.

    A holder that waited for its lock keeps the session, with the native lock, until the release,
    which wakes the next one. After that it is kept for some seconds more, because a lock in demand
    is waited for again at once, and to connect takes longer than most turns.
    """

    def __init__(self, pool: Pool, locks: AdvisoryLocks, threads: WorkerThreads) -> None:
        self._pool = pool
        self._locks = locks
        self._threads = threads
        # No mutex: each method of these that is called is atomic.
        #: the sessions that have the native lock of a lease, by its nonce, longest kept first
        self.kept: dict[str, WaitSession] = {}
        #: those kept for the next wait
        self.idle: list[WaitSession] = []

    def drop_oldest(self) -> bool:
        """Drop the native lock that was kept longest. The row holds its lock all the same."""
        for nonce in self.kept.copy():
            if (session := self.kept.pop(nonce, None)) is not None:
                self.drop(session)
                return True
        return False

    def take(self) -> WaitSession:
        """Return a session to wait in; NoSession, also where a pooler would lend it to others."""
        while self.idle:
            with suppress(IndexError):  # another thread was faster
                idle = self.idle.pop()
                if idle.idle_timer is not None:
                    idle.idle_timer.cancel()
                # The test runner points an alias to another database.
                target = target_of(connections.settings[self._pool.database])
                if idle.usable and idle.session.target == target:
                    return idle
                idle.close()
        session = self._pool.open(blocking=True)
        try:
            if session.pooled:
                raise errors.NoSession("a connection pooler lends its sessions to others")
            return WaitSession(session, self._locks, self._pool.timeout)
        except errors.StatementFailed as failed:
            session.close()
            raise errors.NoSession(str(failed)) from failed.__cause__

    def keep(self, lease: Lease, session: WaitSession) -> None:
        """Keep the native lock of a lease, if that was waited for, for as long as that is held."""
        # Not for a named owner: another process may take and leave its hold, where nobody could
        # wake the next one. Nor for a long wait, for whose end all others wait.
        if session.is_head and session.long_wait is None and not is_named(lease.owner):
            self.kept[lease.nonce] = session
        else:
            self.put(session)

    def put(self, session: WaitSession) -> None:
        """Keep a session for the next wait; close it if it has a native lock, or is not usable."""
        seconds = min(self._pool.idle, _IDLE)
        if seconds <= 0 or not session.usable or not session.empty:
            session.close()
            return
        self.idle.append(session)
        with suppress(RuntimeError):  # no more threads: it is kept longer
            session.idle_timer = call_after(seconds, partial(self._close_idle, session))

    def close(self) -> None:
        """Close all. Locks that are held stay held, by their rows."""
        kept, self.kept = self.kept, {}
        idle, self.idle = self.idle, []
        for session in (*kept.copy().values(), *idle):
            self.drop(session)

    def drop(self, session: WaitSession) -> None:
        """End a session without anything that could block; the server frees its native lock."""
        session.hang_up()
        # Django would refuse to close it where an event loop runs.
        with suppress(RuntimeError):  # no more threads; the server knows all the same
            self._threads.submit(session.close)

    def _close_idle(self, session: WaitSession) -> None:
        # No error: it has been taken, or no more threads can be started. Then the garbage collector
        # closes it. On a thread, because all renewals depend on that of the timers, which calls us.
        with suppress(ValueError, RuntimeError):
            self.idle.remove(session)
            self._threads.submit(session.close)
