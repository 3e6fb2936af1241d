"""Several locks at once: all of them or none."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any, Self, TypeVar

from django.db import DEFAULT_DB_ALIAS, transaction
from django.utils.asyncio import async_unsafe

from distlock.concurrency.clock import left
from distlock.concurrency.reentry import must_leave_elsewhere, refuse_reentry
from distlock.concurrency.steps import Nested, Steps, arun, run
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.exceptions import BodyEnded, LockBusy, LockError
from distlock.locking.base_lock import BaseLock, refuse_in_event_loop, twins
from distlock.locking.blocks import ActiveBlocks, BlockLock, decorate
from distlock.locking.lock import Lock, transaction_under
from distlock.locking.options import LockOptions
from distlock.locking.parts import (
    EnteredLocks,
    checked_for_atomic,
    checked_part,
    raise_worst,
    refuse_needless,
    sorted_parts,
)
from distlock.runtime.hold import Left, OnLost
from distlock.types.lease import Kind, LockInfo, Owner
from distlock.types.owners import current_actor
from distlock.types.values import OnBusy, Release

F = TypeVar("F", bound=Callable[..., Any])


class MultiLock(BlockLock):
    """Several locks that are held together: all of them or none.

    They are taken in the order of their aliases and names, not of the arguments, so two
    MultiLocks never wait for each other in a circle (E. W. Dijkstra, EWD 310, on the ordering of
    resources). This holds among processes that call their backends by the same aliases, and for
    owners that hold none of the locks already when they ask for the others.

    It is used as a :class:`Lock`: with ``with``, with ``async with``, or as a decorator, whose
    names are templates: ``@MultiLock("account:{payer}", "account:{payee}")``. The owner is the
    current thread or task. Each lock may be entered again as often as it allows by itself.
    """

    #: the busy lock at the last refusal of any thread or task
    _busy_part: BaseLock

    def __init__(
        self,
        *names_or_locks: str | BaseLock,
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
        """Describe the locks; nothing is asked or taken yet.

        - ``names_or_locks``: at least one name or lock, of any backends. A name that is given twice
          is one lock: names often come from data, as in a transfer from an account to itself. A
          lock object is refused if its lock is given twice, because its options may differ.
        - ``on_busy``, ``busy_result``: as for :class:`Lock`, if one of the locks is busy.
        - ``timeout``: as for :class:`Lock`, for all locks together. The waiting options of the lock
          objects do not apply.
        - ``using``, ``lease``, ``at_most``, ``renew``, ``description``, ``on_lost``, ``release``:
          as for :class:`Lock`, for the locks that are given by name; lock objects have their own.
          ``on_lost`` is called with the lease of each lock that is lost.

        Raises TypeError or ValueError that names the argument and its value.
        """
        waits = on_busy, timeout, busy_result
        self._options = LockOptions(
            *waits, lease, None, at_most, renew, True, description, None, on_lost, release
        )
        self._given = tuple(checked_part(part) for part in names_or_locks)
        if not self._given:
            raise ValueError("names_or_locks must not be empty, got ()")
        of_names: dict[str, Any] = {
            "using": using,
            "lease": lease,
            "at_most": at_most,
            "renew": renew,
            "description": description,
            "on_lost": on_lost,
            "release": release,
        }
        refuse_needless(self._given, of_names)
        self._new_lock: Callable[[str], Lock] = partial(Lock, **of_names)
        self._parts = sorted_parts(self._given, self._new_lock)
        self._blocks = ActiveBlocks()

    def __repr__(self) -> str:
        parts = ", ".join(f"{part.name!r} using={part.using!r}" for part in self._parts)
        return f"<MultiLock {parts}: {'held' if self.held else 'not held'}>"

    # Taking and leaving

    def acquire(self, blocking: bool | None = None, timeout: float | None = None) -> bool:
        """Take all locks; True if all are held afterwards, False if someone else has one of them.

        The arguments are those of ``Lock.acquire()``; ``timeout`` is for all locks together. If
        this returns False or raises an error, none is held that was not held before. While one is
        waited for, those taken before are renewed.

        Raises LockLost if one of them was lost meanwhile, and the errors of ``Lock.acquire()``. A
        lock that was taken and cannot be left again, because its backend does not answer, raises
        LockUnavailable; it is then freed when the backend can be reached, or when its lease ends.
        """
        return self._acquire(blocking, timeout) is not None

    def release(self) -> None:
        """Leave all locks once, in reverse order; an error of one does not keep it from the others.

        Raises LockLost if one had been lost, and then LockUnavailable or LockNotHeld, as
        ``Lock.release()`` does. Further errors are notes of the one raised.
        """
        if asyncio._get_running_loop() is not None:
            refuse_in_event_loop("MultiLock.release")
        self._leave(self._current_owner, None, soon=must_leave_elsewhere(), is_here=True)

    async def arelease(self) -> None:
        """See release()."""
        await self._aleave(self._current_owner, None, soon=False)

    def __call__(self, function: F) -> F:
        """Decorate a plain or async function; every call takes the locks again. See Lock."""
        templates = [part if isinstance(part, str) else part.name for part in self._given]
        return decorate(function, templates, self._named, self._options)

    @async_unsafe(
        "MultiLock.atomic() would block the event loop, as Django's transactions do; call the"
        " function that uses it by `await sync_to_async(function)()`."
    )
    @contextmanager
    def atomic(self, using: str | None = None) -> Iterator[Self]:
        """Hold all locks around a transaction that can commit only while all are still held.

        See Lock.atomic(). NotSupported unless all of them are a ``Lock`` of one alias.
        """
        refuse_reentry()
        if not self._parts:
            options = locks[self._new_lock("nothing").using].settings.options
            with transaction.atomic(using or options.get("database", DEFAULT_DB_ALIAS)):
                yield self
            return
        parts = checked_for_atomic(self._parts)
        with transaction_under(self, parts, using, self._leave_part, repr(self)):
            yield self

    # Knowing

    @property
    def tokens(self) -> dict[tuple[str, ...], int]:
        """The fencing token of each lock, by alias and name: ``tokens["default", "stock"]``.

        Of a semaphore and a read/write lock by the kind, too, because a lock may have the same
        name: ``tokens["default", "mailer", "semaphore"]``.

        Raises LockNotHeld or LockLost, so that no write goes out without a token.
        """
        tokens: dict[tuple[str, ...], int] = {}
        for part in self._parts:
            alias, kind, name = part._key
            tokens[(alias, name) if kind is Kind.LOCK else (alias, name, kind)] = part.token
        return tokens

    @property
    def remaining(self) -> float:
        """Seconds until the first of the leases ends by the local clock, unless it is renewed.

        Raises LockNotHeld or LockLost.
        """
        return min((part.remaining for part in self._parts), default=math.inf)

    def check(self) -> None:
        """Raise LockNotHeld or LockLost, which names the lock, unless all are held."""
        for part in self._parts:
            part.check()

    def _verify(self) -> Steps[None]:
        """See check(), but ask the backends. LockUnavailable if one of them does not answer."""
        errors = []
        for part in self._parts:
            try:
                yield Nested(part.verify, part.averify)
            except BodyEnded:
                raise  # another lock was lost, in whose body this is
            except LockError as error:
                errors.append(error)
        raise_worst(errors)

    def _look(self) -> Steps[bool]:
        """Return whether anyone holds one of the locks now.

        Raises LockUnavailable if a backend does not answer.
        """
        for part in self._parts:
            if (yield Nested(part.locked, part.alocked)):
                return True
        return False

    def _infos(self) -> Steps[tuple[LockInfo, ...]]:
        """Return the holder of each lock, in the order in which they are taken; see Lock.info()."""
        found = list[LockInfo]()
        for part in self._parts:
            found.append((yield Nested(part.info, part.ainfo)))
        return tuple(found)

    verify, averify = twins("verify", _verify)
    locked, alocked = twins("locked", _look)
    info, ainfo = twins("info", _infos)

    # Inside

    @property
    def _current_owner(self) -> Owner:
        return current_actor().owner

    def _leave(
        self,
        owner: Owner,
        exc: BaseException | None,
        *,
        soon: bool,
        is_here: bool,
        left: Left | None = None,
    ) -> None:
        entered = EnteredLocks.once(self._parts, owner)
        if not soon:
            entered.release(exc, is_here, False, left)
            return
        if left is not None:
            left.append(True)
        entered.leave_soon()

    async def _aleave(self, owner: Owner, exc: BaseException | None, *, soon: bool) -> None:
        if soon:
            EnteredLocks.once(self._parts, owner).leave_soon()
            return
        refuse_reentry()
        entered = EnteredLocks.once(self._parts, owner)
        await arun(entered.or_leave(entered.leaving()))
        entered.raise_or_note(exc)

    def _acquire(self, blocking: bool | None = None, timeout: float | None = None) -> Owner | None:
        """Take all locks or none; return who has them, None if someone else has one of them."""
        if asyncio._get_running_loop() is not None:
            refuse_in_event_loop("MultiLock.acquire")
        refuse_reentry()
        wait, deadline = self._options.limit(blocking, timeout)
        entered = EnteredLocks(deadline)
        owner = run(entered.or_leave(self._taking(entered, wait, deadline)))
        if owner is None:  # no call otherwise: an interrupt would leave them held
            entered.raise_or_note()
        return owner

    async def _aacquire(
        self, blocking: bool | None = None, timeout: float | None = None
    ) -> Owner | None:
        refuse_reentry()
        wait, deadline = self._options.limit(blocking, timeout)
        entered = EnteredLocks(deadline)
        owner = await arun(entered.or_leave(self._taking(entered, wait, deadline)))
        entered.raise_or_note()
        return owner

    def _taking(
        self, entered: EnteredLocks, wait: bool, deadline: float | None
    ) -> Steps[Owner | None]:
        owner = self._current_owner
        # One who does not wait has one time for all answers.
        due = {part: deadline if wait else part._backend.calls.due() for part in self._parts}
        if not wait and (limits := [*filter(None, due.values())]):
            entered.until = max(limits)  # if one has no answer, the others are left in time, too
        for part in self._parts:
            entered.add(part, owner)
            if wait and (seconds := left(deadline, threading.TIMEOUT_MAX)) > 0:
                terms = True, -1 if deadline is None else seconds
                taken = yield Nested(partial(part.acquire, *terms), partial(part.aacquire, *terms))
            else:  # no more time than for one answer
                taken = yield from part._entering(wait, due[part])
            if not taken:
                yield from entered.leaving()
                self._busy_part = part  # not before: leaving takes time, and others come meanwhile
                return None
            # One that was taken before may have been lost while this one was waited for.
            entered.check()
        return owner

    def _busy(self, options: LockOptions) -> LockBusy:
        return self._busy_part._busy(options)

    def _leave_part(self, owner: Owner, error: BaseException | None) -> None:
        is_here = owner == self._current_owner
        EnteredLocks.once(self._parts, owner).release(error, is_here, True)

    @classmethod
    def _over(cls, names: Sequence[str], **options: Any) -> Self:
        """Return a lock of these names, which may be none; see Lock.of()."""
        lock = cls(*(names or ["nothing"]), **options)
        lock._fill_in(names)
        return lock

    def _named(self, *names: str) -> MultiLock:
        lock, both = copy(self), zip(self._given, names, strict=True)
        lock._fill_in([name if isinstance(part, str) else part._named(name) for part, name in both])
        lock._blocks = ActiveBlocks()
        return lock

    def _fill_in(self, given: Sequence[str | BaseLock]) -> None:
        """Lock these, whose names are no templates any more."""
        self._given, self._parts = tuple(given), sorted_parts(given, self._new_lock)
        for part in self._parts:
            part.name_is_filled_in = True
