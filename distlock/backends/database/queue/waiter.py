"""One wait for one lock: a worker thread waits in the server, the caller waits for its answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Protocol

from distlock.backends.database import errors
from distlock.backends.database.advisory_locks import AdvisoryLocks
from distlock.backends.database.pool import Pool
from distlock.backends.database.queue.lock_rows import HolderEvidence, LockRows
from distlock.backends.database.queue.sql_comment import comment
from distlock.backends.database.queue.wait_session import WaitSession
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Latch, Pending
from distlock.concurrency.threads import start
from distlock.concurrency.timers import Timer, call_after
from distlock.exceptions import LockError, LockUnavailable
from distlock.types.lease import Claim, Lease

logger = logging.getLogger("distlock")

#: The head of the queue looks at the row so often that it adds no more than this part to its wait.
_LATENCY = 0.02
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.002, 0.25
#: Seconds between two attempts to get to the server.
_RETRY_PAUSE = 0.1

#: A server that restarts, a network that breaks, an operator who cancels what takes long.
_TRANSIENT = (
    errors.ConnectionLost,
    errors.NoSession,
    errors.StatementTimeout,
    errors.Cancelled,
)


class WakeReason(Enum):
    """Why a waiter's statement is cancelled in the server."""

    GRANTABLE = "the lock can be taken, and the one whose turn it is does not"
    REQUEUE = "the statement is in somebody's way"
    CANCEL = "nobody waits for the answer any more"


class Waits(Protocol):
    """What a waiter needs of the waits of its process."""

    pool: Pool
    locks: AdvisoryLocks
    rows: LockRows

    def open_session(self) -> WaitSession: ...

    def cancel_soon(self, waiter: Waiter) -> None: ...

    def granted(self, lease: Lease, session: WaitSession | None) -> None: ...

    cancel_later: Callable[[Claim], None]

    def finished(self, waiter: Waiter, session: WaitSession | None) -> None: ...

    def unavailable(self, failed: errors.StatementFailed) -> LockUnavailable: ...


class Waiter:
    """A wait: from when it enters the queue to a lease, an error, or until the caller gives up."""

    def __init__(self, waits: Waits, claim: Claim, evidence: HolderEvidence) -> None:
        self.waits = waits
        self.claim = claim
        self.evidence = evidence
        #: the answer
        self.lease: Pending[Lease] = Pending(self._cancel)
        #: where it waits; it opens one itself if it was given none
        self.session: WaitSession | None = None
        #: when the server last answered a question about this wait
        self.heard_at = clock()
        #: since when it has been in the queue
        self.queued_at = self.heard_at
        #: why its statement was cancelled
        self.wake_reason: WakeReason | None = None
        self._began = self.heard_at
        self._trouble_since: float | None = None
        # A request to take the row may still be carried out, though its answer was lost.
        self._maybe_granted = False
        self._reclaim: Timer | None = None
        self._ended = Latch()  # ends a pause
        self._not_begun = threading.Lock()

    def begin(self) -> bool:
        """Return whether the caller is the first to begin; only the first may go on."""
        return self._not_begun.acquire(blocking=False)

    def abandon(self) -> None:
        """Want the lease no more, unless it was taken. Doing it twice does no harm.

        The garbage collector may call it, for the coroutine of a task that was dropped.
        """
        if self.lease.abandon() is not None:
            with suppress(RuntimeError):  # no more threads: the lease ends by itself
                start(self.waits.cancel_later, "distlock-undo", self.claim)
        if self._reclaim is not None:
            self._reclaim.cancel()

    def _cancel(self) -> None:
        self.wake_reason = WakeReason.CANCEL
        self._ended.set()
        self.waits.cancel_soon(self)

    # For the monitor

    def fail(self, error: LockError) -> None:
        """Answer with an error, and stop waiting."""
        if self.lease.fail(error):
            self._ended.set()
            if session := self.session:
                session.hang_up()

    def wake(self, reason: WakeReason) -> None:
        """Cancel the statement in which it waits in the server, if it does."""
        if (session := self.session) and session.waits_since(self, clock()):
            self.wake_reason = reason
            session.cancel(self, self.waits.pool.run)

    def note_alive(self, sent_at: float, *, held: bool) -> None:
        """Note that by a look sent at ``sent_at`` all was well; ``held``: someone has the lock."""
        self._note_answer()
        if held:
            self.evidence.held_at = sent_at

    def _note_answer(self) -> None:
        self.heard_at, self._trouble_since = clock(), None

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
        except LockError as error:
            self.fail(error)
        except Exception as error:
            logger.exception("waiting for lock %r failed", self.claim.name)
            self.fail(LockUnavailable(f"waiting for lock {self.claim.name!r} failed: {error!r}"))
        finally:
            self._finish()

    def _wait_once(self) -> None:
        """Stand in the queue once: until it has the row, or its statement was cancelled."""
        if self.session is None:
            try:
                self.session = self.waits.open_session()
            except errors.NoSession as failed:
                return self._try_without_session(failed)
        session, waited = self.session, clock() - self._began
        reason, self.wake_reason = self.wake_reason, None
        if self.lease.over:  # fail() and cancel() found no session
            return
        if reason is WakeReason.GRANTABLE and self._take(session, in_turn=False):
            return
        if session.empty and not self._is_long:
            self.queued_at = clock()
            rest = self.waits.locks.longest_wait - waited
            session.wait(self.claim.name, self, rest, self._comment(session))
            if session.empty and self.wake_reason is None and not self._is_long:
                raise errors.Cancelled("the server ended a wait by itself")
        elif session.empty:
            session.begin_long_wait(self.claim.name, waited)
        if not session.empty:
            self._poll_row(session)

    @property
    def _is_long(self) -> bool:
        """Whether it has waited for so long that it must not wait in the server any more."""
        return clock() - self._began >= self.waits.locks.longest_wait

    def _poll_row(self, session: WaitSession) -> None:
        """Take the row as soon as it is free: nothing wakes the head, or one who waits for long."""
        if self.lease.over or self._take(session):
            return
        began = clock() if session.long_wait is None else self._began
        pause = 0.0
        while not self.lease.over:
            sent_at = clock()
            if session.long_wait is None and self._is_long:
                session.begin_long_wait(self.claim.name, sent_at - self._began)
            row = self.waits.rows.look_from(
                session, self.claim.name, pause, self, self._comment(session)
            )
            self._note_answer()
            rest = _LONGEST_PAUSE if row is None else row.remaining
            if row is None or row.grantable_to(self.claim):
                if self._take(session, in_turn=row is None or not row.stalled):
                    return
                rest = _SHORTEST_PAUSE
            else:
                self.evidence.held_at = sent_at
            pause = min((clock() - began) * _LATENCY, _LONGEST_PAUSE, rest)
            pause = max(pause, _SHORTEST_PAUSE)
            if not self.waits.locks.sleep(pause):
                self._ended.wait(pause)
                pause = 0.0

    def _take(self, session: WaitSession, *, in_turn: bool = True) -> bool:
        """Take the row if that can be done now."""
        sent_at = clock()
        try:
            token = self.waits.rows.take(session, self.claim, in_turn=in_turn)
        except errors.StatementFailed as failed:
            self._maybe_granted = self._maybe_granted or failed.maybe_applied
            raise
        self._note_answer()
        if token is None:
            self.evidence.held_at = sent_at
            return False
        self._deliver(token, sent_at)
        return True

    def _try_without_session(self, failed: errors.NoSession) -> None:
        """No session to wait in: look at the row now and then, through the shared ones."""
        sent_at = clock()
        try:
            token = self.waits.rows.take_if_no_waiters(self.claim)
        except errors.NoSession:
            raise failed from failed.__cause__
        except errors.StatementFailed as error:
            self._maybe_granted = self._maybe_granted or error.maybe_applied
            raise
        self._note_answer()
        if token is not None:
            return self._deliver(token, sent_at)
        self._ended.wait(_LONGEST_PAUSE)

    def _deliver(self, token: int, sent_at: float) -> None:
        self._maybe_granted = False
        lease = self.claim.granted(token, sent_at)
        session, self.session = self.session, None
        self.waits.granted(lease, session)
        with suppress(RuntimeError):  # no more threads
            # An event loop may have been stopped for good: its task never takes the answer.
            self._reclaim = call_after(lease.duration, self.abandon)
        if not self.lease.resolve(lease):
            if self._reclaim is not None:
                self._reclaim.cancel()
            self.waits.cancel_later(self.claim)

    def _comment(self, session: WaitSession) -> str:
        key, first = self.waits.rows.key(self.claim.name), not session.empty
        return comment(key, self.claim, clock() - self._began, first=first)

    def _finish(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            with suppress(errors.StatementFailed):
                session.leave()
        self.waits.finished(self, session)
        if self._maybe_granted:
            self.waits.cancel_later(self.claim)

    def _handle_failure(self, failed: errors.StatementFailed) -> None:
        """Go on after a failure, unless it has lasted for too long or would last for ever."""
        session = self.session
        if session is not None and not session.usable:
            self.session = None
            session.close()
        if isinstance(failed, errors.Cancelled) and self.wake_reason is not None:
            return
        if isinstance(failed, (errors.SerializationFailure, errors.RowLocked)):
            self._note_answer()
            if isinstance(failed, errors.RowLocked):
                self.evidence.row_locked = failed
            self._ended.wait(_SHORTEST_PAUSE)
            return
        if not isinstance(failed, _TRANSIENT):
            raise self.waits.unavailable(failed)
        if self._trouble_since is None:
            self._trouble_since = clock()
        if clock() >= retry_until(self._trouble_since, self.heard_at, self.waits.pool.timeout):
            raise self.waits.unavailable(failed)
        self._ended.wait(_RETRY_PAUSE)


def retry_until(trouble_since: float, heard_at: float, timeout: float) -> float:
    """Return how long a failing server is asked again: for its time-out since its last answer.

    This process may have stood still since then, so that some time is given in any case.
    """
    return max(heard_at + timeout, trouble_since + timeout / 2)
