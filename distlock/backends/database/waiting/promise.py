"""What the caller of a wait holds on to: a lease that may come, and the right to leave."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from distlock.clock import left
from distlock.lease import Lease

_FOR_EVER = 1e9


class Promise(ABC):
    """A lease that may come; use it as a context manager, so that none is left behind.

    ``future`` decides: whoever comes first, a grant or the end of the caller's patience, wins.
    """

    def __init__(self) -> None:
        self.future: Future[Lease] = Future()
        #: an event loop waits for it, which may have been stopped for good: nobody can tell
        self.for_loop = False
        self._taken = False

    @abstractmethod
    def leave(self) -> None:
        """Stop waiting, soon: the future was cancelled."""

    @abstractmethod
    def give_back(self, lease: Lease) -> None:
        """Free, soon, what was granted."""

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
        try:
            lease = self.future.result(left(deadline, threading.TIMEOUT_MAX))
        except TimeoutError:
            if self.future.cancel():
                return None
            lease = self.future.result()  # it came at the last moment
        self._taken = True
        return lease

    async def aresult(self, deadline: float | None) -> Lease | None:
        """See result()."""
        self.for_loop = True
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def tell(future: Future[Lease]) -> None:
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:  # the loop was closed: nobody will ever ask
                self.abandon()

        self.future.add_done_callback(tell)
        try:
            async with asyncio.timeout(None if deadline is None else left(deadline, _FOR_EVER)):
                await done.wait()
        except TimeoutError:
            if self.future.cancel():
                return None
        lease = self.future.result()
        self._taken = True
        return lease

    def abandon(self) -> None:
        """Want the lease no more, unless it was taken. Doing it twice does no harm."""
        if self._taken:
            return
        if self.future.cancel():
            self.leave()
        elif self.future.exception() is None:
            self.give_back(self.future.result())
