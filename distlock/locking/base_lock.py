"""The methods of every lock-like object of users: taking, leaving, ``with``, decorator, looking.

Lock, Semaphore, and the two sides of an RWLock differ in their arguments, and in what they ask the
backend for. All else is here. twins() makes of one body a method for threads and its twin for
tasks; recipes use it, too.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from copy import copy
from dataclasses import replace
from functools import partial
from keyword import iskeyword
from typing import Any, ParamSpec, Self, TypeVar

from django.utils.asyncio import async_unsafe

from distlock.backends.base import BaseBackend
from distlock.concurrency.clock import clock
from distlock.concurrency.reentry import must_leave_elsewhere, refuse_reentry
from distlock.concurrency.steps import Call, Nested, Steps, arun, run, run_soon
from distlock.conf import locks
from distlock.exceptions import LockBusy, LockError
from distlock.locking.blocks import (
    ActiveBlocks,
    BlockLock,
    decorate,
    holder_message,
    raise_or_note,
)
from distlock.locking.options import LockOptions
from distlock.locking.until_commit import (
    COMMIT,
    keep_until_commit,
    leave_until_commit,
    refuse_unsafe_transactions,
    warn_if_uncommitted,
)
from distlock.runtime.acquiring import AcquireRequest
from distlock.runtime.events import asend_event, send_event
from distlock.runtime.hold import Hold, Left
from distlock.runtime.local_queue import Crowds
from distlock.runtime.manager import manager
from distlock.signals import lock_broken
from distlock.types.lease import Holder, Kind, Lease, LockInfo, LockKey, Owner, State
from distlock.types.owners import current_actor
from distlock.types.values import checked_name, checked_token

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")


def twins(
    name: str, body: Callable[P, Steps[T]], *, leaves: bool = False
) -> tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """Return the method ``name`` for threads, and its twin for tasks, whose name begins with "a".

    That of ``wait`` is ``await_``: ``await`` is a word of Python. Both have the docstring of the
    body. The first one is refused in an event loop; with ``leaves``, for a body that returns
    nothing, it may be called by a destructor, see must_leave_elsewhere()::

        put, aput = twins("put", _put)
    """

    owner = body.__qualname__.rpartition(".")[0]
    body.__qualname__ = f"{owner}.{name}"  # which Python's errors of wrong arguments tell
    shown = body.__qualname__.removeprefix("BaseLock.").lstrip("_")

    @functools.wraps(body)
    def method(*args: P.args, **kwargs: P.kwargs) -> T:
        if asyncio._get_running_loop() is not None:
            refuse_in_event_loop(shown)
        if not leaves:
            refuse_reentry()
        elif must_leave_elsewhere():
            run_soon(body(*args, **kwargs))
            return None  # type: ignore[return-value]
        return run(body(*args, **kwargs))

    @functools.wraps(body)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        refuse_reentry()
        return await arun(body(*args, **kwargs))

    method.__name__, twin.__name__ = name, twin_of(name)
    twin.__qualname__ = f"{owner}.{twin_of(name)}"
    return method, twin


def twin_of(name: str) -> str:
    """Return the name of the async twin of a method."""
    return f"a{name}_" if iskeyword(f"a{name}") else f"a{name}"


def refuse_in_event_loop(method: str) -> None:
    """Raise SynchronousOnlyOperation for a method in an event loop, as the ORM does.

    ``method`` is how its users call it. The error names its async twin. Call it where a loop runs
    only: each `with Lock` comes by there, and async_unsafe() raises and catches an error for it.
    """
    of, _, name = method.rpartition(".")
    block = " or `async with`" if name in ("acquire", "release") else ""
    way = "async for … in" if name == "changes" else "await"
    twin = f"{way} {of.lower() or 'lock'}.{twin_of(name)}()"
    refused = async_unsafe(f"{method}() would block the event loop; use `{twin}`{block}.")
    refused(lambda: None)()


class BaseLock(BlockLock):
    """A lock-like object: it is acquired and released, and knows whether it is held.

    The owner is the current asyncio task, or the current piece of work of a thread; see Lock.
    """

    #: which of several that may have one name
    _kind: Kind = Kind.LOCK
    #: The nonce of the claim that acquire() makes, so that another process can cancel it; for one
    #: acquisition only. Empty: each acquisition has a new one.
    claim_nonce: str = ""
    #: the holder at the last refusal of any thread or task, where it is known
    _refused_by: Holder | None = None
    #: Whether the name comes from a template that was filled in, so that braces in it are meant.
    name_is_filled_in: bool = False

    def __init__(self, name: str, using: str, options: LockOptions) -> None:
        """``options`` make the requests, and know what is asked for. See Lock for the errors."""
        self.name = checked_name(name)
        if not isinstance(using, str):
            raise TypeError(f"using must be an alias of the DISTLOCK setting, not {using!r}")
        self.using = using
        self._key = LockKey(using, self._kind, self.name)
        self._blocks = ActiveBlocks()
        self._options = options
        #: whether leaving it inside a transaction waits for the commit, once that is known
        self._until_commit: bool | None = None

    def __repr__(self) -> str:
        state = "held" if self.held else "not held"
        return f"<{type(self).__name__} {self.name!r} using={self.using!r} {state}>"

    # Taking and leaving

    def _acquire(self, blocking: bool | None = None, timeout: float | None = None) -> Owner | None:
        """See acquire(); return who has it now, None for False."""
        if asyncio._get_running_loop() is not None:
            refuse_in_event_loop("acquire")
        refuse_reentry()
        began = clock()  # the first time the backend, and its driver, have to be loaded
        backend = locks[self.using]
        self._refuse_unsafe_transactions(backend)
        request = self._options.request(backend, self, blocking, timeout, began)
        return request.claim.owner if run(manager().acquire(request)) else self._refused(request)

    async def _aacquire(
        self, blocking: bool | None = None, timeout: float | None = None
    ) -> Owner | None:
        refuse_reentry()
        began = clock()
        backend = locks[self.using]
        request = self._options.request(backend, self, blocking, timeout, began)
        is_held = await arun(manager().acquire(request))
        return request.claim.owner if is_held else self._refused(request)

    def release(self) -> None:
        """Leave the lock once; it is free when it was left as often as it was entered.

        With ``at_least`` it may stay taken for the rest of that time, and with ``release="commit"``
        until the open transactions of this thread have ended, see the constructor.

        Raises LockNotHeld if the current owner does not hold it, LockLost if it had been lost, and
        LockUnavailable if the backend does not answer; it is then freed when the backend can be
        reached again, or when its lease ends.
        """
        if asyncio._get_running_loop() is not None:
            refuse_in_event_loop("release")
        soon = must_leave_elsewhere()
        self._leave(self._current_owner, None, soon=soon, is_here=True)

    async def arelease(self) -> None:
        """See release()."""
        refuse_reentry()
        await arun(manager().release(self._key, self._current_owner, self))

    def __call__(self, function: F) -> F:
        """Decorate a plain or async function; every call takes the lock again.

        With ``on_busy="skip"`` a call that finds it busy returns ``busy_result``.
        """
        return decorate(function, [self.name], self._named, self._options)

    # Knowing

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

    def _verifying(self) -> Steps[None]:
        """See check(), but ask the backend. Raises LockUnavailable if it does not answer."""
        hold = self._hold
        if reason := (yield Call(hold.ask, executor=hold.backend.calls)):
            manager().renewer.lose(hold, reason)
        self.check()

    verify, averify = twins("verify", _verifying)

    def _looking(self) -> Steps[bool]:
        """Return whether anyone holds the lock now; a moment later it may be otherwise.

        Raises LockUnavailable if the backend does not answer.
        """
        info: LockInfo = yield Call(self._inspect, executor=self._backend.calls)
        return info.state is State.HELD

    locked, alocked = twins("locked", _looking)

    def _reporting(self) -> Steps[LockInfo]:
        """Return the holder of the lock, since when and until when, and the waiters if known.

        Of the threads and tasks that wait in another process behind one of it the number is known,
        as of at most five seconds ago. Raises LockUnavailable if the backend does not answer.
        """
        return (yield Call(self._info, executor=self._backend.calls))  # type: ignore[no-any-return]

    info, ainfo = twins("info", _reporting)

    # Breaking

    def _breaking(self, token: int, *, reason: str = "", who: str = "") -> Steps[bool]:
        """Break the hold that has this ``token``, and no other; False if it is no longer held.

        Its holder learns of it with its next renewal at the latest, and may be working until then.
        It is written to the audit log, with ``reason`` and ``who``, by default the system's user.
        Raises LockUnavailable if the backend does not answer.
        """
        from distlock.audit import record_break  # what only takes locks needs no audit log

        backend = self._backend
        ask = partial(backend.force_release, self._key.backend_name, checked_token(token))
        lease: Lease | None = yield Call(ask, executor=backend.calls)
        if lease is not None:
            told = lock_broken, backend, lease
            yield Nested(partial(send_event, *told), partial(asend_event, *told))
            record_break(backend, lease, reason, who)
        return lease is not None

    force_release, aforce_release = twins("force_release", _breaking)

    # Inside

    @property
    def _backend(self) -> BaseBackend:
        return locks[self.using]

    @property
    def _current_owner(self) -> Owner:
        return current_actor(self._options.owner).owner

    @property
    def _hold(self) -> Hold:
        return manager().holds.hold(self._key, self._current_owner)

    def _entered(self, owner: Owner) -> tuple[str, int]:
        """Return the nonce of an owner's hold, lost or not, and how often the owner is in it."""
        hold = manager().holds.find(self._key, owner)
        return ("", 0) if hold is None else (hold.lease.nonce, hold.entered)

    def _is_inside(self, owner: Owner, before: tuple[str, int]) -> bool:
        """Return whether an owner is in it more often than ``before``, or in another hold of it."""
        nonce, count = self._entered(owner)
        return count > (max(before[1], 0) if nonce == before[0] else 0)

    @property
    def _is_until_commit(self) -> bool:
        """Whether a lock that is left inside a transaction is freed when that has ended."""
        if self._until_commit is None:  # another Lock object of the name has taken it
            release = self._options.release or locks[self.using].settings.release
            self._until_commit = release == COMMIT
        return self._until_commit

    def _refuse_unsafe_transactions(self, backend: BaseBackend) -> None:
        self._until_commit = (self._options.release or backend.settings.release) == COMMIT
        if self._until_commit:
            refuse_unsafe_transactions(self._key, self._current_owner)

    def _keep_until_commit(self, owner: Owner) -> None:
        """Let the open transactions of this thread enter a lock that its owner is about to leave.

        As in _leaving(), the owner may not be the current one.
        """
        keep_until_commit(self._key, owner, self._options)

    def _entering(self, wait: bool, deadline: float | None) -> Steps[bool]:
        """Return the steps of acquire(), with the time limit of AcquireRequest."""
        backend = locks[self.using]
        if asyncio._get_running_loop() is None:
            self._refuse_unsafe_transactions(backend)
        request = self._options.request(backend, self, blocking=wait)
        request.deadline = deadline
        is_held: bool = yield from manager().acquire(request)
        return is_held or self._refused(request) is not None

    def _leaving(self, owner: Owner, deadline: float | None = None) -> Steps[bool]:
        """Return the steps of leaving once, for an owner who may not be the current one."""
        return manager().release(self._key, owner, self, deadline)

    def _inspect(self, deadline: float | None = None) -> LockInfo:
        return self._backend.inspect(self._key.backend_name, deadline)

    def _info(self, deadline: float | None = None) -> LockInfo:
        """Return what the backend knows, and who waits behind the waiters and holders it knows."""
        info = self._inspect(deadline)
        crowds = Crowds.read(self._backend, manager().queue, deadline)
        return crowds.added_to(info, manager().queue.waiting(self._key))

    def _named(self, name: str) -> Self:
        lock = copy(self)
        lock.name, lock.name_is_filled_in = checked_name(name), True
        lock._key = self._key._replace(name=lock.name)
        lock._blocks = ActiveBlocks()
        return lock

    def _refused(self, request: AcquireRequest) -> Owner | None:
        """Note the holder in the backend's answer; return None."""
        self._refused_by = request.claim.refused_by
        return None

    def _leave(
        self,
        owner: Owner,
        exc: BaseException | None,
        *,
        soon: bool,
        is_here: bool,
        left: Left | None = None,
    ) -> None:
        """See BlockLock._leave(). Where that is wanted, open transactions of this thread enter."""
        try:
            if soon:
                if left is not None:
                    left.append(True)
                manager().release_soon(self._key, owner, self)
            elif self._until_commit or (self._until_commit is None and self._is_until_commit):
                leave_until_commit(self._key, owner, self, self._options, is_here, left)
            elif run(manager().release(self._key, owner, self, left=left)) and is_here:
                warn_if_uncommitted(self._key)
        except (LockError, Warning) as error:  # others are not of leaving, such as a time limit
            raise_or_note(error, exc)

    async def _aleave(self, owner: Owner, exc: BaseException | None, *, soon: bool) -> None:
        try:
            if soon:
                manager().release_soon(self._key, owner, self)
            else:
                refuse_reentry()
                await arun(manager().release(self._key, owner, self))
        except (LockError, Warning) as error:
            raise_or_note(error, exc)

    def _busy(self, options: LockOptions) -> LockBusy:
        """Return the error for one who has waited as these options say."""
        holder = self._holder()
        return options.busy(self._holder_message(holder), holder)

    def _holder(self) -> Holder | None:
        """Return the holder as this process knows it, or as its backend has answered."""
        hold = manager().holder(self._key)
        return self._refused_by if hold is None else hold.info().holders[0]

    def _holder_message(self, holder: Holder | None) -> str:
        """Say who has the lock, as far as is known; no backend is asked for this."""
        info = LockInfo(self.name, self.using)
        return holder_message(
            info if holder is None else replace(info.of(holder), state=State.HELD)
        )
