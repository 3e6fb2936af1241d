"""What the leader of an election holds: a lock that belongs to a candidate, and its term."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.steps import Steps
from distlock.core.held import BROKEN, HeldLease, OnLost
from distlock.core.manager import manager
from distlock.exceptions import LockLost, LockNotHeld
from distlock.lock import Lock
from distlock.types.lease import Lease, Owner


@dataclass(slots=True, eq=False)
class Office:
    """One term of a leader in this process."""

    lease: Lease
    #: why it is to end, if somebody wants that
    recalled: str = ""
    #: answered when it has ended
    ended: Pending[None] = field(default_factory=Pending)

    @property
    def term(self) -> int:
        return self.lease.token


class LeaderLock(Lock):
    """The lock of an election. Its owner is a candidate, and no thread or task."""

    def __init__(
        self, name: str, owner: Owner, is_alive: Callable[[], bool], on_lost: OnLost, **terms: Any
    ) -> None:
        """``is_alive`` says whether the candidate is there; else the lease is renewed no more."""
        super().__init__(name, on_lost=on_lost, **terms)
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

    def taking(self, wait: bool, until: float) -> Steps[bool]:
        """Take it for the candidate; False if another one has it."""
        request = self._options.request(self._backend, self.name, self, blocking=wait)
        request.claim = replace(request.claim, owner=self._owner)
        request.entry.is_alive = self._is_alive
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
