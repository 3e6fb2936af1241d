"""The blocks of all lock-like objects: ``with``, ``async with``, ``attempt()``, decorated calls.

Also whose block ends, and messages that say who has a lock.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Sequence
from threading import get_ident
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from asgiref.sync import iscoroutinefunction

from distlock.concurrency.reentry import must_leave_elsewhere
from distlock.exceptions import BodyEnded, LockBusy, LockError, LockLost, LockNotHeld
from distlock.locking.options import LockOptions
from distlock.runtime.hold import Left
from distlock.runtime.name_template import CallName
from distlock.types.lease import Kind, LockInfo, Owner, State
from distlock.types.owners import is_reserved
from distlock.types.values import escaped

F = TypeVar("F", bound=Callable[..., Any])

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def add_leave_error(body_error: BaseException, error: Exception) -> None:
    """Note on the body's error, which the caller must see, that leaving the lock failed, too."""
    body_error.add_note(f"besides, leaving the lock failed: {error}")


def raise_or_note(error: Exception, body_error: BaseException | None) -> None:
    """Raise an error of leaving; if the body has failed, note it on the body's error instead.

    BodyEnded is raised in any case: it is of another lock, in whose body this is.
    """
    if body_error is None or isinstance(error, BodyEnded):
        raise error
    add_leave_error(body_error, error)


def holder_message(info: LockInfo) -> str:
    """Return a sentence that says who has a lock, or that it is not known; safe to print.

    ``lock 'stock' on 'default' is held by web-1 (pid 812, main) since 12 s (token 7): report``

    ``semaphore 'mail' on 'default' has no free slot (3 of 3); held for longest by web-1 (…) …``
    """
    subject = f"{info.kind} {info.name!r} on {info.using!r}"
    if info.kind is Kind.SEMAPHORE:
        return _full_message(subject, info)
    owner = info.owner
    if owner is None or info.state is State.FREE:
        return f"{subject} was held by someone else"
    if is_reserved(owner):
        rest = "" if info.remaining is None else f" for {info.remaining:.0f} s"
        said = f"{subject} was left by {_who(owner)}, and stays taken{rest}{_token_and_what(info)}"
    else:
        said = f"{subject} is held by {_who(owner)}{_since(info)}{_token_and_what(info)}"
    return escaped(said)


def _full_message(subject: str, info: LockInfo) -> str:
    waiting = f", {len(info.waiters)} waiting" if info.waiters else ""
    if info.taken < info.slots and not waiting:
        return f"{subject} had no free slot"  # it has one by now
    full = f"{subject} has no free slot ({info.taken} of {info.slots}{waiting})"
    if info.owner is None:
        return full
    oldest = f"{_who(info.owner)}{_since(info)}{_token_and_what(info)}"
    return escaped(f"{full}; held for longest by {oldest}")


def _who(owner: Owner) -> str:
    return f"{owner.host} (pid {owner.pid}, {owner.thread})"


def _since(info: LockInfo) -> str:
    return "" if info.held_for is None else f" since {info.held_for:.0f} s"


def _token_and_what(info: LockInfo) -> str:
    token = "" if info.token is None else f" (token {info.token})"
    what = f"{token}: {info.description}" if info.description else token
    return f"{what}, acquired at {info.call_site}" if info.call_site else what


class ActiveBlocks:
    """The owners that are in ``with`` bodies of one Lock object, by the frames of these bodies.

    A generator or coroutine may begin a body in one thread or task and end it in another. This
    tells whose body ends. It takes no mutex: the garbage collector may end a body at any moment in
    any thread.
    """

    def __init__(self) -> None:
        # By their ids, because frames themselves would keep alive all their variables. The id of a
        # frame may be used again; then that of its code differs, or its entry is overwritten when
        # the new body begins. If that frame only ends a body, which a function does that is called
        # once to enter and once to leave, it may be of another thread: so that is in the key, too,
        # 0 for generators, which go on in any.
        self._owners: dict[tuple[int, int, int], list[Owner]] = {}

    def begin(self, frame: FrameType, owner: Owner) -> None:
        """Note that an owner enters a body in this frame."""
        code = frame.f_code
        key = id(frame), id(code), 0 if code.co_flags & _GENERATORS else get_ident()
        others = self._owners.get(key)
        if others is None:
            self._owners[key] = [owner]
        else:
            # A semaphore gives one thread several owners, whose keys differ after a slash.
            actor = owner.key.partition("/")[0]
            same = [other for other in others if other.key.partition("/")[0] == actor]
            self._owners[key] = [*same, owner]

    def end_by_itself(self, frame: FrameType) -> Owner | None:
        """Return whose body ends that began in this frame, and that no one else could end.

        None if it began elsewhere, or in a generator: the garbage collector may close that, in any
        thread.
        """
        code = frame.f_code
        if code.co_flags & _GENERATORS:
            return None
        key = id(frame), id(code), get_ident()
        if (owners := self._owners.pop(key, None)) is None:
            return None
        if len(owners) > 1:
            self._owners[key] = owners[:-1]
        return owners[-1]

    def end(self, frame: FrameType, current: Owner) -> Owner:
        """Return whose body in this frame ends; the current owner's, if none is known there."""
        code = frame.f_code
        key = id(frame), id(code), 0 if code.co_flags & _GENERATORS else get_ident()
        if key not in self._owners:
            # An ExitStack, for one, enters and leaves in frames of its own.
            known = reversed(list(self._owners.copy().items()))
            key = next((key for key, owners in known if current in owners), key)
        owners = self._owners.pop(key, None) or [current]
        if len(owners) > 1:
            self._owners[key] = owners[:-1]
        return owners[-1]


class BlockLock:
    """A lock-like object that is held around blocks."""

    _options: LockOptions
    #: whose blocks go on
    _blocks: ActiveBlocks
    #: whether the acquire() or aacquire() is of a subclass outside of this package
    _has_own_acquire = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        foreign = [one for one in cls.__mro__ if not one.__module__.startswith("distlock.")]
        cls._has_own_acquire = any({"acquire", "aacquire"} & vars(one).keys() for one in foreign)

    def attempt(self) -> Attempt:
        """Return a context manager that runs its block with the lock or without it.

        ``with lock.attempt() as acquired:`` or ``async with``. ``acquired`` is False if someone
        else has the lock: it is tried once, or waited for as long as the ``timeout`` of the
        constructor says. If it was acquired, the block ends as that of ``with lock:``. Errors are
        those of acquire().
        """
        return Attempt(self)

    def __enter__(self) -> Self:
        if self._options.on_busy == "skip":
            self._options.refuse_block(self)
        if not self._begin(sys._getframe(1)):
            raise self._busy(self._options)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        depth: int = 1,
    ) -> None:
        """``depth``: how many calls above this one the block is."""
        left: Left = []
        owner = None
        try:
            frame = sys._getframe(depth)
            if (owner := self._blocks.end_by_itself(frame)) is None:
                self._end_block(frame, None, exc_type, exc, left)
            else:
                self._leave(owner, exc, soon=False, is_here=True, left=left)
        except BaseException as error:  # an interrupt may have come before it was left
            is_told = isinstance(error, LockError)
            if not left and (isinstance(error, BodyEnded) or not is_told):
                self._end_block(sys._getframe(depth), owner, exc_type, error, left)
            raise

    def _end_block(
        self,
        frame: FrameType,
        owner: Owner | None,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        left: Left,
    ) -> None:
        """Leave it for whose body ends in this frame, ``owner`` if that is known."""
        current, closed = self._current_owner, exc_type is GeneratorExit
        owner = owner or self._blocks.end(frame, current)
        soon = must_leave_elsewhere(closed=closed) or (closed and owner != current)
        self._leave(owner, exc, soon=soon, is_here=owner.key == current.key, left=left)

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return self._abegin(sys._getframe(1))

    async def _abegin(self, frame: FrameType) -> Self:
        if self._options.on_busy == "skip":
            self._options.refuse_block(self)
        owner = await (self._atake() if self._has_own_acquire else self._aacquire())
        if owner is None:
            raise self._busy(self._options)
        self._blocks.begin(frame, owner)
        return self

    def __aexit__(self, *exc_info: Any) -> Coroutine[Any, Any, None]:
        return self._aend_block(sys._getframe(1), exc_info[1])

    def acquire(self, blocking: bool | None = None, timeout: float | None = None) -> bool:
        """Take the lock; True if it is held afterwards, False if someone else has it.

        As ``threading.RLock.acquire``: ``blocking=False`` tries once, ``timeout`` limits the wait
        in seconds, -1 waits forever. Arguments that are not given are those of the constructor; it
        returns False also with ``on_busy="raise"``, which is for ``with`` and decorated functions.
        A lock that is held already is entered once more; one that was lost and not released yet
        raises LockLost; with ``renew=False`` it is taken again. With ``owner`` the backend is asked
        in either case, and a lost lock is taken again.

        Raises ValueError for arguments that contradict each other, LockUnavailable if the backend
        does not answer, LockDeadlock if waiting would never end. Raises LockError if the lock is
        held already with a shorter lease than this one is to have, or if ``release="commit"`` would
        not protect an open transaction.
        """
        return self._acquire(blocking, timeout) is not None

    async def aacquire(self, blocking: bool | None = None, timeout: float | None = None) -> bool:
        """See acquire(). The owner is the task that runs this; wait_for() may make another one."""
        return await self._aacquire(blocking, timeout) is not None

    @property
    def held(self) -> bool:
        """Whether the current thread or task holds it, as this process knows."""
        try:
            self.check()
        except (LockNotHeld, LockLost):
            return False
        return True

    # For each kind of lock

    def check(self) -> None:
        """Raise LockNotHeld or LockLost unless it is held. Asks no backend."""
        raise NotImplementedError

    @property
    def _current_owner(self) -> Owner:
        raise NotImplementedError

    def _acquire(self, blocking: bool | None = None, timeout: float | None = None) -> Owner | None:
        """See Lock.acquire(); return who has it now, None if someone else has it."""
        raise NotImplementedError

    async def _aacquire(
        self, blocking: bool | None = None, timeout: float | None = None
    ) -> Owner | None:
        """See _acquire()."""
        raise NotImplementedError

    def _busy(self, options: LockOptions) -> LockBusy:
        """Return the error for one who has waited as these options say."""
        raise NotImplementedError

    def _leave(
        self,
        owner: Owner,
        exc: BaseException | None,
        *,
        soon: bool,
        is_here: bool,
        left: Left | None = None,
    ) -> None:
        """Leave it once; an error of leaving becomes a note of ``exc``, the error of the body.

        ``soon``: without waiting for anything, for an owner who is gone. ``is_here``: whether the
        owner is the current one. ``left`` is filled when it has been left, or will be in any case.
        """

    async def _aleave(self, owner: Owner, exc: BaseException | None, *, soon: bool) -> None:
        """See _leave()."""

    # Blocks

    def _begin(self, frame: FrameType, blocking: bool | None = None) -> bool:
        """Take it for a body in this frame; False if someone else has it."""
        # No call with a star: CPython lets a signal in between its end and its result.
        if not self._has_own_acquire:
            taken: Owner | bool | None = self._acquire(blocking)
        else:
            taken = self.acquire() if blocking is None else self.acquire(blocking)
        if not taken:
            return False
        try:
            self._blocks.begin(frame, taken if isinstance(taken, Owner) else self._current_owner)
        except BaseException as error:  # an interrupt: others wait
            BlockLock.__exit__(self, type(error), error, error.__traceback__)
            raise
        return True

    async def _atake(self, *blocking: bool | None) -> Owner | None:
        """See _aacquire(); it is taken by the aacquire() of a subclass."""
        return self._current_owner if await self.aacquire(*blocking) else None

    async def _aend_block(self, frame: FrameType, exc: BaseException | None) -> None:
        current = self._current_owner
        owner = self._blocks.end(frame, current)
        # A coroutine that is closed from outside cannot wait for anything.
        closed = isinstance(exc, GeneratorExit) and owner != current
        await self._aleave(owner, exc, soon=closed)


class Attempt:
    """One attempt to have a lock for the length of a block, which runs in either case."""

    def __init__(self, lock: BlockLock) -> None:
        self._lock = lock
        #: empty once it has begun; who takes what is in it is the one to begin
        self._unused = [True]
        #: whether its block has the lock
        self._acquired = False

    def __enter__(self) -> bool:
        self._acquired = self._lock._begin(sys._getframe(1), self._blocking())
        return self._acquired

    def __exit__(self, *exc_info: Any) -> None:
        if self._acquired:
            kind, error, traceback = exc_info
            BlockLock.__exit__(self._lock, kind, error, traceback, 2)

    def __aenter__(self) -> Coroutine[Any, Any, bool]:
        return self._abegin(sys._getframe(1))

    async def _abegin(self, frame: FrameType) -> bool:
        lock, blocking = self._lock, self._blocking()
        owner = await (lock._atake if lock._has_own_acquire else lock._aacquire)(blocking)
        self._acquired = owner is not None
        if owner is not None:
            lock._blocks.begin(frame, owner)
        return self._acquired

    def __aexit__(self, *exc_info: Any) -> Coroutine[Any, Any, None]:
        if not self._acquired:
            return _nothing()
        return self._lock._aend_block(sys._getframe(1), exc_info[1])

    def _blocking(self) -> bool | None:
        """Return acquire()'s ``blocking``: it waits only if the lock has a ``timeout``."""
        try:
            self._unused.pop()
        except IndexError:
            raise LockError(f"{self._lock!r}: call attempt() again for each block") from None
        return False if self._lock._options.timeout is None else None


async def _nothing() -> None:
    pass


def decorate(
    function: F, templates: Sequence[str], new_lock: Callable[..., Any], options: LockOptions
) -> F:
    """Return ``function`` run under ``new_lock(*names)``, a new lock for each call.

    The names are ``templates`` filled in with the call's arguments. ``options`` say whether calls
    that find the lock busy are skipped. TypeError for what cannot be run under a lock, ValueError
    if a template mentions an argument the function does not have.
    """
    _refuse_undecoratable(function)
    names = [CallName(template, function) for template in templates]
    skips = options.on_busy == "skip"

    if _is_async(function):

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            lock = new_lock(*[name(args, kwargs) for name in names])
            async with lock.attempt() if skips else lock as acquired:
                return await function(*args, **kwargs) if acquired else options.busy_result

        return run_async  # type: ignore[return-value]

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        lock = new_lock(*[name(args, kwargs) for name in names])
        with lock.attempt() if skips else lock as acquired:
            return function(*args, **kwargs) if acquired else options.busy_result

    return run  # type: ignore[return-value]


def _is_async(function: Callable[..., Any]) -> bool:
    # sync_to_async() makes objects that only asgiref recognizes on every Python.
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


def _refuse_undecoratable(function: object) -> None:
    if isinstance(function, (staticmethod, classmethod)):
        raise TypeError(f"put the lock below @{type(function).__name__}, nearer to the function")
    if inspect.isclass(function) or not callable(function):
        raise TypeError(f"a lock decorates functions, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"a lock cannot decorate the generator {function!r}: it would be released before the"
            " body runs; use `with` inside"
        )
