"""The blocks of all lock-like objects: ``with``, ``async with``, and those of ``attempt()``."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from types import FrameType, TracebackType
from typing import Any, Self

from distlock.concurrency.reentry import must_leave_elsewhere
from distlock.core.options import LockOptions
from distlock.core.section import ActiveBlocks
from distlock.exceptions import LockError
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
        self._enter()
        self._blocks.begin(sys._getframe(1), self._current_owner)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        frame: FrameType | None = None,
    ) -> None:
        current, closed = self._current_owner, exc_type is GeneratorExit
        owner, by_itself = self._blocks.end(frame or sys._getframe(1), current)
        elsewhere = not by_itself and must_leave_elsewhere(closed=closed)
        is_here = owner.key == current.key
        self._leave_block(owner, exc, elsewhere or (closed and owner != current), is_here)

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return self._abegin(sys._getframe(1))

    async def _abegin(self, frame: FrameType) -> Self:
        await self._aenter()
        self._begin_block(frame)
        return self

    def __aexit__(self, *exc_info: Any) -> Coroutine[Any, Any, None]:
        return self._aend_block(sys._getframe(1), exc_info[1])

    # What locks do in their own way

    def acquire(self, blocking: bool | None = None, timeout: float | None = None) -> bool:
        """See Lock.acquire()."""
        raise NotImplementedError

    async def aacquire(self, blocking: bool | None = None, timeout: float | None = None) -> bool:
        """See acquire()."""
        raise NotImplementedError

    @property
    def _current_owner(self) -> Owner:
        raise NotImplementedError

    def _enter(self) -> None:
        """Take it for a block; LockBusy or LockTimeout if someone else has it."""

    async def _aenter(self) -> None:
        """See _enter()."""

    def _leave_block(
        self, owner: Owner, exc: BaseException | None, soon: bool, is_here: bool
    ) -> None:
        """Leave it once; ``soon``: without waiting for anything, for an owner who is gone.

        ``is_here``: whether the owner is the current one.
        """

    async def _aleave_block(self, owner: Owner, exc: BaseException | None, soon: bool) -> None:
        """See _leave_block()."""

    # Blocks

    def _begin_block(self, frame: FrameType) -> None:
        self._blocks.begin(frame, self._current_owner)

    def _aend_block(self, frame: FrameType, exc: BaseException | None) -> Coroutine[Any, Any, None]:
        owner, _ = self._blocks.end(frame, self._current_owner)
        return self._aleave(owner, exc)

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
        self._acquired = self._lock.acquire(self._blocking())
        if self._acquired:
            self._lock._begin_block(sys._getframe(1))
        return self._acquired

    def __exit__(self, *exc_info: Any) -> None:
        acquired, self._acquired = self._acquired, None
        if acquired:
            kind, error, traceback = exc_info
            self._lock.__exit__(kind, error, traceback, sys._getframe(1))

    def __aenter__(self) -> Coroutine[Any, Any, bool]:
        return self._abegin(sys._getframe(1))

    async def _abegin(self, frame: FrameType) -> bool:
        self._acquired = await self._lock.aacquire(self._blocking())
        if self._acquired:
            self._lock._begin_block(frame)
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
