"""One wait for one lock: a worker thread waits in the server, the caller waits for its answer.

The caller learns of another holder only if the database has named one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Protocol

from distlock.backends.database import errors
from distlock.backends.database.advisory_locks import AdvisoryLocks, comment
from distlock.backends.database.pool import Pool
from distlock.backends.database.sql import TABLE
from distlock.backends.database.wait_session import (
    LockRows,
    RowSnapshot,
    WaitSession,
    WaitSessionPool,
)
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Latch, Pending
from distlock.concurrency.threads import Timer, call_after, start, thread_logger
from distlock.exceptions import LockError, LockUnavailable
from distlock.types.lease import Claim, Lease

#: The head of the queue looks at the row so often that it adds no more than this part to its wait.
_LATENCY = 0.02
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.002, 0.25
#: Seconds beyond the time-out after which a question has failed because this process stood still.
_STOOD_STILL = 1.0
#: For this many seconds after its release a row still counts as held: the next one takes it.
_HANDOVER = 2.0
#: Seconds between two looks for evidence.
_EVIDENCE_PAUSE = 0.05
#: Seconds between two attempts to get to the server.
_RETRY_PAUSE = 0.1

#: A server that restarts, a network that breaks, an operator who cancels what takes long.
_TRANSIENT = (
    errors.ConnectionLost,
    errors.NoSession,
    errors.StatementTimeout,
    errors.StatementCancelled,
)


@dataclass(slots=True)
class HolderEvidence:
    """The answers of the database about the holder of a lock since one claim asked for it."""

    _rows: LockRows
    _claim: Claim
    #: when the claim asked first
    began: float = field(default_factory=clock)
    #: when the latest question was sent whose answer was that someone else has the lock
    held_at: float = -math.inf
    #: why the lock could not be taken although it may be free
    row_locked: errors.RowLocked | None = None

    @property
    def is_recent(self) -> bool:
        """Whether it is no older than what the database gets for an answer."""
        return clock() - self.held_at < self._rows.pool.timeout

    def look(self, deadline: float | None) -> bool:
        """Ask whether someone else has the lock now; raises a StatementFailed."""
        sent_at = clock()
        row = self._rows.look([self._claim.name], deadline).get(self._claim.name)
        if row is None or row.grantable_to(self._claim):
            return False
        self.note_held(row, sent_at)
        return True

    def note_held(self, row: RowSnapshot, sent_at: float) -> None:
        """Note that someone else has the lock; forget a holder noted under another token."""
        holder = self._claim.refused_by
        if holder is not None:
            age = (holder.held_for or 0.0) + sent_at - max(self.held_at, self.began)
            same = holder.token == row.token
            self._claim.refused_by = replace(holder, held_for=age) if same else None
        self.held_at = sent_at

    def check(self, deadline: float | None) -> None:
        """Raise a StatementFailed unless someone else had the lock, by the database's word.

        That word must not be older than what the database gets for an answer. If there is none,
        it is asked again until ``deadline``, although the caller's time is over.
        """
        now = clock()
        until = math.inf if deadline is None else deadline
        if self.is_recent:
            return
        while True:
            row = self._rows.look([self._claim.name], until).get(self._claim.name)
            if row is not None and self._was_held(row, now):
                self.note_held(row, clock())
                return
            if self.row_locked is not None:
                raise self.row_locked
            if clock() >= until:
                break
            time.sleep(_EVIDENCE_PAUSE)  # it may be taken just now, for the first time: no row yet
        raise errors.StatementFailed(
            f"lock {self._claim.name!r} is free, but could not be taken in time: its row or the"
            f" table {TABLE} is locked by another transaction, or the first waiter in line"
            " does not take it"
        )

    def _was_held(self, row: RowSnapshot, now: float) -> bool:
        if row.is_held_by(self._claim):
            return False
        # Where the row is locked, the holder may be committing, even if the lease has ended.
        if row.remaining > 0 or self.row_locked is not None:
            return bool(row.owner)
        return row.remaining > -max(now - self.began, _HANDOVER)


class WakeReason(Enum):
    """Why a waiter's statement is cancelled in the server."""

    GRANTABLE = "the lock is free, and the first waiter does not take it"
    REQUEUE = "the statement blocks another one"
    CANCEL = "no caller waits for the answer"


class Waits(Protocol):
    """The waits of a process, as a waiter needs them. WaitManager is one."""

    pool: Pool
    locks: AdvisoryLocks
    rows: LockRows
    sessions: WaitSessionPool
    cancel_later: Callable[[Claim], None]

    def cancel_soon(self, waiter: Waiter) -> None: ...
    def finished(self, waiter: Waiter) -> None: ...


class Waiter:
    """A wait: from when it enters the queue to a lease, an error, or until the caller gives up."""

    def __init__(self, waits: Waits, claim: Claim, evidence: HolderEvidence) -> None:
        self.waits = waits
        self.claim = claim
        self.evidence = evidence
        #: the answer
        self.lease: Pending[Lease] = Pending(self._cancel)
        #: where it waits
        self.session: WaitSession | None = None
        #: why its statement was cancelled
        self.wake_reason: WakeReason | None = None
        #: when the wait began
        self.began = clock()
        self._heard_at = self.began  # when the server last answered a question about this wait
        self._trouble_since: float | None = None
        self._asked_at: float | None = None  # when a question was sent that has no answer yet
        # A request to take the row may still be carried out, though its answer was lost.
        self._maybe_granted = False
        self._reclaim: Timer | None = None
        self._ended = Latch()  # ends a pause
        self._not_begun = threading.Lock()

    def begin(self) -> bool:
        """Return whether the caller is the first to begin; only the first may go on."""
        return self._not_begun.acquire(blocking=False)

    def abandon(self) -> None:
        """Give the wait up, unless its lease was taken. Doing it twice does no harm.

        The garbage collector may call it, for the coroutine of a task that was dropped.
        """
        if self.lease.abandon() is not None:
            with suppress(RuntimeError):  # no more threads: the lease ends by itself
                start(self.waits.cancel_later, "distlock-undo", self.claim)
        if self._reclaim is not None:
            self._reclaim.cancel()

    def _cancel(self) -> None:
        self._ended.set()
        self.waits.cancel_soon(self)

    # For the monitor, too

    def fail(self, error: LockError) -> None:
        """Answer with an error, and stop waiting."""
        if self.lease.fail(error):
            self._ended.set()
            if session := self.session:
                session.hang_up()

    def wake(self, reason: WakeReason) -> None:
        """Cancel the statement in which it waits in the server, if it does."""
        if session := self.session:
            self.wake_reason = reason
            session.cancel(self, self.waits.pool.run)

    def note_answer(self) -> None:
        """Note that the server has answered a question about this wait."""
        self._heard_at, self._trouble_since, self._asked_at = clock(), None, None

    def note_failure(self, failed: errors.StatementFailed, asked_at: float | None = None) -> None:
        """Note that the server does not answer, and fail if that has lasted for too long.

        ``asked_at`` is when the question was sent that has failed.
        """
        now, asked_at = clock(), asked_at or self._asked_at
        if asked_at is None or now - asked_at > self.waits.pool.timeout + _STOOD_STILL:
            asked_at = now
        self._trouble_since = self._trouble_since or asked_at
        if now >= self.patient_until:
            self.fail(errors.unavailable(failed, self.waits.pool.database))

    @property
    def patient_until(self) -> float:
        """How long a failing server is asked again: for its time-out since its last answer.

        This process may have stood still since then. So half of that time is given in any case,
        from when the first question was sent that has failed.
        """
        timeout = self.waits.pool.timeout
        return max(self._heard_at + timeout, (self._trouble_since or clock()) + timeout / 2)

    # The worker thread

    def run(self) -> None:
        """Wait, on the thread that calls this, for as long as anybody wants the answer."""
        if not self.begin():
            return
        try:
            while not self.lease.over:
                try:
                    self._wait_once()
                except errors.StatementFailed as failed:
                    self._handle_failure(failed)
        except Exception as error:
            thread_logger.exception("waiting for lock %r failed", self.claim.name)
            self.fail(LockUnavailable(f"waiting for lock {self.claim.name!r} failed: {error!r}"))
        finally:
            self._finish()

    def _wait_once(self) -> None:
        """Stand in the queue once: until it has the row, or its statement was cancelled."""
        if self.session is None:
            try:
                self.session = self.waits.sessions.take()
            except errors.NoSession:  # look at the row now and then, through the shared sessions
                take = partial(self.waits.rows.take_if_no_waiters, self.claim)
                if not self._take(partial(self.waits.pool.work, take)):
                    self._ended.wait(_LONGEST_PAUSE)
                return
        session = self.session
        session.name = self.claim.name
        reason, self.wake_reason = self.wake_reason, None
        if self.lease.over:  # ended without a session to cancel or to close
            return
        if reason is WakeReason.GRANTABLE and self._take_row(session, in_turn=False):
            return
        if session.empty and not self._is_long:
            rest = self.waits.locks.longest_wait - (clock() - self.began)
            session.wait(self, rest, self._comment(session))
            if session.empty and self.wake_reason is None and not self._is_long:
                raise errors.StatementCancelled("the server ended a wait by itself")
        if session.is_head or self._is_long:
            self._poll_row(session)

    @property
    def _is_long(self) -> bool:
        """Whether it has waited for so long that it must not wait in the server any more."""
        return clock() - self.began >= self.waits.locks.longest_wait

    def _poll_row(self, session: WaitSession) -> None:
        """Take the row as soon as it is free: nothing wakes the head, or one who waits for long."""
        if self.lease.over or (session.is_head and self._take_row(session)):
            return
        began, pause = clock(), 0.0
        while not self.lease.over:
            sent_at = clock()
            if session.long_wait is None and self._is_long:
                session.begin_long_wait(sent_at - self.began)
            self._asked_at = sent_at
            row = session.look(pause, self._comment(session))
            self.note_answer()
            rest = _LONGEST_PAUSE if row is None else row.remaining
            if row is None or row.grantable_to(self.claim):
                if self._take_row(session, in_turn=row is None or not row.stalled):
                    return
                rest = _SHORTEST_PAUSE
            else:
                self.evidence.note_held(row, sent_at)
            pause = min((clock() - began) * _LATENCY, _LONGEST_PAUSE, rest)
            pause = max(pause, _SHORTEST_PAUSE)
            if not self.waits.locks.sleep(pause):
                self._ended.wait(pause)
                pause = 0.0

    def _take_row(self, session: WaitSession, *, in_turn: bool = True) -> bool:
        return self._take(partial(session.take, self.claim, in_turn=in_turn))

    def _take(self, take: Callable[[], int | None]) -> bool:
        """Take the row by ``take()``, which returns the token or None, if that can be done now."""
        self._asked_at = sent_at = clock()
        try:
            token = take()
        except errors.StatementFailed as failed:
            self._maybe_granted = self._maybe_granted or failed.maybe_applied
            raise
        self.note_answer()
        if token is None:
            return False
        self._maybe_granted = False
        lease = self.claim.granted(token, sent_at)
        session, self.session = self.session, None
        if session is not None:
            self.waits.sessions.keep(lease, session)
        with suppress(RuntimeError):  # no more threads
            # If an event loop was stopped for good, its task never takes the lease.
            self._reclaim = call_after(lease.duration, self.abandon)
        if not self.lease.resolve(lease):
            if self._reclaim is not None:
                self._reclaim.cancel()
            self.waits.cancel_later(self.claim)
        return True

    def _comment(self, session: WaitSession) -> str:
        waited = clock() - self.began
        return comment(session.label, self.claim, waited, first=not session.empty)

    def _finish(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            with suppress(errors.StatementFailed):
                session.leave()
            self.waits.sessions.put(session)
        self.waits.finished(self)
        if self._maybe_granted:
            self.waits.cancel_later(self.claim)

    def _handle_failure(self, failed: errors.StatementFailed) -> None:
        """Go on after a failure, unless it has lasted for too long or would last forever."""
        session = self.session
        if session is not None and not session.usable:
            self.session = None
            session.close()
        if isinstance(failed, (errors.SerializationFailure, errors.RowLocked)):
            self.note_answer()
            if isinstance(failed, errors.RowLocked):
                self.evidence.row_locked = failed
            self._ended.wait(_SHORTEST_PAUSE)
        elif isinstance(failed, _TRANSIENT):
            self.note_failure(failed)
            self._ended.wait(_RETRY_PAUSE)
        else:
            self.fail(errors.unavailable(failed, self.waits.pool.database))
