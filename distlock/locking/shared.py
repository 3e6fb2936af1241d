"""Locks that several hold at a time: semaphores, and read/write locks."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from distlock import audit
from distlock.backends.base import BaseBackend, LossReason
from distlock.concurrency.steps import Call, Nested, Steps
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.exceptions import LockDeadlock, LockError, LockNotHeld
from distlock.locking.base_lock import BaseLock, twins
from distlock.locking.options import LockOptions
from distlock.records.shared_backend import SharedBackend, shared_locks
from distlock.runtime.acquiring import AcquireRequest
from distlock.runtime.hold import Hold, OnLost
from distlock.runtime.manager import manager
from distlock.types.lease import ALL_SEATS, Holder, Kind, LockInfo, LockKey, Owner
from distlock.types.owners import current_owner
from distlock.types.values import OnBusy, Release, checked_count


@dataclass(slots=True, eq=False)
class SharedOptions(LockOptions):
    """Options of something that several may hold, ``seats`` at once of ``value`` seats."""

    seats: int
    value: int | None
    #: whether who waits keeps its place while it looks by itself, see Claim
    keeps_place: bool = False

    def request(self, backend: BaseBackend, *args: Any, **kwargs: Any) -> AcquireRequest:
        """See LockOptions.request(). Threads do not queue here, as there are seats for several."""
        request = LockOptions.request(self, shared_locks(backend), *args, **kwargs)
        claim = request.claim
        claim.owner = self._owner_of(request)
        claim.seats, claim.limit, claim.keeps_place = self.seats, self.value, self.keeps_place
        request.lane = request.key, claim.owner.key
        return request

    def _owner_of(self, request: AcquireRequest) -> Owner:
        return request.claim.owner


@dataclass(slots=True, eq=False)
class SemaphoreOptions(SharedOptions):
    """Options of a semaphore: each acquire takes seats of its own."""

    def _owner_of(self, request: AcquireRequest) -> Owner:
        owner = request.claim.owner
        holds = manager().holds.within(request.key, owner)
        # They cannot become free before this thread goes on. So they are entered again.
        waiting = [hold for hold in holds if not hold.entered and not hold.lost_for_good]
        for hold in waiting:
            if hold.lease.claim.seats == self.seats:
                return _present_owner(hold)
        kept = sum(hold.lease.claim.seats for hold in waiting)
        if kept and self.value is not None and kept + self.seats > self.value:
            raise LockDeadlock(
                f"semaphore {request.claim.name!r}: {kept} of {self.value} seats were left here,"
                f" but wait for the open transaction, so {self.seats} are not free before its end"
            )
        last = max((int(hold.owner_key.rpartition("/")[2]) for hold in holds), default=0)
        return replace(owner, key=f"{owner.key}/{last + 1}")


def latest_owner(key: LockKey, owner: Owner) -> Owner:
    """Return the owner of the seats that a thread or task has taken last and not left.

    Each time that it takes seats it is another owner: its own key with a number, 0 for none.
    """
    for hold in reversed(manager().holds.within(key, owner)):
        if hold.entered:
            return _present_owner(hold)
    return replace(owner, key=f"{owner.key}/0")


def _present_owner(hold: Hold) -> Owner:
    """Return whose hold it is: seats of a piece of work may have become its thread's."""
    return replace(hold.lease.owner, key=hold.owner_key)


@dataclass(slots=True, eq=False)
class SideOptions(SharedOptions):
    """Options of the readers or the writers: one owner enters again, as with a lock."""

    def _owner_of(self, request: AcquireRequest) -> Owner:
        owner = request.claim.owner
        hold = manager().holds.find(request.key, owner)
        if hold is not None and not hold.lost_for_good and self.seats > hold.lease.claim.seats:
            first = "leave it as a reader first" if hold.entered else "end the transaction first"
            raise LockDeadlock(
                f"rwlock {request.claim.name!r}: a reader cannot become its writer, because it"
                f" would wait for itself; {first}"
            )
        return owner


class SharedLock(BaseLock):
    """A semaphore, or one side of a read/write lock. A lock may have the same name."""

    _options: SharedOptions

    @property
    def _backend(self) -> SharedBackend:
        return shared_locks(locks[self.using])


class Semaphore(SharedLock):
    """A number of seats, of which each entry takes one or more: ``Semaphore("mailer", 3)``.

    At most ``value`` seats are taken at a time, over all processes that use the same backend.
    Waiters are served first come, first served. A seat is a lease: if its process dies it becomes
    free when the lease ends. If it is lost, its holder learns of it before another process can
    acquire it, unless an operator breaks the lock or the server's clock jumps.

    Each acquire takes seats of its own, also in a thread or task that has some already, and
    release() leaves those that it took last. Use it with ``with``, with ``async with``, or as a
    decorator, as Lock.
    """

    _kind = Kind.SEMAPHORE
    _options: SemaphoreOptions

    def __init__(
        self,
        name: str,
        value: int | None = None,
        *,
        n: int = 1,
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
        """Describe a semaphore; nothing is asked or taken yet.

        - ``name``: as for a Lock; a semaphore and a lock of one name have nothing to do with each
          other.
        - ``value``: the number of seats. All users at the same time must give the same
          number; giving another one raises ValueNotAgreed with both numbers. resize() changes it
          for all. None takes the number that resize() or its users have given last; that of
          the latter is forgotten by a sweep when nobody uses it.
        - ``n``: how many seats acquire() takes, all at once or none.
        - ``using``, ``on_busy``, ``timeout``, ``busy_result``, ``lease``, ``at_most``, ``renew``,
          ``description``, ``on_lost``, ``release``: as for a Lock. A seat waiting for a commit is
          the one that the next acquire of as many seats gets in the same transaction.

        Raises TypeError or ValueError that names the argument and its value.
        """
        if value is not None:
            checked_count("value", value)
        waits = on_busy, timeout, busy_result
        terms = *waits, lease, None, at_most, renew, True, description, None, on_lost, release
        options = SemaphoreOptions(*terms, _checked_seats(n, value), value)
        super().__init__(name, using, options)

    def acquire(
        self, blocking: bool | None = None, timeout: float | None = None, n: int | None = None
    ) -> bool:
        """Take ``n`` seats; True if they are held afterwards, False if they are not free.

        As ``threading.Semaphore.acquire``: ``blocking=False`` tries once, ``timeout`` limits the
        wait in seconds, -1 waits forever. Arguments that are not given are those of the
        constructor. The seats are taken at once: a waiter for many holds none meanwhile, and those
        who came later wait behind it.

        Raises ValueNotAgreed if the semaphore has another number of seats than this process says,
        LockError if it has fewer than ``n``; the rest is as for Lock.acquire().
        """
        return SharedLock.acquire(self._taking(n), blocking, timeout)

    async def aacquire(
        self, blocking: bool | None = None, timeout: float | None = None, n: int | None = None
    ) -> bool:
        """See acquire()."""
        return await SharedLock.aacquire(self._taking(n), blocking, timeout)

    @property
    def value(self) -> int | None:
        """The number of seats that the constructor got, or None."""
        return self._options.value

    def _resizing(self, value: int, *, reason: str = "", who: str = "") -> Steps[int | None]:
        """Change for all how many seats there are; return how many there were, None if unknown.

        Nobody is evicted: with fewer seats than are taken, new ones are granted once enough have
        been left. A process that still gives the old number gets ValueNotAgreed while others hold
        seats or wait; when nobody does, the old number applies again. So leave ``value`` out where
        the number is to change without a deploy.

        It is written to the audit log, with ``reason`` and ``who``, by default the system's user.
        Raises LockUnavailable if the backend does not answer.
        """
        backend, count = self._backend, checked_count("value", value)
        resize = partial(backend.resize, self._key.backend_name, count)
        before: int | None = yield Call(resize, backend.calls.due(), executor=backend.calls)
        if self._options.value is not None:
            self._options = replace(self._options, value=value)
        text = f"Has {value} seats now; had {before or 'no number yet'}."
        audit.record(self._key, "resize", text, reason=reason, who=who)
        return before

    resize, aresize = twins("resize", _resizing)

    def _looking(self) -> Steps[bool]:
        """Return whether an acquire would have to wait now; a moment later it may be otherwise.

        Raises LockUnavailable if the backend does not answer.
        """
        info: LockInfo = yield Nested(self.info, self.ainfo)
        slots = info.slots if self.value is None or info.holders else self.value
        return bool(info.waiters) or info.taken + self._options.seats > slots

    locked, alocked = twins("locked", _looking)

    # Inside

    def _taking(self, n: int | None) -> Semaphore:
        if n is None or (seats := _checked_seats(n, self.value)) == self._options.seats:
            return self
        other = copy(self)
        other._options = replace(self._options, seats=seats)
        return other

    @property
    def _current_owner(self) -> Owner:
        return latest_owner(self._key, current_owner())

    def _entered(self, owner: Owner) -> tuple[str, int]:
        return "", sum(hold.entered > 0 for hold in manager().holds.within(self._key, owner))

    def _leaving(self, owner: Owner, deadline: float | None = None) -> Steps[bool]:
        return manager().release(self._key, latest_owner(self._key, owner), self, deadline)

    def _keep_until_commit(self, owner: Owner) -> None:
        super()._keep_until_commit(latest_owner(self._key, owner))

    def _holder_message(self, holder: Holder | None) -> str:
        seats, value = self._options.seats, self.value
        wanted = "seat was" if seats == 1 else f"{seats} seats were"
        of = "" if value is None else f", of {value} in all"
        return f"semaphore {self.name!r} on {self.using!r}: no {wanted} free{of}"


class _Side(SharedLock):
    """One side of a read/write lock. Both sides have one key: they are holds of one lock."""

    _kind = Kind.RWLOCK
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

    def _downgrading(self) -> Steps[None]:
        """Become a reader, without letting another writer in between; release() then leaves that.

        The token stays as it is. May be repeated after LockUnavailable: from its first call on this
        is a reader for this process, but others may be kept out until the backend knows.

        Raises LockNotHeld, LockLost, LockUnavailable; LockError if it was entered more than once.
        """
        hold = manager().holds.hold(self._key, self._current_owner)
        if not hold.entered:
            raise LockNotHeld(f"rwlock {self.name!r} was left, and is kept until the commit only")
        if hold.count > 1:
            raise LockError(
                f"rwlock {self.name!r} was entered {hold.count} times by its writer (a transaction"
                " that keeps it is one), who can become a reader when all but one have been left"
            )
        backend = self._backend
        # First here: if the answer is lost, there may be other readers already.
        manager().become_reader(hold)
        asking = partial(backend.become_reader, hold.lease)
        if not (yield Call(asking, backend.calls.due(), executor=backend.calls)):
            manager().renewer.lose(hold, LossReason.GONE)
            manager().holds.hold(self._key, self._current_owner)  # raises LockLost

    downgrade, adowngrade = twins("downgrade", _downgrading)

    @property
    def _hold(self) -> Hold:
        hold = manager().holds.hold(self._key, self._current_owner)
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

        The arguments, and the errors, are those of Lock. A lock and a read/write lock of one name
        have nothing to do with each other.
        """
        waits = on_busy, timeout, busy_result
        terms = *waits, lease, None, at_most, renew, True, description, None, on_lost, release
        of_side = partial(SideOptions, *terms)
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
        """Return the readers or the writer, and the waiters; see Holder.writes."""
        return self._reading().info()

    async def ainfo(self) -> LockInfo:
        """See info()."""
        return await self._reading().ainfo()


def _checked_seats(n: object, value: int | None) -> int:
    seats = checked_count("n", n)
    if value is not None and seats > value:
        raise ValueError(f"n must be at most value={value}, got {seats}")
    return seats
