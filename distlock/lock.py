"""The lock that users hold."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from django.utils.asyncio import async_unsafe

from distlock.backends.base import BaseBackend
from distlock.concurrency.steps import Steps, arun, run
from distlock.conf import DEFAULT_ALIAS, locks
from distlock.core.decorator import decorate
from distlock.core.events import asend_event, send_event
from distlock.core.held import HeldLease, OnLost
from distlock.core.manager import manager
from distlock.core.options import LockOptions
from distlock.core.release_warning import warn_if_uncommitted
from distlock.core.section import (
    ActiveBlocks,
    add_leave_error,
    holder_message,
    refuse_in_event_loop,
)
from distlock.exceptions import (
    LockLost,
    LockNotHeld,
    LockTimeout,
    LockUnavailable,
)
from distlock.signals import lock_broken
from distlock.types.arguments import checked_name
from distlock.types.lease import LockInfo, Owner, State
from distlock.types.owners import current_actor

logger = logging.getLogger("distlock")

F = TypeVar("F", bound=Callable[..., Any])


class Lock:
    """A lock that one owner at a time holds, among all processes that use the same backend.

    The owner is the current thread, or the current asyncio task. Two ``Lock`` objects of one name
    in one thread are one lock: the owner enters it again, and leaves as often as it entered.

    Use it with ``with``, with ``async with``, or as a decorator of plain and async functions. The
    name given to a decorator is a template: ``@Lock("report:{account_id}")`` is filled in from the
    arguments of each call, defaults included.
    """

    #: The nonce of the claim that acquire() makes, so that another process can cancel it; for one
    #: acquisition only. Empty: each acquisition has a new one.
    claim_nonce: str = ""

    def __init__(
        self,
        name: str,
        *,
        using: str = DEFAULT_ALIAS,
        blocking: bool = True,
        timeout: float | None = None,
        lease: float | None = None,
        at_least: float | None = None,
        renew: bool = True,
        description: str = "",
        owner: str | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        """Describe a lock; nothing is asked or taken yet.

        - ``name``: what is locked, 1 to 564 characters, compared exactly; no control characters,
          no space at either end.
        - ``using``: the alias of the backend in the ``DISTLOCK`` setting.
        - ``blocking``: False tries once instead of waiting.
        - ``timeout``: seconds to wait at the most; None waits for ever.
        - ``lease``: seconds after which the backend may give the lock to another unless it was
          renewed meanwhile; None takes the backend's ``LEASE``.
        - ``at_least``: seconds for which the lock stays taken, counted from when it was granted.
          Who leaves it earlier, with or without an error, no longer holds it; but nobody can enter
          before that time is over, not even the one who left. So machines whose clocks differ do
          not run a short job twice that is due once. It holds for a process that is killed, too,
          except in ZooKeeper, where a lock ends with its process.
        - ``renew``: False leaves the lease to run out, for holds that no process watches over.
        - ``description``: shown to those who look at the lock; by default what goes on where it
          is taken, as far as that is known (see :mod:`distlock.activity`).
        - ``owner``: a name for the owner in place of the thread or task, so that a hold may be
          entered and left wherever that name is said, in other processes too: the process that
          takes it next adopts the hold under a new token.
        - ``on_lost``: called with the lease when the hold has been lost, on another thread; where
          a lock is entered again, every callback is. A hold that another process adopts by its
          owner's name is not lost.

        Raises TypeError or ValueError that names the argument and its value.
        """
        self.name = checked_name(name)
        if not isinstance(using, str):
            raise TypeError(f"using must be an alias of the DISTLOCK setting, not {using!r}")
        self.using = using
        self._blocks = ActiveBlocks()
        self._options = LockOptions(
            blocking, timeout, lease, at_least, renew, description, owner, on_lost
        )

    def __repr__(self) -> str:
        state = "held" if self.held else "not held"
        return f"<Lock {self.name!r} using={self.using!r} {state}>"

    # Taking and leaving

    @refuse_in_event_loop
    def acquire(self, blocking: bool | None = None, timeout: float | None = None) -> bool:
        """Take the lock; True if it is held afterwards, False if someone else has it.

        As ``threading.RLock.acquire``: ``blocking=False`` tries once, ``timeout`` limits the wait
        in seconds, -1 waits for ever. What is not given is as the constructor was told. A lock
        that is held already is entered once more; one that was lost and not released yet raises
        LockLost. With ``owner`` the backend is asked in either case, and a lost lock is taken anew.

        Raises ValueError for arguments that contradict each other, LockUnavailable if the backend
        cannot be asked, LockDeadlock if waiting would never end, LockError if the lock is held
        already with a shorter lease than this one is to have.
        """
        backend = locks[self.using]
        return run(
            manager.acquire(
                self._options.request(backend, self.name, self, self.claim_nonce, blocking, timeout)
            )
        )

    async def aacquire(self, blocking: bool | None = None, timeout: float | None = None) -> bool:
        """See acquire(). The owner is the task that runs this; wait_for() may make another one."""
        backend = locks[self.using]
        return await arun(
            manager.acquire(
                self._options.request(backend, self.name, self, self.claim_nonce, blocking, timeout)
            )
        )

    @refuse_in_event_loop
    def release(self) -> None:
        """Leave the lock once; it is free when it was left as often as it was entered.

        With ``at_least`` it may stay taken for the rest of that time, see the constructor.

        Raises LockNotHeld if the current owner does not hold it, LockLost if it had been lost, and
        LockUnavailable if the backend cannot be told; it is then freed when the backend can be
        reached again, or when its lease ends.
        """
        if run(manager.release(self._key, self._current_owner, self)):
            warn_if_uncommitted(self.name)

    async def arelease(self) -> None:
        """See release()."""
        await arun(manager.release(self._key, self._current_owner, self))

    def __enter__(self) -> Self:
        if not self.acquire():
            raise LockTimeout(self._busy())
        self._blocks.begin(sys._getframe(1), current_actor(self._options.owner).owner)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        current = current_actor(self._options.owner).owner
        owner = self._blocks.end(sys._getframe(1), current)
        key = self.using, self.name
        try:
            if exc_type is GeneratorExit and owner != current:
                manager.release_soon(key, owner, self)
            elif run(manager.release(key, owner, self)) and owner == current:
                warn_if_uncommitted(self.name)
        except Exception as error:
            if exc is None:
                raise
            # The body's own error is what the caller must see; this one goes with it.
            add_leave_error(exc, error)

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return self._aenter(sys._getframe(1))

    async def _aenter(self, frame: FrameType) -> Self:
        if not await self.aacquire():
            raise LockTimeout(self._busy())
        self._blocks.begin(frame, self._current_owner)
        return self

    def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        return self._aexit(self._blocks.end(sys._getframe(1), self._current_owner), exc)

    async def _aexit(self, owner: Owner, exc: BaseException | None) -> None:
        try:
            if isinstance(exc, GeneratorExit) and owner != self._current_owner:
                # Its coroutine is being closed from outside, and cannot wait for anything.
                manager.release_soon(self._key, owner, self)
            else:
                await arun(manager.release(self._key, owner, self))
        except Exception as error:
            if exc is None:
                raise
            add_leave_error(exc, error)

    def __call__(self, function: F) -> F:
        """Decorate a plain or async function; every call takes the lock anew."""
        return decorate(function, [self.name], self._named)

    @async_unsafe(
        "Lock.atomic() would block the event loop, as Django's transactions do; call the function"
        " that uses it by `await sync_to_async(function)()`."
    )
    @contextmanager
    def atomic(self, using: str | None = None) -> Iterator[Self]:
        """Hold the lock around a transaction that can commit only while the lock is still held.

        The transaction begins after the lock was taken and is committed before it is freed, so
        the next holder sees all of it. ``using`` is the database of the transaction; it must be
        the one that the locks live in, which is the default.

        Raises LockLost, with everything rolled back, if the lock was lost before the commit. Before
        the lock is taken or waited for: LockError if a transaction is open already, NotSupported
        where the backend cannot give it.
        """
        self._backend.check_atomic(using, self._hold.lease if self.held else None)
        if not self.acquire():
            raise LockTimeout(self._busy())
        try:
            hold = self._hold
            with hold.backend.atomic(hold.lease, using):
                yield self
                self.check()  # what this process knows to be lost must not be committed
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        try:
            self.release()
        except (LockLost, LockUnavailable) as error:
            # It was ours at the commit, which stands: an error now would say that it does not.
            logger.warning("after the commit under lock %r: %s", self.name, error)

    # Knowing

    @property
    def held(self) -> bool:
        """Whether the current thread or task holds the lock, by what this process knows."""
        try:
            self.check()
        except (LockNotHeld, LockLost):
            return False
        return True

    @property
    def token(self) -> int:
        """The fencing token of the current hold: it grows with every grant of this lock.

        Raises LockNotHeld or LockLost, so that no write goes out without a token.
        """
        return self._hold.lease.token

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends by the local clock, unless it is renewed before.

        Raises LockNotHeld or LockLost.
        """
        return self._hold.lease.remaining

    def check(self) -> None:
        """Raise LockNotHeld or LockLost unless the lock is held. Asks no backend."""
        _ = self._hold

    @refuse_in_event_loop
    def verify(self) -> None:
        """See check(), but ask the backend. Raises LockUnavailable if it does not answer."""
        hold = self._hold
        self._verified(hold, hold.ask())

    async def averify(self) -> None:
        """See verify()."""
        hold = self._hold
        self._verified(hold, await hold.backend.calls.run(hold.ask))

    @refuse_in_event_loop
    def locked(self) -> bool:
        """Return whether anyone holds the lock now; a moment later it may be otherwise."""
        return self.info().state is State.HELD

    async def alocked(self) -> bool:
        """See locked()."""
        return (await self.ainfo()).state is State.HELD

    @refuse_in_event_loop
    def info(self) -> LockInfo:
        """Return who holds the lock, since when and until when, and who waits where known.

        The threads and tasks that wait in another process behind one of it are not known.
        """
        return self._with_waiters(self._backend.inspect(self.name))

    async def ainfo(self) -> LockInfo:
        """See info()."""
        backend = self._backend
        return self._with_waiters(await backend.calls.run(partial(backend.inspect, self.name)))

    # Breaking

    @refuse_in_event_loop
    def force_release(self, token: int) -> bool:
        """Break exactly the hold that has this token; False if it is no longer the one.

        Its holder learns of it with its next renewal at the latest, and may be working until then.
        """
        lease = self._backend.force_release(self.name, _checked_token(token))
        if lease is not None:
            send_event(lock_broken, self._backend, lease)
        return lease is not None

    async def aforce_release(self, token: int) -> bool:
        """See force_release()."""
        backend = self._backend
        breaking = partial(backend.force_release, self.name, _checked_token(token))
        lease = await backend.calls.run(breaking)
        if lease is not None:
            await asend_event(lock_broken, backend, lease)
        return lease is not None

    # Inside

    @property
    def _backend(self) -> BaseBackend:
        return locks[self.using]

    @property
    def _key(self) -> tuple[str, str]:
        return self.using, self.name

    @property
    def _current_owner(self) -> Owner:
        return current_actor(self._options.owner).owner

    @property
    def _hold(self) -> HeldLease:
        return manager.hold(self._key, self._current_owner)

    def _entered(self, owner: Owner) -> tuple[str, int]:
        """Return which hold an owner has here, by its nonce, and how often it is in it."""
        return manager.entered(self._key, owner)

    def _leaving(self, owner: Owner) -> Steps[bool]:
        """Return the steps of leaving once, for an owner who may not be the current one."""
        return manager.release(self._key, owner, self)

    def _verified(self, hold: HeldLease, gone: str | None) -> None:
        if gone:
            manager.lose(hold, gone)
        self.check()

    def _with_waiters(self, info: LockInfo) -> LockInfo:
        if info.waiters is None:
            return info
        return replace(info, waiters=(*info.waiters, *manager.waiting(self._key)))

    def _named(self, name: str) -> Lock:
        lock = copy(self)
        lock.name = checked_name(name)
        lock._blocks = ActiveBlocks()
        return lock

    def _busy(self) -> str:
        return self._holder_message() + self._options.waited

    def _holder_message(self) -> str:
        """Say who has the lock, as far as this process knows; no backend is asked for this."""
        hold = manager.holder(self._key)
        return holder_message(LockInfo(self.name, self.using) if hold is None else hold.info())


def _checked_token(token: object) -> int:
    if not isinstance(token, int) or isinstance(token, bool):
        raise TypeError(f"token must be an int, not {token!r}")
    return token
