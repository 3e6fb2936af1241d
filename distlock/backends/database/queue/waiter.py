"""One wait for one lock: a thread waits in the server, and the caller waits on a future."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from distlock.backends.database import errors
from distlock.backends.database.queue.holder_evidence import HolderEvidence
from distlock.backends.database.queue.pending_lease import PendingLease
from distlock.backends.database.queue.sql_comment import sign
from distlock.backends.database.queue.wait_session import WaitSession
from distlock.clock import clock
from distlock.exceptions import LockError, LockUnavailable
from distlock.types.lease import Claim, Lease
from distlock.watchdog import watchdog

if TYPE_CHECKING:
    from distlock.backends.database.queue.wait_manager import WaitManager

logger = logging.getLogger("distlock")

#: The head of the queue looks at the row so often that it adds no more than this part to its wait.
_EAGERNESS = 0.02
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.002, 0.25
#: Seconds between two looks of the head of the queue at those who stand aside.
_LOOK_ASIDE = 1.0
#: Seconds between two attempts to get to the server.
_RETRY_PAUSE = 0.1

#: Seconds after which a server has noticed that a client is gone: one that said so, and one that
#: did not, see the settings of the sessions. Until then it may carry out what it was asked.
_NOTICED = (2.5, 30.0)

#: A server that restarts, a network that breaks, an operator who cancels what takes long.
_MAY_PASS = (errors.ConnectionLost, errors.NoSession, errors.StatementTimeout, errors.Cancelled)


class WakeReason(Enum):
    """Why a waiter is called out of its queue."""

    TAKE = "the lock can be taken, and the one whose turn it is does not"
    ENTER = "the lock is held in the waiter's own name"
    STAND_ASIDE = "the wait is in somebody's way, or took so long that the engine pays for it"
    LEAVE = "nobody waits for the answer any more"


class Waiter(PendingLease):
    """A wait, from the first look to a lease, or until nobody cares for it any more."""

    def __init__(
        self, room: WaitManager, claim: Claim, place: WaitSession | None, proof: HolderEvidence
    ) -> None:
        super().__init__()
        self.room = room
        self.claim = claim
        self.place = place
        self._proof = proof
        self._began = clock()
        self.heard_at = self._began  # when the server last answered a question about this wait
        self.since = self._began  # it stands in the queue
        self.why: WakeReason | None = None  # it was called out
        self.missed = 0  # how often the server did not know of its question
        self._trouble_since: float | None = None
        self._begun = False
        self._maybe_still_queued = False  # a grant whose answer was lost may still come
        self._bell = threading.Lock()
        self._bell.acquire()

    def begin(self) -> bool:
        """Return whether the caller is the first to begin; only the first may go on."""
        with self._mutex:
            begun, self._begun = self._begun, True
            return not begun

    def leave(self) -> None:
        """See PendingLease.leave()."""
        self.why = WakeReason.LEAVE
        self._ring()
        self.room.monitor.cancel(self)

    def give_back(self, lease: Lease) -> None:
        """See PendingLease.give_back()."""
        self.room.give_back(lease)

    def fail(self, error: LockError) -> None:
        """Tell the caller that there will be no answer, and stop waiting for one."""
        if self.answer(error):
            self._ring()
            if place := self.place:
                place.hang_up()

    # The monitor's side

    def blocked_since(self, moment: float) -> bool:
        """Return whether the server keeps it waiting by the same question as at that moment."""
        place = self.place
        return place is not None and place.waits(self, moment)

    def seen_well(self, sent_at: float, *, held: bool) -> None:
        """Note that by a look sent at ``sent_at`` all was well with the wait.

        ``held`` says that someone else has the lock.
        """
        self._heard()
        self.missed = 0
        if held:
            self._proof.held_at = sent_at

    def _heard(self) -> None:
        self.heard_at, self._trouble_since = clock(), None

    # The thread

    def run(self) -> None:
        """Wait, on the thread that calls this, for as long as anybody wants the answer."""
        if not self.begin():
            return
        try:
            while not self.over:
                try:
                    self._go()
                except errors.StatementFailed as failed:
                    self._handle_failure(failed)
        except LockError as error:
            self.fail(error)
        except Exception as error:
            logger.exception("waiting for %r failed", self.claim.name)
            self.fail(LockUnavailable(f"waiting for {self.claim.name!r} failed: {error!r}"))
        finally:
            self._go_away()

    def _go(self) -> None:
        """Stand in the queue once, to its end or until called out."""
        place = self.place
        if place is None:
            try:
                place = self.place = self.room.open_place()
            except errors.NoSession as failed:
                return self._wait_outside(failed)
            if self.over:  # see fail(), which has found no place to hang up on
                return
        why, self.why = self.why, None
        if why is WakeReason.TAKE and self._take(self.room.rows.take_now):
            return
        if why is WakeReason.ENTER and self._take(self.room.rows.enter_at):
            return
        if place.free and (why is WakeReason.STAND_ASIDE or self._is_long):
            place.stand_aside(self.claim.name, clock() - self._began)
        if place.free:
            self.since = clock()
            place.wait(self.claim.name, self, self._sign(place))
        if not place.free:
            self._look_and_take(place)
        elif self.why is None:
            raise errors.Cancelled("the server gave up a wait by itself")

    def _take(self, take: Callable[[WaitSession, Claim], int | None]) -> bool:
        """Take the lock if the row says that it can be taken, whoever has the native one."""
        assert self.place is not None
        sent_at = clock()
        try:
            token = take(self.place, self.claim)
        except errors.StatementFailed as failed:
            self._maybe_still_queued = self._maybe_still_queued or failed.maybe_applied
            raise
        self._heard()
        if token is None:
            self._proof.held_at = sent_at
            return False
        self._deliver(token, sent_at)
        return True

    @property
    def _is_long(self) -> bool:
        """Whether it has waited for so long that it must not wait in the server any more."""
        longest = self.room.native.longest_wait
        return longest is not None and clock() - self._began > longest

    def _look_and_take(self, place: WaitSession) -> None:
        """Take the lock; if its holder has no native lock to wake us with, look at the row."""
        if self.over or self._take(self.room.rows.take_at):
            return
        began, pause = clock() if place.ticket is None else self._began, 0.0
        look_aside_at = 0.0
        while not self.over:
            sent_at = clock()
            if place.ticket is None and sent_at >= look_aside_at:
                look_aside_at = sent_at + _LOOK_ASIDE
                # One who has no need to stand aside does so too, or those would come before it.
                if place.is_somebody_aside():
                    place.stand_aside(self.claim.name, clock() - self._began)
            row = self.room.rows.look_from(place, self.claim.name, pause, self, self._sign(place))
            self._heard()
            rest = _LONGEST_PAUSE if row is None else row.remaining
            if row is None or row.open_to(self.claim):
                stalled = row is not None and self.room.monitor.stalled(row)
                rows = self.room.rows
                if self._take(rows.take_now if stalled else rows.take_at):
                    return
                look_aside_at = 0.0
                rest = _SHORTEST_PAUSE
            else:
                self._proof.held_at = sent_at
            pause = min(max((clock() - began) * _EAGERNESS, _SHORTEST_PAUSE), _LONGEST_PAUSE)
            pause = max(min(pause, rest), _SHORTEST_PAUSE)
            if not place.native.sleep(pause):
                self._pause(pause)
                pause = 0.0

    def _wait_outside(self, failed: errors.StatementFailed) -> None:
        """Without a session to wait in: look now and then, through those there are."""
        sent_at = clock()
        try:
            token = self.room.rows.take_if_no_waiters(self.claim)
        except errors.NoSession:
            raise failed from failed.__cause__
        self._heard()
        if token is not None:
            return self._deliver(token, sent_at)
        self._pause(_LONGEST_PAUSE)

    def _deliver(self, token: int, sent_at: float) -> None:
        self._maybe_still_queued = False
        lease = self.claim.granted(token, sent_at)
        place, self.place = self.place, None
        self.room.keep(lease, place)
        if not self.answer(lease):
            self.room.undo(lease)
        elif self.for_loop:
            watchdog.add(lease.duration, self.abandon)

    def _sign(self, place: WaitSession) -> str:
        key, first = place.key_of(self.claim.name), not place.free
        return sign(key, self.claim, clock() - self._began, first=first)

    def _pause(self, seconds: float) -> None:
        """Sleep, but not for longer than anybody wants the answer."""
        self._bell.acquire(timeout=seconds)

    def _ring(self) -> None:
        with suppress(RuntimeError):  # it has rung already
            self._bell.release()

    def _go_away(self) -> None:
        place, self.place = self.place, None
        if place is not None:
            with suppress(errors.StatementFailed):
                place.leave()
        self.room.left(self, place)
        if self._maybe_still_queued:
            for seconds in _NOTICED:
                watchdog.add(seconds, partial(self.room.withdraw_soon, self.claim))

    def _handle_failure(self, failed: errors.StatementFailed) -> None:
        """Go on after a failure, unless it has lasted for too long or would last for ever."""
        place = self.place
        if place is not None and not place.usable:
            self.place = None
            place.close()
        if isinstance(failed, errors.Cancelled) and self.why is not None:
            return
        if isinstance(failed, (errors.SerializationFailure, errors.RowLocked)):
            self._heard()
            if isinstance(failed, errors.RowLocked):
                self._proof.refused = failed
            self._pause(_SHORTEST_PAUSE)
            return
        if not isinstance(failed, _MAY_PASS):
            raise self.room.unavailable(failed)
        if self._trouble_since is None:
            self._trouble_since = clock()
        if clock() >= patient_until(self._trouble_since, self.heard_at, self.room.pool.timeout):
            raise self.room.unavailable(failed)
        self._pause(_RETRY_PAUSE)


def patient_until(trouble_since: float, heard_at: float, timeout: float) -> float:
    """Return how long a failing server is asked again: for its time-out since its last answer.

    This process may have stood still since then, so that some time is given in any case.
    """
    return max(heard_at + timeout, trouble_since + timeout / 2)
