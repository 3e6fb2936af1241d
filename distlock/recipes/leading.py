"""What the leader of an election holds: a lock that belongs to a candidate, and its term."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from distlock.backends.store import Snapshot
from distlock.concurrency.backoff import backoff
from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.steps import Steps, run
from distlock.core.held import BROKEN, HeldLease, OnLost
from distlock.core.manager import manager
from distlock.exceptions import LockLost, LockNotHeld, LockUnavailable
from distlock.lock import Lock
from distlock.recipes.candidates import ORDERS
from distlock.recipes.recipe import Recipe
from distlock.types.lease import Kind, Lease, Owner

logger = logging.getLogger("distlock")

#: Seconds between two attempts to ask a backend that does not answer.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


@dataclass(slots=True, eq=False)
class Office:
    """One term of a leader in this process."""

    #: that of the lock; there is none before it was granted
    lease: Lease = field(init=False)
    #: whether the term has begun, so that its loss is to be told
    began: bool = False
    #: why it is to end, if somebody wants that
    recalled: str = ""
    #: answered when it has ended
    ended: Pending[None] = field(default_factory=Pending)

    @property
    def term(self) -> int:
        return self.lease.token


class LeaderLock(Lock):
    """The lock of an election. Its owner is a candidate, and no thread or task."""

    def __init__(self, name: str, owner: Owner, is_alive: Callable[[], bool], **terms: Any) -> None:
        """``is_alive`` says whether the candidate is there; else the lease is renewed no more."""
        super().__init__(name, **terms)
        self._owner = owner
        self._is_alive = is_alive

    @property
    def _current_owner(self) -> Owner:
        return self._owner

    @property
    def _found(self) -> HeldLease | None:
        """What the candidate holds, lost or not."""
        return manager.find(self._key, self._owner)

    @property
    def lease(self) -> Lease:
        """The lease of the current hold; LockNotHeld or LockLost."""
        return self._hold.lease

    @property
    def broken(self) -> bool:
        """Whether it was lost because somebody has broken it: its lease would have gone on."""
        hold = self._found
        return hold is not None and hold.lost == BROKEN and clock() < hold.lease.deadline

    def taking(self, until: float, on_lost: OnLost) -> Steps[bool]:
        """Take it for the candidate; False if another one has it, until then."""
        wait = until > clock()
        request = self._options.request(self._backend, self.name, self, blocking=wait)
        request.claim = replace(request.claim, owner=self._owner)
        request.entry.is_alive, request.entry.on_lost = self._is_alive, on_lost
        request.deadline = until if wait else None
        return manager.acquire(request)

    def leaving(self) -> Steps[bool]:
        """Leave it; LockNotHeld, LockLost or LockUnavailable."""
        return manager.release(self._key, self._owner, self)

    def freeing(self) -> Steps[None]:
        """Leave it, lost or not, if the candidate has it."""
        while self._found is not None:
            with suppress(LockLost, LockNotHeld):
                yield from self.leaving()

    def free_soon(self) -> None:
        """See freeing(), without making the caller wait."""
        if self._found is not None:
            manager.release_soon(self._key, self._owner, self)


class Orders(Recipe):
    """What others want of a leader. It does not keep the candidate alive that looks at it."""

    kind = Kind.ELECTION

    def next(self, office: Office, seen: Snapshot | None) -> Steps[Snapshot | None]:
        """Return the next look at it; None if the term has ended."""
        if seen is not None:
            yield from self._wait_for_change(seen, None, [ORDERS], office.ended)
        return None if office.ended.over else (yield self._read(keys=[ORDERS]))


def oversee(office: Office, orders: Orders, obey: Callable[[Snapshot], bool]) -> None:
    """See to it that a leader hears of what others want, until ``obey`` says that it is settled."""
    seen: Snapshot | None = None
    pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    while True:
        try:
            if (seen := run(orders.next(office, seen))) is None or obey(seen):
                return
            pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        except Exception as error:  # what is wrong may be mended
            if not isinstance(error, LockUnavailable):
                logger.exception("%r: what others want of its leader is looked at again", orders)
            seen = None
            office.ended.wait(clock() + next(pauses))
