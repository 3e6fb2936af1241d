"""Blocking calls of one backend, made for asyncio on threads that no other backend uses."""

from __future__ import annotations

import atexit
import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from distlock.backends.settings import BackendSettings
from distlock.clock import clock, left
from distlock.exceptions import LockUnavailable
from distlock.threads import NotDone, Workers

T = TypeVar("T")

#: Threads for what asks a backend, and as many for what leaves locks.
MOST = 8
#: Seconds beyond a time limit that the answer to the last question may take.
_LAST_ANSWER = 1.0
#: Seconds that the end of the process waits for locks that are being left.
_FAREWELL = 2.0


class BlockingCalls:
    """What tasks ask of one backend. Leaving locks has threads of its own.

    So neither another backend that does not answer, nor requests for locks that this one does not
    answer, keep a task from leaving a lock.
    """

    def __init__(self, settings: BackendSettings) -> None:
        self._settings = settings
        self._asking = Workers(MOST)
        self._leaving = Workers(MOST)
        _all.add(self)

    def due(self, deadline: float | None = None) -> float | None:
        """Return when an answer is due that is asked for now: by ``deadline`` at the latest.

        None where the backend sets no limit, and the caller has none.
        """
        limit = self._settings.options.get("timeout")
        until = math.inf if limit is None else clock() + limit
        until = until if deadline is None else min(until, deadline)
        return None if until == math.inf else until

    async def run(
        self,
        call: Callable[[float | None], T],
        deadline: float | None = None,
        *,
        undo: Callable[[], object] | None = None,
        leaves: bool = False,
    ) -> T:
        """Run ``call``, which is given the time by which it has to be done, and see it through.

        That time counts from now, also while it waits for a thread; LockUnavailable if it is over.
        A call that has not begun by then never will. A caller that is cancelled stops waiting, but
        the call runs to its end: half a release is none. With ``undo`` a call that takes something
        is not begun then, or is undone afterwards, unless it returned None.
        """
        until = self.due(deadline)
        limit = None if until is None else left(until, math.inf) + _LAST_ANSWER
        workers = self._leaving if leaves else self._asking
        try:
            return await workers.run(partial(call, until), limit, undo)
        except NotDone as late:
            error = LockUnavailable(f"DISTLOCK[{self._settings.alias!r}] did not answer in time")
            error.maybe_applied = late.begun
            raise error from late

    def settle(self, seconds: float) -> None:
        """Wait until the locks that are being left have been left, or for so many seconds."""
        self._leaving.settle(seconds)


_all: weakref.WeakSet[BlockingCalls] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    until = clock() + _FAREWELL
    for calls in list(_all):
        calls.settle(left(until, _FAREWELL))
