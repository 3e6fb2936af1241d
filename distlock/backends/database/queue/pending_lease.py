"""What the caller of a wait holds on to: a lease that may come, and the right to leave."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from distlock.bell import Bell
from distlock.clock import left
from distlock.exceptions import LockError
from distlock.types.lease import Lease

_FOR_EVER = 1e9


class PendingLease(ABC):
    """A lease that may come; use it as a context manager, so that none is left behind.

    Whatever comes first decides: an answer, or the end of the caller's patience. Only plain locks
    are used, because Ctrl-C can interrupt the ``__enter__`` of a Condition that it has locked.
    """

    def __init__(self) -> None:
        #: whether it has been answered, or nobody wants an answer any more
        self.over = False
        #: an event loop waits for it, which may have been stopped for good: nobody can tell
        self.for_loop = False
        self._mutex = threading.Lock()
        self._answered = Bell()
        self._answer: Lease | LockError | None = None
        self._served = False  # it was answered in time: nobody stands in a queue for it any more
        self._taken = False
        self._tell: Callable[[], None] = lambda: None

    @abstractmethod
    def leave(self) -> None:
        """Stop waiting, soon. Doing it twice does no harm."""

    @abstractmethod
    def give_back(self, lease: Lease) -> None:
        """Free, soon, what was granted."""

    def answer(self, answer: Lease | LockError) -> bool:
        """Give the lease, or an error; False if nobody wants it any more."""
        with self._mutex:
            if self.over:
                return False
            self._answer = answer
            self._served = True
            self._end()
        self._tell()
        return True

    # The caller's side

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.abandon()

    def result(self, deadline: float | None) -> Lease | None:
        """Wait for the lease; None if ``deadline`` passes first."""
        self._answered.wait(left(deadline, _FOR_EVER))
        return self._accept()

    async def aresult(self, deadline: float | None) -> Lease | None:
        """See result()."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:  # the loop was closed: nobody will ever ask
                self.abandon()

        with self._mutex:
            self.for_loop = True
            self._tell = tell
            if self.over:
                done.set()
        try:
            async with asyncio.timeout(None if deadline is None else left(deadline, _FOR_EVER)):
                await done.wait()
        except TimeoutError:
            pass
        return self._accept()

    def abandon(self) -> None:
        """Want the lease no more, unless it was taken. Doing it twice does no harm."""
        with self._mutex:
            if self._taken:
                return
            answer, self._answer = self._answer, None
            self._end()
        if isinstance(answer, Lease):
            self.give_back(answer)
        elif not self._served:
            self.leave()

    def _accept(self) -> Lease | None:
        """Return the lease if it has come; it may still come at the last moment, but no later."""
        with self._mutex:
            answer = self._answer
            self._end()
            self._taken = answer is not None
        if isinstance(answer, LockError):
            raise answer
        return answer

    def _end(self) -> None:
        self.over = True
        self._answered.ring()
