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
from collections.abc import Mapping, Sequence
from contextlib import suppress

from distlock.backends.base import BaseBackend
from distlock.clock import clock
from distlock.events import tell_loss
from distlock.exceptions import LockError
from distlock.hold import BROKEN, ENDED, Hold
from distlock.lease import Lease

logger = logging.getLogger("distlock")

_SHORTEST_RETRY, _LONGEST_RETRY = 0.02, 1.0
#: The condition variable counts on a clock that may have slept, unlike ours: look now and then.
_LONGEST_SLEEP = 60.0


class Keeper:
    """The holds of a process, by the nonce of their lease."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._holds: dict[str, Hold] = {}
        # (when, tie-breaker, hold); an entry counts only while the hold still names it as its next
        self._looks: list[tuple[float, int, Hold]] = []
        self._ties = itertools.count()
        self._renewing: set[BaseBackend] = set()
        self._thread: threading.Thread | None = None
        self._sleeps_until = 0.0

    def keep(self, hold: Hold) -> None:
        """Watch over a hold until it is dropped or lost."""
        with self._changed:
            hold.backend.listener = self
            self._holds[hold.lease.nonce] = hold
            self._look_at(hold, hold.next_look)
            if self._thread is None or not self._thread.is_alive():
                self._thread = _start(self._watch, "distlock-keeper")

    def drop(self, hold: Hold) -> bool:
        """Stop watching; False if the hold had been lost by then."""
        with self._changed:
            return self._holds.pop(hold.lease.nonce, None) is not None

    def lose(self, hold: Hold, reason: str) -> None:
        """Tell that a hold is gone; once, and not of one that was dropped."""
        if self.drop(hold):
            self.lost(hold, reason)

    def lost(self, hold: Hold, reason: str) -> None:
        """Tell that a hold that was dropped turned out to be gone."""
        hold.lost = reason
        hold.backend.forget(hold.lease)
        hold.on_end()
        # Callbacks are other people's code, which may take its time.
        _start(tell_loss, "distlock-lost", hold, reason)

    # What a backend learns by itself

    def lease_extended(self, lease: Lease, deadline: float) -> None:
        """See Listener; a lease may also be told to end earlier than was known."""
        with self._changed:
            if hold := self._holds.get(lease.nonce):
                hold.extend(deadline)
                self._look_at(hold, hold.next_look)

    def lease_lost(self, lease: Lease, reason: str) -> None:
        """See Listener."""
        if hold := self._holds.get(lease.nonce):
            self.lose(hold, reason)

    # The thread

    def _watch(self) -> None:
        while True:
            try:
                for hold in self._wait_for_work():
                    if clock() >= hold.lease.deadline:
                        self.lose(hold, ENDED)
                    else:
                        self._renew_all_of(hold.backend)
            except Exception:  # the keeper must outlive everything: without it leases end unseen
                logger.exception("the keeper of leases goes on after an error")

    def _wait_for_work(self) -> list[Hold]:
        """Sleep until something is due; return the holds to look at."""
        with self._changed:
            while not (due := self._due()):
                sleep = min(self._looks[0][0] - clock(), _LONGEST_SLEEP) if self._looks else None
                self._sleeps_until = self._looks[0][0] if self._looks else float("inf")
                self._changed.wait(sleep)
            self._sleeps_until = 0.0
            return due

    def _due(self) -> list[Hold]:
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

    def _counts(self, when: float, hold: Hold) -> bool:
        return hold.look == when and hold.lease.nonce in self._holds

    def _look_at(self, hold: Hold, when: float) -> None:
        hold.look = when
        if when == float("inf"):
            return
        heapq.heappush(self._looks, (when, next(self._ties), hold))
        if len(self._looks) > 2 * len(self._holds) + 64:
            self._looks = [look for look in self._looks if self._counts(look[0], look[2])]
            heapq.heapify(self._looks)
        if when < self._sleeps_until:
            self._changed.notify()

    # Renewing

    def _renew_all_of(self, backend: BaseBackend) -> None:
        """Start renewing what is due soon, so that leases come together in few statements."""
        now = clock()
        with self._changed:
            if backend in self._renewing:
                return
            batch = [
                hold
                for hold in self._holds.values()
                if hold.backend is backend and hold.renews and hold.due <= now + _slack(hold)
            ]
            orphans = [hold for hold in batch if not hold.alive()]
            for hold in orphans:
                hold.renews = False
            batch = [hold for hold in batch if hold.renews]
            if batch:
                self._renewing.add(backend)
        for hold in orphans:
            logger.warning(
                "%s ended without releasing %r, which is not renewed any more",
                hold.lease.owner,
                hold.lease.name,
            )
        if batch:
            _start(self._renew, "distlock-renewal", backend, batch)

    def _renew(self, backend: BaseBackend, batch: Sequence[Hold]) -> None:
        sent_at = clock()
        answer: Mapping[str, bool] = {}
        try:
            deadline = min(hold.lease.deadline for hold in batch)
            answer = backend.renew([hold.lease for hold in batch], deadline)
        except Exception as error:  # one failure is no loss; the deadline decides
            logger.warning("renewal on %r failed, will try again: %s", backend.alias, error)
        finally:
            with self._changed:
                self._renewing.discard(backend)
                for hold in batch:
                    if answer.get(hold.lease.nonce):
                        hold.extend(sent_at + hold.lease.duration)
                    else:
                        hold.due = clock() + _pause(hold)
                    if hold.lease.nonce in self._holds:
                        self._look_at(hold, hold.next_look)
        for hold in batch:
            if answer.get(hold.lease.nonce) is False:
                self.lose(hold, BROKEN)
            elif hold.lost is not None and answer.get(hold.lease.nonce):
                # The answer came after the loss was told, and has made the others wait again.
                with suppress(LockError):
                    backend.withdraw(hold.lease.claim)


def _pause(hold: Hold) -> float:
    """Seconds until a renewal that failed is tried again."""
    return min(max(hold.lease.duration / 30, _SHORTEST_RETRY), _LONGEST_RETRY)


def _slack(hold: Hold) -> float:
    """How long before it is due a lease may be renewed along with others."""
    return hold.backend.settings.interval(hold.lease.duration) / 2


def _start(target: object, name: str, *args: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread
