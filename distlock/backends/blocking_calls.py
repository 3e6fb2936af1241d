"""Blocking calls of one backend, made for asyncio on threads that no other backend uses."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from distlock.backends.settings import BackendSettings
from distlock.concurrency import fork
from distlock.concurrency.clock import clock, left
from distlock.concurrency.workers import NotDone, WorkerThreads
from distlock.exceptions import LockUnavailable

T = TypeVar("T")

#: The most threads for the calls of one kind on one backend.
MOST_THREADS = 8
#: Seconds that a question gets for its answer although the caller's time is over, or nearly so.
LAST_ANSWER = 0.4
#: Seconds beyond that in which another thread notes the answer.
_HANDOVER = 0.1
#: Seconds that the end of the process waits for locks that are being released.
_AT_EXIT = 2.0


def answer_due(deadline: float | None) -> float | None:
    """Return when an answer is due, if its question is asked now by a caller with a time limit.

    It is the caller's deadline (None: never). But a free lock must be had within any limit, and the
    last look at a lock is made when the time is over. So a question has LAST_ANSWER seconds, and
    all that are asked one after the other end by the deadline plus LAST_ANSWER at the latest.
    """
    if deadline is None:
        return None
    return max(deadline, min(clock(), deadline) + LAST_ANSWER)


class BlockingCalls:
    """What tasks ask of one backend. It is an Executor, see distlock.concurrency.steps.

    A backend has one for releases, and one for all other calls. So neither another backend that
    does not answer, nor requests for locks that this one does not answer, keep a task from
    releasing a lock.
    """

    def __init__(self, settings: BackendSettings) -> None:
        self._settings = settings
        self._workers = WorkerThreads(MOST_THREADS, "distlock-async")

    def due(self, deadline: float | None = None) -> float | None:
        """Return when an answer is due that is asked for now: by ``deadline`` at the latest.

        That is not the caller's own: see answer_due(). None where the backend sets no limit, and
        the caller has none.
        """
        limit = self._settings.options.get("timeout")
        if limit is None:
            return deadline
        until = clock() + float(limit)
        return until if deadline is None else min(until, deadline)

    async def run(
        self,
        call: Callable[[float | None], T],
        deadline: float | None = None,
        *,
        undo: Callable[[], object] | None = None,
    ) -> T:
        """Return ``call(deadline)``, made on a thread; the deadline is that of :meth:`due`.

        The wait for a thread counts, too. LockUnavailable if there is no answer in time; a call
        that has not begun by then is never made. If the caller is cancelled, the call is made all
        the same, because a release that is not made frees nothing. With ``undo``, for a call that
        takes something, it is not made then; if it has begun, ``undo()`` is called after it, unless
        it returned None.
        """
        until = self.due(deadline)
        limit = None if until is None else max(until, clock()) + _HANDOVER
        try:
            return await self._workers.run(partial(call, until), limit, undo)
        except NotDone as late:
            error = LockUnavailable(f"DISTLOCK[{self._settings.alias!r}] did not answer in time")
            error.maybe_applied = late.begun
            raise error from late

    def settle(self, seconds: float) -> None:
        """Wait until all calls have been made, or for so many seconds."""
        self._workers.settle(seconds)

    def settle_at_exit(self) -> None:
        """Let the end of the process wait for these calls, for a moment."""
        _at_exit.add(self)


_at_exit: weakref.WeakSet[BlockingCalls] = weakref.WeakSet()


@fork.at_exit
def _settle_all() -> None:
    until = clock() + _AT_EXIT
    for calls in list(_at_exit):
        calls.settle(left(until, math.inf))
