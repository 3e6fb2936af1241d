"""A semaphore: at most so many at a time, over all processes and machines."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from django.utils.asyncio import async_unsafe

from distlock import audit
from distlock.concurrency.reentry import refuse_reentry
from distlock.concurrency.steps import Steps
from distlock.conf import DEFAULT_ALIAS
from distlock.core.entrant import OnLost
from distlock.core.manager import manager
from distlock.core.shared_options import SemaphoreOptions, SharedLock, latest_owner
from distlock.types.arguments import OnBusy, Release
from distlock.types.lease import ALL_SEATS, Holder, Kind, LockInfo, Owner
from distlock.types.owners import current_owner


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
        options = SemaphoreOptions(
            on_busy,
            timeout,
            busy_result,
            lease,
            None,
            at_most,
            renew,
            True,
            description,
            None,
            on_lost,
            release,
            Kind.SEMAPHORE,
            _checked_seats(n, value),
            value,
        )
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

    @async_unsafe("resize() would block the event loop; use `await semaphore.aresize()`.")
    def resize(self, value: int, *, reason: str = "", who: str = "") -> int | None:
        """Change for all how many seats there are; return how many there were, None if unknown.

        Nobody is evicted: with fewer seats than are taken, new ones are granted once enough have
        been left. Whoever still says the old number gets ValueNotAgreed while others hold seats or
        wait; when nobody does, the old number holds again. So leave ``value`` out where the number
        is to change without a deploy.

        It is written to the audit log, with ``reason`` and ``who`` did it: the system's user, if
        that is not said.
        """
        refuse_reentry()
        before = self._resize(checked_count("value", value), None)
        self._record_resize(value, before, reason, who)
        return before

    async def aresize(self, value: int, *, reason: str = "", who: str = "") -> int | None:
        """See resize()."""
        refuse_reentry()
        calls = self._backend.calls
        before = await calls.run(partial(self._resize, checked_count("value", value)))
        self._record_resize(value, before, reason, who)
        return before

    def _record_resize(self, value: int, before: int | None, reason: str, who: str) -> None:
        had = "no number yet" if before is None else before
        place, text = (self.using, Kind.SEMAPHORE, self.name), f"Has {value} seats now; had {had}."
        audit.record(place, "resize", text, reason=reason, who=who)

    def _resize(self, value: int, deadline: float | None) -> int | None:
        backend = self._backend
        before = backend.resize(self._backend_name, value, backend.calls.due(deadline))
        if self._options.value is not None:
            self._options = replace(self._options, value=value)
        return before

    @async_unsafe("locked() would block the event loop; use `await semaphore.alocked()`.")
    def locked(self) -> bool:
        """Return whether an acquire would have to wait now; a moment later it may be otherwise."""
        return self._is_full(self.info())

    async def alocked(self) -> bool:
        """See locked()."""
        return self._is_full(await self.ainfo())

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
        return "", sum(hold.entered > 0 for hold in manager.holds_of(self._key, owner))

    def _entered_here(self) -> tuple[str, int]:
        return self._entered(current_owner())

    def _leaving(self, owner: Owner, deadline: float | None = None) -> Steps[bool]:
        return manager.release(self._key, latest_owner(self._key, owner), self, deadline)

    def _holder_message(self, holder: Holder | None) -> str:
        seats, value = self._options.seats, self.value
        wanted = "seat was" if seats == 1 else f"{seats} seats were"
        of = "" if value is None else f", of {value} in all"
        return f"semaphore {self.name!r} on {self.using!r}: no {wanted} free{of}"


def checked_count(argument: str, count: object) -> int:
    """Return a number of seats; TypeError or ValueError that names the argument for others."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{argument} must be a whole number, not {count!r}")
    if not 1 <= count < ALL_SEATS:
        raise ValueError(f"{argument} must be at least 1 and less than {ALL_SEATS}, got {count!r}")
    return count


def _checked_seats(n: object, value: int | None) -> int:
    seats = checked_count("n", n)
    if value is not None and seats > value:
        raise ValueError(f"n must be at most value={value}, got {seats}")
    return seats
