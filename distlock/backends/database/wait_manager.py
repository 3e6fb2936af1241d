"""Waiting for a lock of a database in the engine's own lock queue.

**Two sources of truth.** The engine's advisory locks (PostgreSQL) or named locks (MySQL, MariaDB:
``GET_LOCK``), here called *native locks*, say who is next. The row of the lock in our table says
who holds. A native lock alone never grants anything: losing one costs a place in the queue at
worst, and never lets two in.

**One wait** (``waiter``) runs on a worker thread with a session of its own (``wait_session``):

1. It waits in the server for the native lock of the lock's name. The server grants that to one
   waiter at a time, first come, first served, and forgets those whose connection has ended.
2. With the native lock it is the *head* of the queue. It takes the row if that is free.
3. If the row is held, the holder has no native lock, because it did not have to wait. Nothing
   will wake the head then, so it looks at the row again and again. The others stay asleep.
4. With the row it holds the lock. It keeps the native lock, so that all others sleep in the
   server. Its release frees the row and the native lock in one packet, which wakes the next one.

The caller, a thread or a task, waits on a ``Pending`` for the answer. ``WaitManager.enqueue()`` is
the body for both. It tries once, unless others wait already, and then starts a waiter. It answers
that someone else has the lock only if the database has said so (``HolderEvidence``).

**When those in front do not take a free row.** The head may be stopped, cut off, or held up. The
native lock may be kept for a hold that was broken or has ended. So one thread of the process
(``stall_monitor``) looks at the rows meanwhile. A row that nobody has taken for ``GRACE`` seconds
may be taken by anyone: the monitor cancels the waiter's statement in the server
(``WakeReason.GRANTABLE``), and the waiter tries to take the row out of turn. If another one was
faster, it goes to the end of the queue. The monitor also finds that the server has lost a session,
or does not answer at all.

**Long waits on PostgreSQL.** A statement that waits keeps a snapshot, which VACUUM cannot look
past and for which ``CREATE INDEX CONCURRENTLY`` waits. A waiter that such a statement waits for is
cancelled (``WakeReason.REQUEUE``) and goes to the end of the queue. A waiter that has waited for
``longest_wait`` seconds leaves the queue and looks at the row instead. It takes two shared advisory
locks: the first one says that somebody waits for long, the number of the second one says since
when. While anybody has the first one, the queue does not take the row; of those who have it, the
one who waits longest takes the row.

**When the caller gives up,** the waiter is cancelled (``WakeReason.CANCEL``). Only the statement
that waits is cancelled in the server, never one that writes. A wait that was cancelled ends without
the native lock, and its session is used again, or closed if it does not come back.

**When an answer is lost,** a request to take the row may still be under way. Then the claim is
cancelled, again and again until the server must have noticed that the client is gone. A grant that
nobody takes is given back, at the latest when its lease ends. The holds of a killed process end
with their leases. A claim is never asked for again while a waiter of it may still be at work.

**No session can wait** if a connection pooler lends its sessions to others, there are too many
waits, or no more threads. The waiter then looks at the row now and then, and takes it only if
nobody waits in the queue.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

from distlock.backends.background import BlockingCalls, answer_due
from distlock.backends.base import PendingLease
from distlock.backends.database import errors
from distlock.backends.database.advisory_locks import AdvisoryLocks, parse_comment
from distlock.backends.database.pool import Pool
from distlock.backends.database.stall_monitor import StallMonitor
from distlock.backends.database.statements import Result
from distlock.backends.database.wait_session import LockRows, WaitSessionPool
from distlock.backends.database.waiter import HolderEvidence, Waiter
from distlock.concurrency.clock import backoff_until, clock
from distlock.concurrency.pending import NotAnswered
from distlock.concurrency.steps import Call, Sleep, Steps, Wait
from distlock.concurrency.workers import WorkerThreads
from distlock.exceptions import LockUnavailable
from distlock.types.lease import Claim, Lease, Waiting
from distlock.types.owners import is_named

#: Seconds between two looks where no session can wait.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25
#: The longest time until a free lock is taken if the head of the queue was stopped. A waiter with
#: less time left tries the row first.
_STALL_TIME = 5.0


class WaitManager:
    """Where a process waits, with ``size`` sessions at most; more waits look now and then."""

    def __init__(
        self,
        pool: Pool,
        locks: AdvisoryLocks,
        size: int,
        calls: BlockingCalls,
        cancel_later: Callable[[Claim], None],
    ) -> None:
        """``calls`` makes for tasks the calls that block.

        ``cancel_later`` frees soon what a claim has got, or gets later, for nobody. After that the
        claim must not be asked for again.
        """
        self.pool = pool
        self.locks = locks
        self.size = size
        self.rows = LockRows(pool, locks)
        self.cancel_later = cancel_later
        self._calls = calls
        self._threads = WorkerThreads(None, "distlock-waiter")
        self._mutex = threading.Lock()
        self._waiters: set[Waiter] = set()
        self.sessions = WaitSessionPool(self.pool, self.locks, self._threads)
        self._monitor = StallMonitor(self.rows, lambda: self.waiters)

    # For the backend

    def enqueue(self, claim: Claim, deadline: float | None) -> PendingLease:
        """See BaseBackend.enqueue()."""
        evidence = HolderEvidence(self.rows, claim)
        waiters: list[Waiter] = []
        try:
            # As _attempt(), but without it: each `with Lock` comes by here.
            due = None if deadline is None else answer_due(deadline)
            attempt, undo = partial(self._try, claim, evidence), partial(self.cancel_later, claim)
            lease: Lease | None = yield Call(attempt, due, undo, executor=self._calls)
            if lease is not None:
                return lease
            took = clock() - evidence.began
            lease = yield from self._wait(claim, evidence, took, deadline, waiters)
            if lease is not None:
                return lease
            if waiters:
                waiters[-1].abandon()
            try:
                yield Call(evidence.check, answer_due(deadline), executor=self._calls)
            except errors.StatementFailed as failed:
                raise errors.unavailable(failed, self.pool.database) from failed.__cause__
            return None
        finally:
            if waiters:
                waiters[-1].abandon()

    def _wait(
        self,
        claim: Claim,
        evidence: HolderEvidence,
        took: float,
        deadline: float | None,
        waiters: list[Waiter],
    ) -> PendingLease:
        """Wait in the queue, or ask again and again; who waits is noted in ``waiters``.

        ``took``: the seconds that the last answer took.
        """
        for pause in backoff_until(deadline, _FIRST_PAUSE, _LONGEST_PAUSE):
            if not pause:  # the last attempt was made at the deadline
                break
            waiters[:] = [Waiter(self, claim, evidence)]
            if self._start(waiters[0]):
                if not (yield from self._answered(waiters[0], took, deadline)):
                    break
                try:
                    return waiters[0].lease.take()
                except NotAnswered:
                    raise LockUnavailable(
                        f"lock {claim.name!r} was granted, but its waiter did not take it before"
                        f" its lease ended"
                    ) from None
            yield Sleep(pause)
            lease: Lease | None = yield self._attempt(claim, evidence, deadline)
            if lease is not None:
                return lease
        return None

    def _answered(self, waiter: Waiter, took: float, deadline: float | None) -> Steps[bool]:
        """Wait until the waiter has its answer; False if it has none by the deadline.

        Just before that, the database is asked who has the lock, if it has not said so by then.
        """
        if deadline is not None:
            if (yield Wait(waiter.lease, deadline - 2 * took)):
                return True
            if not waiter.evidence.is_recent:
                with suppress(errors.StatementFailed, LockUnavailable):  # it is asked once more
                    yield Call(waiter.evidence.look, deadline, executor=self._calls)
        answered: bool = yield Wait(waiter.lease, deadline)
        return answered

    def _attempt(self, claim: Claim, evidence: HolderEvidence, deadline: float | None) -> Call:
        """Return the step that takes the lock if that can be done now."""
        attempt, undo = partial(self._try, claim, evidence), partial(self.cancel_later, claim)
        return Call(attempt, answer_due(deadline), undo, executor=self._calls)

    def release(self, lease: Lease, limit: float | None = None) -> Result | None:
        """Free the lock and wake the next one; None if no session is kept for this lease.

        ``limit`` is the seconds that the server gets for it. Raises a StatementFailed, and keeps
        nothing any more.
        """
        session = self.sessions.kept.pop(lease.claim.nonce, None)
        if session is None:
            return None
        try:
            return session.leave(lease, limit)
        finally:
            self.sessions.put(session)

    def cancel(self, claim: Claim) -> None:
        """Stop waiting for a claim, and drop its native lock; the row is the caller's to free."""
        for waiter in self.waiters:
            if waiter.claim.nonce == claim.nonce:
                waiter.abandon()
        self.discard(claim.nonce)

    def discard(self, nonce: str) -> None:
        """Drop the native lock of a lease that is gone. Nothing that could block, no errors."""
        if session := self.sessions.kept.pop(nonce, None):
            self.sessions.drop(session)

    def close(self) -> None:
        """Close the sessions in which nobody waits."""
        self.sessions.close()

    def label(self, name: str) -> str:
        """Return the native lock of the lock ``name``, as waiting() calls it."""
        return self.locks.label(self.pool.namespace, name)

    def waiting(self, deadline: float | None = None) -> dict[str, tuple[Waiting, ...]] | None:
        """Return who waits for which native lock, in order, in all processes; None if unknown."""
        if self.pool.pooled:
            return None
        try:
            answer = self.pool.run(self.locks.comments(), deadline)
        except errors.StatementFailed:  # what is shown to whom is the administrator's business
            return None
        comments = [parse_comment(str(text), float(age)) for text, age, *_ in answer.rows]
        parsed = [comment for comment in comments if comment is not None]
        if len(parsed) < len(comments):
            return None
        # Waiters that have left the queue after a long time are all first; of these the longest
        # waiter is the next.
        parsed.sort(key=lambda comment: -(comment.who.waited or 0) if comment.first else 1.0)
        found: dict[str, tuple[Waiting, ...]] = {}
        for comment in parsed:
            if self.locks.is_in(self.pool.namespace, comment.key):
                found[comment.key] = (*found.get(comment.key, ()), comment.who)
        return found

    # The way in

    def _try(self, claim: Claim, evidence: HolderEvidence, deadline: float | None) -> Lease | None:
        """Take the lock if it is free and nobody waits for it."""
        rest = math.inf if deadline is None else deadline - clock()
        if (
            self.sessions.idle
            and any(session.name == claim.name for session in self.sessions.idle.copy())
            and rest > _STALL_TIME
            and not is_named(claim.owner)
        ):
            return None  # it is in demand: the queue will tell, in one round trip less
        brief = rest < errors.BRIEF
        try:
            if brief and evidence.look(deadline):
                return None
            sent_at = clock()
            take = partial(self.rows.take_if_no_waiters, claim)
            token = self.pool.work(take, deadline)
        except errors.SerializationFailure:  # someone is writing the row at the moment
            return None
        except errors.RowLocked as failed:
            evidence.row_locked = failed
            return None
        except errors.StatementFailed as failed:
            failed = errors.seems_locked(failed) if brief else failed
            raise errors.unavailable(failed, self.pool.database) from failed.__cause__
        return None if token is None else claim.granted(token, sent_at)

    def _start(self, waiter: Waiter) -> bool:
        """Let a waiter begin; False if there is no session left to wait in, or none that could."""
        if self.pool.pooled:
            return False
        try:
            with self._mutex:
                full = len(self._waiters) + len(self.sessions.kept) >= self.size
                # A holder may do without the native lock: it is the row that holds the lock.
                if full and not self.sessions.drop_oldest():
                    return False
                self._waiters.add(waiter)
            self._monitor.start()
            self._threads.submit(waiter.run)
        except BaseException as error:  # also an interrupt, after which the waiter may go on
            # A claim must not be asked for again while a waiter of it is at work: the waiter frees
            # in the end what it may have got.
            never_runs = waiter.begin()
            if never_runs:
                self._waiters.discard(waiter)
            if never_runs and isinstance(error, RuntimeError):  # no more threads
                return False
            raise
        return True

    # For waiters and the monitor

    @property
    def waiters(self) -> Collection[Waiter]:
        return self._waiters.copy()

    def cancel_soon(self, waiter: Waiter) -> None:
        """Have a waiter cancelled whose answer nobody wants any more. See StallMonitor.wake()."""
        if waiter in self._waiters:
            self._monitor.wake()

    def finished(self, waiter: Waiter) -> None:
        """Note that a wait has ended."""
        self._waiters.discard(waiter)
