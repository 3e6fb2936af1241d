"""The blocks of all lock-like objects: ``with``, ``async with``, and those of ``attempt()``."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from types import FrameType, TracebackType
from typing import Any, Self

from distlock.concurrency import fork
from distlock.concurrency.reentry import must_leave_elsewhere
from distlock.core.options import LockOptions
from distlock.core.section import ActiveBlocks
from distlock.exceptions import LockBusy, LockError
from distlock.types.lease import Owner


class BlockLock:
    """A lock-like object that is held around blocks."""

    _options: LockOptions
    #: whose blocks go on
    _blocks: ActiveBlocks

    def attempt(self) -> Attempt:
        """Return what runs a block with the lock or without it: for "do it if I get it".

        ``with lock.attempt() as acquired:`` or ``async with``. ``acquired`` is False if someone
        else has the lock: it is tried once, or waited for as long as the ``timeout`` of the
        constructor says. If it was acquired, the block ends as that of ``with lock:``. Errors are
        those of acquire().
        """
        return Attempt(self)

    def __enter__(self) -> Self:
        owner = self._enter()
        self._blocks.begin(sys._getframe(1), owner)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        frame: FrameType | None = None,
    ) -> None:
        fork.ensure_reset()  # what is left may be the parent's
        if frame is None:
            frame = sys._getframe(1)
        if (owner := self._blocks.end_by_itself(frame)) is not None:
            self._leave_block(owner, exc, False, True)
            return
        current, closed = self._current_owner, exc_type is GeneratorExit
        owner = self._blocks.end(frame, current)
        soon = must_leave_elsewhere(closed=closed) or (closed and owner != current)
        self._leave_block(owner, exc, soon, owner.key == current.key)

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return self._abegin(sys._getframe(1))

    async def _abegin(self, frame: FrameType) -> Self:
        owner = await self._aenter()
        self._blocks.begin(frame, owner)
        return self

    def __aexit__(self, *exc_info: Any) -> Coroutine[Any, Any, None]:
        return self._aend_block(sys._getframe(1), exc_info[1])

    # What locks do in their own way

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

    def _leave_block(
        self, owner: Owner, exc: BaseException | None, soon: bool, is_here: bool
    ) -> None:
        """Leave it once; ``soon``: without waiting for anything, for an owner who is gone.

        ``is_here``: whether the owner is the current one.
        """

    async def _aleave_block(self, owner: Owner, exc: BaseException | None, soon: bool) -> None:
        """See _leave_block()."""

    # Blocks

    def _enter(self) -> Owner:
        """Take it for a block; LockBusy or LockTimeout if someone else has it."""
        if self._options.on_busy == "skip":
            self._options.refuse_block(self)
        if (owner := self._acquire()) is None:
            raise self._busy(self._options)
        return owner

    async def _aenter(self) -> Owner:
        """See _enter()."""
        if self._options.on_busy == "skip":
            self._options.refuse_block(self)
        if (owner := await self._aacquire()) is None:
            raise self._busy(self._options)
        return owner

    def _aend_block(self, frame: FrameType, exc: BaseException | None) -> Coroutine[Any, Any, None]:
        return self._aleave(self._blocks.end(frame, self._current_owner), exc)

    async def _aleave(self, owner: Owner, exc: BaseException | None) -> None:
        # A coroutine that is closed from outside cannot wait for anything.
        closed = isinstance(exc, GeneratorExit) and owner != self._current_owner
        await self._aleave_block(owner, exc, closed)


class Attempt:
    """One attempt to have a lock for the length of a block, which runs in either case."""

    def __init__(self, lock: BlockLock) -> None:
        self._lock = lock
        #: whether its block has the lock; None while it is in none
        self._acquired: bool | None = None

    def __enter__(self) -> bool:
        owner = self._lock._acquire(self._blocking())
        self._acquired = owner is not None
        if owner is not None:
            self._lock._blocks.begin(sys._getframe(1), owner)
        return self._acquired

    def __exit__(self, *exc_info: Any) -> None:
        acquired, self._acquired = self._acquired, None
        if acquired:
            kind, error, traceback = exc_info
            self._lock.__exit__(kind, error, traceback, sys._getframe(1))

    def __aenter__(self) -> Coroutine[Any, Any, bool]:
        return self._abegin(sys._getframe(1))

    async def _abegin(self, frame: FrameType) -> bool:
        owner = await self._lock._aacquire(self._blocking())
        self._acquired = owner is not None
        if owner is not None:
            self._lock._blocks.begin(frame, owner)
        return self._acquired

    def __aexit__(self, *exc_info: Any) -> Coroutine[Any, Any, None]:
        acquired, self._acquired = self._acquired, None
        return self._lock._aend_block(sys._getframe(1), exc_info[1]) if acquired else _nothing()

    def _blocking(self) -> bool | None:
        """Return acquire()'s ``blocking``: it waits only if the lock has a ``timeout``."""
        if self._acquired is not None:
            raise LockError(f"{self._lock!r}: call attempt() anew for each block")
        return False if self._lock._options.timeout is None else None


async def _nothing() -> None:
    pass
