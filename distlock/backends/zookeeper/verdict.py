"""The answer to a claim: decided once by the client's thread, unless nobody wants it any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from distlock.types.lease import Lease


class Verdict:
    """A lease, or None when someone else has the lock, or an error; for one thread or task."""

    __slots__ = ("_gate", "_lease", "_error", "_mutex", "_wake", "is_settled", "is_unwanted")

    def __init__(self) -> None:
        self.is_settled = False
        self.is_unwanted = False
        self._lease: Lease | None = None
        self._error: Exception | None = None
        self._mutex = threading.Lock()
        self._gate: threading.Lock | None = None
        self._wake: Callable[[], object] | None = None

    # Who decides

    def grant(self, lease: Callable[[], Lease]) -> bool:
        """Decide for the lease that ``lease`` returns; False if nobody wants it."""
        with self._mutex:
            if self.is_unwanted:
                return False
            self._lease = lease()
            self.is_settled = True
        return self._tell()

    def deny(self, error: Exception | None = None) -> None:
        """Decide against a lease."""
        with self._mutex:
            if self.is_unwanted:
                return
            self._error = error
            self.is_settled = True
        self._tell()

    def _tell(self) -> bool:
        if self._wake is not None:
            try:
                self._wake()
            except RuntimeError:  # its event loop was closed: nobody is there
                return False
        return True

    # Who waits

    def wait(self, seconds: float) -> bool:
        """Block until it is decided; False if it is not in time."""
        with self._mutex:
            if self.is_settled:
                return True
            if self._gate is None:
                self._gate = threading.Lock()
                self._gate.acquire()
                self._wake = self._gate.release
        return self._gate.acquire(timeout=seconds)

    async def await_(self, seconds: float) -> bool:
        """See wait()."""
        loop, decided = asyncio.get_running_loop(), asyncio.Event()
        with self._mutex:
            if self.is_settled:
                return True
            self._wake = lambda: loop.call_soon_threadsafe(decided.set)
        try:
            async with asyncio.timeout(seconds):
                await decided.wait()
        except TimeoutError:
            return False
        return True

    def result(self) -> Lease | None:
        """Return what was decided; LockUnavailable if that is an error."""
        if self._error is not None:
            raise self._error
        return self._lease

    def renounce(self) -> Lease | None:
        """Say that nobody wants it any more; return the lease if there is one already."""
        with self._mutex:
            if not self.is_settled:
                self.is_unwanted = True
            return self._lease
