"""Locks that several may hold: what semaphores and read/write locks share, and their options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from distlock.backends.base import BaseBackend
from distlock.backends.seats import directory_of
from distlock.backends.shared import SharedBackend, shared_locks
from distlock.conf import locks
from distlock.core.acquiring import AcquireRequest
from distlock.core.base_lock import BaseLock
from distlock.core.held import HeldLease, Key
from distlock.core.manager import manager
from distlock.core.options import LockOptions
from distlock.exceptions import LockDeadlock
from distlock.types.lease import Kind, Owner


@dataclass(slots=True, eq=False)
class SharedOptions(LockOptions):
    """Options of something that several may hold, ``seats`` at once of ``value`` seats."""

    kind: Kind
    seats: int
    value: int | None

    def request(self, backend: BaseBackend, name: str, *args: Any, **kwargs: Any) -> AcquireRequest:
        """See LockOptions.request(). Threads do not queue here, as there are seats for several."""
        request = LockOptions.request(self, shared_locks(backend), name, *args, **kwargs)
        request.key = (*request.key, self.kind)
        owner = self._owner_of(request)
        request.claim = replace(
            request.claim, owner=owner, kind=self.kind, seats=self.seats, limit=self.value
        )
        request.queue_key = (*request.key, owner.key)
        return request

    def _owner_of(self, request: AcquireRequest) -> Owner:
        return request.claim.owner


@dataclass(slots=True, eq=False)
class SemaphoreOptions(SharedOptions):
    """Options of a semaphore: each acquire takes seats of its own."""

    def _owner_of(self, request: AcquireRequest) -> Owner:
        owner = request.claim.owner
        holds = manager().holds_of(request.key, owner)
        # They cannot become free before this thread goes on. So they are entered again.
        waiting = [hold for hold in holds if not hold.entered and not hold.ended]
        for hold in waiting:
            if hold.lease.claim.seats == self.seats:
                return _present_owner(hold)
        kept = sum(hold.lease.claim.seats for hold in waiting)
        if kept and self.value is not None and kept + self.seats > self.value:
            raise LockDeadlock(
                f"semaphore {request.claim.name!r}: {kept} of {self.value} seats were left here,"
                f" but wait for the open transaction, so {self.seats} cannot be had before its end"
            )
        last = max((int(hold.place[1].rpartition("/")[2]) for hold in holds), default=0)
        return replace(owner, key=f"{owner.key}/{last + 1}")


def latest_owner(key: Key, owner: Owner) -> Owner:
    """Return the owner of the seats that a thread or task has taken last and not left.

    Each time that it takes seats it is another owner: its own key with a number, 0 for none.
    """
    for hold in reversed(manager().holds_of(key, owner)):
        if hold.entered:
            return _present_owner(hold)
    return replace(owner, key=f"{owner.key}/0")


def _present_owner(hold: HeldLease) -> Owner:
    """Return whose hold it is: seats of a piece of work may have become its thread's."""
    return replace(hold.lease.owner, key=hold.place[1])


@dataclass(slots=True, eq=False)
class SideOptions(SharedOptions):
    """Options of the readers or the writers: one owner enters again, as with a lock."""

    def _owner_of(self, request: AcquireRequest) -> Owner:
        owner = request.claim.owner
        hold = manager().find(request.key, owner)
        if hold is not None and not hold.ended and self.seats > hold.lease.claim.seats:
            first = "leave it as a reader first" if hold.entered else "end the transaction first"
            raise LockDeadlock(
                f"rwlock {request.claim.name!r}: a reader cannot become its writer, because it"
                f" would wait for itself; {first}"
            )
        return owner


class SharedLock(BaseLock):
    """A semaphore, or one side of a read/write lock. A lock may have the same name."""

    _options: SharedOptions

    def __init__(self, name: str, using: str, options: SharedOptions) -> None:
        super().__init__(name, using, options)
        self._key = (using, self.name, options.kind)

    @property
    def _backend(self) -> SharedBackend:
        return shared_locks(locks[self.using])

    @property
    def _backend_name(self) -> str:
        return directory_of(self._options.kind, self.name)
