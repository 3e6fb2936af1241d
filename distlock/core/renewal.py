"""Keeps every lease of this process alive, and tells of those that are gone.

One thread watches the time for all backends. It never talks to a backend itself: renewals run
beside it, one at a time for each backend, so that a server that does not answer delays neither the
leases of another nor the news that a lease has ended.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from distlock.backends.base import BaseBackend
from distlock.clock import clock
from distlock.core.held import BROKEN, ENDED, HeldLease, Level
from distlock.core.loss import LossNotifier
from distlock.core.renewal_log import RenewalLog
from distlock.exceptions import LockError
from distlock.threads import start
from distlock.types.lease import Lease

logger = logging.getLogger("distlock")

_SHORTEST_RETRY, _LONGEST_RETRY = 0.02, 1.0
#: The condition variable counts on a clock that may have slept, unlike ours: look now and then.
_LONGEST_SLEEP = 60.0


class LeaseRenewer:
    """The holds of a process, by the nonce of their lease."""

    def __init__(self) -> None:
        # Entered as it is: an interrupt could leave the condition variable's own `with` locked.
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._holds: dict[str, HeldLease] = {}
        # (when, tie-breaker, hold); it counts only while the hold still names it as its next
        self._looks: list[tuple[float, int, HeldLease]] = []
        self._ties = itertools.count()
        self._notifier = LossNotifier()
        self._log = RenewalLog()
        self._thread: threading.Thread | None = None
        self._sleeps_until = 0.0

    def keep(self, hold: HeldLease) -> None:
        """Watch over a hold until it is dropped or lost."""
        with self._mutex:
            hold.backend.listener = self
            self._holds[hold.lease.nonce] = hold
            self._look_at(hold, hold.next_look)
            if self._thread is None or not self._thread.is_alive():
                self._thread = start(self._watch, "distlock-renewer")

    def enter(self, hold: HeldLease, level: Level) -> None:
        """Let someone enter a hold, whose end it now waits for as well."""
        with self._mutex:
            hold.enter(level)
            if hold.lease.nonce in self._holds and hold.next_look < hold.look:
                self._look_at(hold, hold.next_look)  # it had been abandoned, or was not renewed

    def renewed(self, hold: HeldLease, sent_at: float) -> None:
        """Note that a renewal that was sent at ``sent_at`` has been answered with yes."""
        with self._mutex:
            hold.extend(max(hold.lease.deadline, hold.lease.renewed(sent_at).deadline))
            if hold.lease.nonce in self._holds:
                self._look_at(hold, hold.next_look)

    def drop(self, hold: HeldLease) -> bool:
        """Stop watching; False if the hold had been lost by then."""
        with self._mutex:
            # Nearly every hold is short: its look is the last leaf of the heap, and can go at once.
            # Left to be skipped later, dead holds would fill the processor's caches.
            if self._looks and self._looks[-1][2] is hold:
                self._looks.pop()
            return self._holds.pop(hold.lease.nonce, None) is not None

    def lose(self, hold: HeldLease, reason: str) -> None:
        """Tell that a hold is gone; once, and not of one that was dropped."""
        with self._mutex:
            if self._holds.pop(hold.lease.nonce, None) is None:
                return
            hold.lost = reason
        self._tell(hold, reason)

    def lost(self, hold: HeldLease, reason: str) -> None:
        """Tell that a hold that was dropped turned out to be gone."""
        hold.lost = reason
        self._tell(hold, reason)

    def _tell(self, hold: HeldLease, reason: str) -> None:
        hold.backend.discard_local(hold.lease)
        hold.on_end()
        self._notifier.add(hold, reason)

    # What a backend learns by itself

    def lease_extended(self, lease: Lease, deadline: float) -> None:
        """See Listener; a lease may also be told to end earlier than was known."""
        with self._mutex:
            if hold := self._holds.get(lease.nonce):
                hold.extend(deadline)
                self._look_at(hold, hold.next_look)

    def lease_lost(self, lease: Lease, reason: str) -> None:
        """See Listener."""
        if hold := self._holds.get(lease.nonce):
            self.lose(hold, reason)

    def lease_abandoned(self, nonce: str) -> None:
        """See Listener. The garbage collector may call it, in a thread that has our mutex."""
        if hold := self._holds.get(nonce):
            hold.desert()

    # The thread

    def _watch(self) -> None:
        due: list[HeldLease] = []
        while True:
            with _going_on():
                due = self._wait_for_work()
            for hold in due:
                with _going_on():
                    self._look_after(hold)

    def _look_after(self, hold: HeldLease) -> None:
        if clock() >= hold.lease.deadline:
            self.lose(hold, ENDED)
        elif hold.watched:
            self._renew_with(hold)
        else:
            self._ask_for_all_of(hold.backend)

    def _wait_for_work(self) -> list[HeldLease]:
        """Sleep until something is due; return the holds to look at."""
        with self._mutex:
            while not (due := self._due()):
                now, first = clock(), self._looks[0][0] if self._looks else float("inf")
                # What it was to wake up for may have gone; it wakes up all the same, so that the
                # next hold, which is looked at later than that, need not wake it.
                planned = self._sleeps_until if self._sleeps_until > now else first
                self._sleeps_until = min(planned, first)
                asleep = min(self._sleeps_until - now, _LONGEST_SLEEP)
                self._changed.wait(None if self._sleeps_until == float("inf") else asleep)
            self._sleeps_until = 0.0
            return due

    def _due(self) -> list[HeldLease]:
        now = clock()
        due = []
        while self._looks and self._looks[0][0] <= now:
            when, _, hold = heapq.heappop(self._looks)
            if not self._counts(when, hold):
                continue
            if hold.next_look <= now:
                due.append(hold)
            if now < hold.lease.deadline:
                # A renewal moves this; should it be stuck, the end of the lease is still noticed.
                soon = min(now + _pause(hold), hold.lease.deadline)
                self._look_at(hold, max(hold.next_look, soon))
        return due

    def _counts(self, when: float, hold: HeldLease) -> bool:
        return hold.look == when and hold.lease.nonce in self._holds

    def _look_at(self, hold: HeldLease, when: float) -> None:
        hold.look = when
        if when == float("inf"):
            return
        heapq.heappush(self._looks, (when, next(self._ties), hold))
        if len(self._looks) > 2 * len(self._holds) + 64:
            self._looks = [look for look in self._looks if self._counts(look[0], look[2])]
            heapq.heapify(self._looks)
        if when < self._sleeps_until:
            self._changed.notify()
            self._sleeps_until = when  # last: an interrupt may have come before it was notified

    # Renewing

    def _renew_with(self, due: HeldLease) -> None:
        """Start renewing it and what is due soon, so that leases come together in few statements.

        Those that had no answer the last time are apart: what held them up holds up no others.
        """
        backend, now = due.backend, clock()
        with self._mutex:
            if due.renewing:
                return
            batch = [
                hold
                for hold in self._holds.values()
                if hold.backend is backend
                and hold.watched
                and not hold.renewing
                and hold.failed is due.failed
                and hold.due <= now + _slack(hold)
            ]
            orphans = [hold for hold in batch if not hold.alive]
            for hold in orphans:
                hold.abandoned = True
            batch = [hold for hold in batch if hold.watched]
            for hold in batch:
                hold.renewing = True
        for hold in orphans:
            logger.warning(
                "%s ended without releasing %r, which is not renewed any more",
                hold.lease.owner,
                hold.lease.name,
            )
        if batch:
            try:
                start(self._renew, "distlock-renewal", backend, batch)
            except RuntimeError:  # no more threads can be had; the holds are looked at again soon
                for hold in batch:
                    hold.renewing = False
                raise

    def _ask_for_all_of(self, backend: BaseBackend) -> None:
        """Start asking for holds of named owners that are not renewed and will end soon."""
        now = clock()
        with self._mutex:
            batch = [
                hold
                for hold in self._holds.values()
                if hold.backend is backend and not hold.watched and hold.next_look <= now
            ]
            for hold in batch:
                hold.asked = hold.lease.deadline
        if batch:
            start(self._ask_for, "distlock-renewal", batch)

    def _ask_for(self, batch: Sequence[HeldLease]) -> None:
        for hold in batch:
            with suppress(LockError):  # then it is told as a loss at its end
                if reason := hold.ask(hold.lease.deadline):
                    self.lose(hold, reason)

    def _renew(self, backend: BaseBackend, batch: Sequence[HeldLease]) -> None:
        sent_at = clock()
        answer: Mapping[str, bool] = {}
        try:
            deadline = min(hold.lease.deadline for hold in batch)
            answer = backend.renew([hold.renewal() for hold in batch], deadline)
        except Exception as error:  # one failure is no loss; the deadline decides
            self._log.failed(backend.alias, error)
        else:
            self._log.worked(backend.alias)
        finally:
            with self._mutex:
                for hold in batch:
                    hold.renewing = False
                    hold.failed = hold.lease.nonce not in answer
                    if answer.get(hold.lease.nonce) and not hold.ended:
                        hold.extend(hold.lease.renewed(sent_at).deadline)
                    else:
                        hold.due = clock() + _pause(hold)
                    if hold.lease.nonce in self._holds:
                        self._look_at(hold, hold.next_look)
        for hold in batch:
            if answer.get(hold.lease.nonce) is False:
                self.lose(hold, BROKEN)
            elif hold.ended and answer.get(hold.lease.nonce):
                # The answer came after the end, and has made the others wait again.
                self.lose(hold, ENDED)
                with suppress(LockError):
                    if hold.rest:
                        hold.free()
                    else:
                        backend.cancel(hold.lease.claim)


@contextmanager
def _going_on() -> Iterator[None]:
    """Log an error and go on: the renewer must outlive everything, or leases end unseen."""
    try:
        yield
    except Exception:
        logger.exception("the renewer of leases goes on after an error")


def _pause(hold: HeldLease) -> float:
    """Seconds until a renewal that failed is tried again."""
    return min(max(hold.lease.duration / 30, _SHORTEST_RETRY), _LONGEST_RETRY)


def _slack(hold: HeldLease) -> float:
    """How long before it is due a lease may be renewed along with others."""
    return hold.backend.settings.interval(hold.lease.duration) / 2
