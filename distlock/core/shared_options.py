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
from distlock.core.held import Key
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
        last = latest_owner(request.key, owner).key
        return replace(owner, key=f"{owner.key}/{int(last.rpartition('/')[2]) + 1}")


def latest_owner(key: Key, owner: Owner) -> Owner:
    """Return the owner of the seats that a thread or task has taken last and not left.

    Each time that it takes seats it is another owner: its own key with a number, 0 for none.
    """
    if holds := manager.holds_of(key, owner):
        return holds[-1].lease.owner
    return replace(owner, key=f"{owner.key}/0")


@dataclass(slots=True, eq=False)
class SideOptions(SharedOptions):
    """Options of the readers or the writers: one owner enters again, as with a lock."""

    def _owner_of(self, request: AcquireRequest) -> Owner:
        owner = request.claim.owner
        hold = manager.find(request.key, owner)
        if hold is not None and not hold.ended and self.seats > hold.lease.claim.seats:
            raise LockDeadlock(
                f"rwlock {request.claim.name!r}: a reader cannot become its writer, because it"
                " would wait for itself; leave it as a reader first"
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
