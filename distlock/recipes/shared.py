"""Locks that several hold at a time: semaphores, and read/write locks.

Also what tasks, commands and programs run under: a lock, or a slot of which there are so many.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from distlock import audit
from distlock.concurrency.steps import Call, Nested, Steps
from distlock.conf import DEFAULT_ALIAS
from distlock.core.base_lock import BaseLock
from distlock.core.entrant import OnLost
from distlock.core.held import BROKEN, HeldLease
from distlock.core.manager import manager
from distlock.core.shared_options import SemaphoreOptions, SharedLock, SideOptions, latest_owner
from distlock.exceptions import LockError, LockNotHeld
from distlock.lock import Lock
from distlock.recipes.recipe import twins
from distlock.types.arguments import OnBusy, Release, checked_count
from distlock.types.lease import ALL_SEATS, Holder, Kind, LockInfo, Owner
from distlock.types.owners import current_owner

#: In place of a number: the one that was said last, for all, by ``manage.py locks resize``.
AGREED: Literal["agreed"] = "agreed"

#: At most so many at a time.
Slots = int | Literal["agreed"]


class Semaphore(SharedLock):
    """A number of seats, of which each who enters takes one or more: ``Semaphore("mailer", 3)``.

    At most ``value`` seats are taken at a time, over all processes that use the same backend. Who
    waits is served first come, first served. A seat is a lease: if its process dies it becomes free
    when the lease ends, and if it is lost its holder is told before anyone else can have it.

    Each acquire takes seats of its own, also in a thread or task that has some already, and
    release() leaves those that it took last. Use it with ``with``, with ``async with``, or as a
    decorator, as Lock.
    """

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

        - ``name``: as of a Lock; a semaphore and a lock of one name have nothing to do with each
          other.
        - ``value``: how many seats there are. All who use it at the same time must say the same
          number; who says another gets ValueNotAgreed, and is told the number. resize() changes it
          for all. None takes the number that resize() or those who use it have said last; that of
          the latter is forgotten by a sweep when nobody uses it.
        - ``n``: how many seats acquire() takes, all at once or none.
        - ``using``, ``on_busy``, ``timeout``, ``busy_result``, ``lease``, ``at_most``, ``renew``,
          ``description``, ``on_lost``, ``release``: as of a Lock. A seat that waits for a commit is
          the one that the next acquire of as many seats gets in the same transaction.

        Raises TypeError or ValueError that names the argument and its value.
        """
        if value is not None:
            checked_count("value", value)
        waits = on_busy, timeout, busy_result
        terms = *waits, lease, None, at_most, renew, True, description, None, on_lost, release
        options = SemaphoreOptions(*terms, Kind.SEMAPHORE, _checked_seats(n, value), value)
        super().__init__(name, using, options)

    def acquire(
        self, blocking: bool | None = None, timeout: float | None = None, n: int | None = None
    ) -> bool:
        """Take ``n`` seats; True if they are held afterwards, False if they were not to be had.

        As ``threading.Semaphore.acquire``. What is not given is as the constructor was told. The
        seats are taken at once: who waits for many holds none meanwhile, and those who came later
        wait behind it.

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
        """How many seats there are, as this process was told; None if it was not."""
        return self._options.value

    def _resizing(self, value: int, *, reason: str = "", who: str = "") -> Steps[int | None]:
        """Change for all how many seats there are; return how many there were, None if unknown.

        Nobody is evicted: with fewer seats than are taken, new ones are granted once enough have
        been left. Whoever still says the old number gets ValueNotAgreed while others hold seats or
        wait; when nobody does, the old number holds again. So leave ``value`` out where the number
        is to change without a deploy.

        It is written to the audit log, with ``reason`` and ``who`` did it: the system's user, if
        that is not said.
        """
        backend, count = self._backend, checked_count("value", value)
        resize = partial(backend.resize, self._backend_name, count)
        before: int | None = yield Call(resize, backend.calls.due(), executor=backend.calls)
        if self._options.value is not None:
            self._options = replace(self._options, value=value)
        place = self.using, Kind.SEMAPHORE, self.name
        text = f"Has {value} seats now; had {before or 'no number yet'}."
        audit.record(place, "resize", text, reason=reason, who=who)
        return before

    resize, aresize = twins("resize", _resizing)

    def _looking(self) -> Steps[bool]:
        """Return whether an acquire would have to wait now; a moment later it may be otherwise."""
        return self._is_full((yield Nested(self.info, self.ainfo)))

    locked, alocked = twins("locked", _looking)

    def _is_full(self, info: LockInfo) -> bool:
        slots = info.slots if self.value is None or info.holders else self.value
        return bool(info.waiters) or info.taken + self._options.seats > slots

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
        return "", sum(hold.entered > 0 for hold in manager().holds_of(self._key, owner))

    def _entered_here(self) -> tuple[str, int]:
        return self._entered(current_owner())

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
        hold = manager().hold(self._key, self._current_owner)
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
            manager().lose(hold, BROKEN)
            manager().hold(self._key, self._current_owner)  # raises LockLost

    downgrade, adowngrade = twins("downgrade", _downgrading)

    @property
    def _hold(self) -> HeldLease:
        hold = manager().hold(self._key, self._current_owner)
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


def _checked_seats(n: object, value: int | None) -> int:
    seats = checked_count("n", n)
    if value is not None and seats > value:
        raise ValueError(f"n must be at most value={value}, got {seats}")
    return seats


def checked_slots(option: str, slots: object, *, at_least: float | None) -> None:
    """Check a number of slots, or None for a lock; ``option`` is what the caller calls it.

    Raises TypeError or ValueError that names the option and its value.
    """
    if slots is None or slots == AGREED:
        pass
    elif isinstance(slots, str):
        raise ValueError(f"{option} must be a number or {AGREED!r}, not {slots!r}")
    else:
        checked_count(option, slots)
    if slots is not None and at_least is not None:
        raise ValueError(
            f"at_least={at_least!r} does not go with {option}={slots!r}: a slot that is left is"
            " free at once"
        )


def lock_or_slot(
    name: str, slots: Slots | None, *, at_least: float | None = None, **options: Any
) -> BaseLock:
    """Return a Lock; with ``slots`` a Semaphore with so many seats, of which it takes one.

    ``options`` are those that both have; wrong ones are refused by name.
    """
    checked_slots("slots", slots, at_least=at_least)
    value = None if slots == AGREED else slots
    plain = slots is None
    lock = Lock(name, at_least=at_least, **options) if plain else Semaphore(name, value, **options)
    lock.name_is_filled_in = True
    return lock
