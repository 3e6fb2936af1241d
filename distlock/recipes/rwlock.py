"""A read/write lock: many readers, or one writer."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.utils.asyncio import async_unsafe

from distlock.concurrency.reentry import refuse_reentry
from distlock.concurrency.steps import Call, Steps, arun, run
from distlock.conf import DEFAULT_ALIAS
from distlock.core.entrant import OnLost
from distlock.core.held import BROKEN, HeldLease
from distlock.core.manager import manager
from distlock.core.shared_options import SharedLock, SideOptions
from distlock.exceptions import LockError, LockNotHeld
from distlock.types.arguments import OnBusy, Release
from distlock.types.lease import ALL_SEATS, Holder, Kind, LockInfo


class _Side(SharedLock):
    """One side of a read/write lock. Both sides have one key: they are holds of one lock."""

    _options: SideOptions

    def _holder_message(self, holder: Holder | None) -> str:
        side = "writer" if self._options.seats == ALL_SEATS else "reader"
        return f"rwlock {self.name!r} on {self.using!r} is in use: no turn yet for this {side}"


class Reader(_Side):
    """The reading side of an RWLock: any number of readers may hold it, while no writer does.

    It is used like a Lock. The writer may enter it, too, and goes on being the writer.
    """


class Writer(_Side):
    """The writing side of an RWLock: its holder is alone, without readers and other writers.

    It is used like a Lock. A reader cannot become the writer, because it would wait for itself:
    acquire() raises LockDeadlock then.
    """

    @async_unsafe("downgrade() would block the event loop; use `await writer.adowngrade()`.")
    def downgrade(self) -> None:
        """Become a reader, without letting another writer in between; release() then leaves that.

        The token stays as it is. May be repeated after LockUnavailable: from its first call on this
        is a reader for this process, but others may be kept out until the backend knows.

        Raises LockNotHeld, LockLost, LockUnavailable; LockError if it was entered more than once.
        """
        refuse_reentry()
        run(self._downgrading())

    async def adowngrade(self) -> None:
        """See downgrade()."""
        refuse_reentry()
        await arun(self._downgrading())

    def _downgrading(self) -> Steps[None]:
        hold = manager.hold(self._key, self._current_owner)
        if not hold.entered:
            raise LockNotHeld(f"rwlock {self.name!r} was left, and is kept until the commit only")
        if hold.count > 1:
            raise LockError(
                f"rwlock {self.name!r} was entered {hold.count} times by its writer (a transaction"
                " that keeps it is one), who can become a reader when all but one have been left"
            )
        backend = self._backend
        # First here: if the answer is lost, there may be other readers already.
        manager.become_reader(hold)
        asking = partial(backend.become_reader, hold.lease)
        if not (yield Call(asking, backend.calls.due(), executor=backend.calls)):
            manager.lose(hold, BROKEN)
            manager.hold(self._key, self._current_owner)  # raises LockLost

    @property
    def _hold(self) -> HeldLease:
        hold = manager.hold(self._key, self._current_owner)
        if hold.lease.claim.seats != ALL_SEATS:
            raise LockNotHeld(f"rwlock {self.name!r} is held as a reader, not as the writer")
        return hold


class RWLock:
    """A lock that many readers share, or one writer has alone: ``RWLock("catalogue")``.

    ::

        catalogue = RWLock("catalogue")
        with catalogue.reader():
            ...
        with catalogue.writer():
            ...

    First come, first served: readers who come after a waiting writer wait behind it, so it is not
    starved. Readers and writers have one series of tokens. The same thread or task may enter again,
    and a writer may enter as a reader.
    """

    def __init__(
        self,
        name: str,
        *,
        using: str = DEFAULT_ALIAS,
        on_busy: OnBusy = "wait",
        timeout: float | None = None,
        busy_result: Any = None,
        lease: float | None = None,
        at_most: float | None = None,
        renew: bool = True,
        description: str = "",
        on_lost: OnLost | None = None,
        release: Release | None = None,
    ) -> None:
        """Describe a read/write lock; nothing is asked or taken yet.

        The arguments are as of a Lock. A lock and a read/write lock of one name have nothing to do
        with each other.
        """
        waits = on_busy, timeout, busy_result
        terms = *waits, lease, None, at_most, renew, True, description, None, on_lost, release
        of_side = partial(SideOptions, *terms, Kind.RWLOCK)
        self._reading = partial(Reader, name, using, of_side(1, ALL_SEATS))
        self._writing = partial(Writer, name, using, of_side(ALL_SEATS, ALL_SEATS))
        either = self._reading()
        self.name, self.using = either.name, either.using

    def __repr__(self) -> str:
        return f"<RWLock {self.name!r} using={self.using!r}>"

    def reader(self) -> Reader:
        """Return a lock-like object to read under."""
        return self._reading()

    def writer(self) -> Writer:
        """Return a lock-like object to write under."""
        return self._writing()

    def info(self) -> LockInfo:
        """Return who reads or writes, and who waits; see Holder.writes."""
        return self._reading().info()

    async def ainfo(self) -> LockInfo:
        """See info()."""
        return await self._reading().ainfo()
