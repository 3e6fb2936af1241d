"""Blocking calls that are made on threads of our own, for tasks and for those who must not wait.

``sync_to_async`` shares one thread among all the synchronous code of a request; a lock that waited
there would stop the very code that is going to release it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import Any, Final, Generic, TypeVar

from distlock.concurrency.clock import clock
from distlock.concurrency.pending import Pending
from distlock.concurrency.reentry import calls_others
from distlock.concurrency.threads import WaitQueue, call_elsewhere, start, start_for_callbacks

T = TypeVar("T")

#: Seconds that a thread stays for more calls.
_LINGER = 1.0
#: Seconds between two looks whether all calls are done.
_DRAIN_PAUSE = 0.005

_BEGUN: Final = "begun"


class NotDone(TimeoutError):
    """A call was not done in time; ``begun`` tells whether it may still have an effect."""

    def __init__(self, begun: bool) -> None:
        super().__init__("a call on another thread was not done in time")
        self.begun = begun


class ThreadCall(Pending[T], Generic[T]):
    """A call on another thread. Abandoned before it has begun, it is never made."""

    __slots__ = ("_call", "_undo")

    def __init__(self, call: Callable[[], T], undo: Callable[[], object] | None = None) -> None:
        super().__init__()
        self._call = call
        self._undo = undo

    @property
    def begun(self) -> bool:
        """Whether the call may have been made; it no longer changes from False once abandoned."""
        return _BEGUN in self._decided

    def discard(self) -> None:
        """Abandon it, and undo what the call has done, or does later; see submit()."""
        if self.abandon() is not None:
            self.undo()

    def undo(self) -> None:
        """Undo the call, on a thread of its own as that may take long."""
        if self._undo is not None:
            call_elsewhere(self._undo)

    @calls_others
    def run(self, finish: Callable[[], object]) -> None:
        """Make the call; ``finish`` is called before its end is reported."""
        # Before looking whether it is abandoned, and in the same dictionary: see ``begun``.
        self._decided[_BEGUN] = True
        if self.over:
            finish()
            return
        result, error = self.settle(self._call, finish)
        if result is not None or error is not None:
            self.undo()  # it was abandoned; also with an error it may have had an effect


class WorkerThreads:
    """Daemon threads for blocking calls, first come, first served.

    They are started on demand, and end after a second without a call. The end of the process waits
    for none of them. A finalizer must not submit a call, because it may run in a thread that has
    the mutex of this; it may call start() instead.
    """

    def __init__(self, limit: int | None, name: str, *, for_callbacks: bool = False) -> None:
        """``limit`` is the most threads; None: each call has one, and waits for no other call.

        ``name`` is that of the threads; ``for_callbacks`` as in start_for_callbacks().
        """
        self._limit = math.inf if limit is None else limit
        self._name = name
        self._start = start_for_callbacks if for_callbacks else start
        self._mutex = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._jobs: WaitQueue[ThreadCall[Any]] = WaitQueue()
        #: Calls that have not ended. There are as many threads, or more, up to the limit.
        self._unfinished: set[ThreadCall[Any]] = set()

    def submit(
        self, call: Callable[[], T], undo: Callable[[], object] | None = None
    ) -> ThreadCall[T]:
        """Have a call made; RuntimeError if no thread can be started for it.

        If it is abandoned before it has begun, it is not made. If it is abandoned after that and
        returns anything but None, ``undo()`` is called. An error that nobody takes is not logged.
        """
        job, is_in_line = ThreadCall(call, undo), False
        try:
            self._unfinished.add(job)
            self._have_enough_threads()
            self._jobs.put(job)
            is_in_line = True
        finally:
            if not is_in_line:  # nobody would have the job
                job.discard()
                if not job.begun:
                    self._unfinished.discard(job)
        return job

    async def run(
        self,
        call: Callable[[], T],
        deadline: float | None = None,
        undo: Callable[[], object] | None = None,
    ) -> T:
        """Have a call made and wait for it until ``deadline``, in a task; NotDone after that.

        A call that has not begun by then never will. If the task is cancelled, a call without
        ``undo`` is made all the same, since half a release is none. See submit() for ``undo``.
        """
        job = self.submit(call, undo)
        try:
            if await job.wait_async(deadline):
                return job.take()
        finally:
            if undo is not None:
                job.discard()  # does nothing to what was taken
        job.discard()
        raise NotDone(job.begun)

    def drain(self, seconds: float) -> None:
        """Wait until all calls are done or abandoned in line, or for ``seconds``."""
        until = clock() + seconds
        while any(job.begun or not job.over for job in self._unfinished.copy()):
            if clock() >= until:
                return
            time.sleep(_DRAIN_PAUSE)

    def _have_enough_threads(self) -> None:
        """Start a thread, unless each call that has not ended has one already."""
        with self._mutex:
            if len(self._threads) < min(len(self._unfinished), self._limit):
                try:
                    self._threads.add(self._start(self._work, self._name))
                except RuntimeError:  # no more threads can be started: those there are have to do
                    if not self._threads or self._limit == math.inf:
                        raise

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_LINGER)
            except Empty:
                if self._ends():
                    return
                continue
            # The call counts as ended before its answer is given: a caller that gets it, and
            # submits the next call, needs no other thread for that.
            job.run(partial(self._unfinished.discard, job))
            del job  # it may be the last reference to large objects

    def _ends(self) -> bool:
        """Let an idle thread end, unless a call needs it that was submitted just before."""
        own = threading.current_thread()
        with self._mutex:
            # An interrupt may have kept it from being noted as one of the threads.
            if own in self._threads and len(self._threads) <= len(self._unfinished):
                return False
            self._threads.discard(own)
            return True
