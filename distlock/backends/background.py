"""The threads of a backend: they ask for asyncio tasks, and take claims back.

Such a claim may have been granted to nobody, or could not be released.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar
from weakref import WeakSet, ref

from distlock.backends.settings import BackendSettings
from distlock.concurrency import fork
from distlock.concurrency.clock import backoff, clock, left
from distlock.concurrency.threads import call_after, start, thread_logger
from distlock.concurrency.workers import NotDone, WorkerThreads
from distlock.exceptions import LockError, LockUnavailable
from distlock.types.lease import Claim, log_fields

T = TypeVar("T")

#: The most threads for the calls of one kind on one backend.
MOST_THREADS = 8
#: Seconds that a question gets for its answer although the caller's time is over, or nearly so.
LAST_ANSWER = 0.4
#: Seconds beyond that in which another thread notes the answer.
_HANDOVER = 0.1
#: Seconds between two attempts to take back what could not be taken back.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
#: Seconds after a cancellation at which it is repeated, where a request can be under way for long:
#: a statement whose answer was not waited for may be carried out just after it, a server notices
#: after 2.5 s that a client is gone, and a network sends again for that long.
_REPEAT_AFTER = (0.2, 2.5, 30.0, 120.0)

#: Seconds that the end of the process waits for claims that are being taken back, and then for
#: locks that are being released: a signal that ends a program often comes while it takes a lock.
_AT_EXIT, _DRAIN_PAUSE = 2.0, 0.005

#: the threads that make the releases of the backends
_releasing: fork.PerProcess[WeakSet[WorkerThreads]] = fork.PerProcess(WeakSet)


def answer_due(deadline: float | None) -> float | None:
    """Return when an answer is due, if its question is asked now by a caller with a time limit.

    It is the caller's deadline (None: never). But a free lock must be acquired within any limit,
    and the last look at a lock is made when the time is over. So a question has LAST_ANSWER
    seconds, and all that are asked one after the other end by the deadline plus LAST_ANSWER at the
    latest.
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

    def __init__(self, settings: BackendSettings, *, releases: bool = False) -> None:
        """``releases``: the end of the process waits for these calls, for a moment."""
        self._settings = settings
        self._workers = WorkerThreads(MOST_THREADS, "distlock-async")
        if releases:
            _releasing().add(self._workers)

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


#: Takes a claim back by a deadline; raises a LockError if the backend does not answer.
Cancel = Callable[[float], object]


class _Capable(Protocol):
    @property
    def late_requests(self) -> bool: ...


class CanCancel(Protocol):
    """The part of a backend that is needed here."""

    @property
    def alias(self) -> str: ...
    @property
    def capabilities(self) -> _Capable: ...

    def cancel(self, claim: Claim, deadline: float | None = None) -> None: ...
    def kept_until(self, claim: Claim) -> float: ...


_all: fork.PerProcess[WeakSet[Cleanup]] = fork.PerProcess(WeakSet)


class Cleanup:
    """Claims that one backend has to take back, on one thread that lives while there are any.

    A claim is cancelled again and again, until the backend has answered or the lease that it may
    have got has ended; see also BaseBackend.kept_until(). Where a request may arrive late
    (``Capabilities.late_requests``), the cancel is repeated later, because the request may arrive
    after the first one.
    """

    def __init__(self, backend: CanCancel) -> None:
        self._backend = backend
        self._process = fork.current()
        _all().add(self)
        self._mutex = threading.Lock()
        #: by nonce, the claims that have not been taken back yet
        self.pending: dict[str, tuple[Claim, Cancel, float]] = {}
        self._thread: threading.Thread | None = None
        #: the nonces of claims whose cancel has not been repeated yet
        self._to_repeat: set[str] = set()

    def add(self, claim: Claim, cancel: Cancel | None = None) -> None:
        """Take a claim back soon, by calling ``cancel``, without making the caller wait."""
        if self._process is not fork.current():
            return  # in the child of a fork: the claim is the parent's
        if cancel is None and self._backend.capabilities.late_requests:
            for seconds in _REPEAT_AFTER:
                if seconds < claim.reserved:
                    with suppress(RuntimeError):  # no more threads: it is not repeated
                        call_after(seconds, partial(_repeat, ref(self), claim))
                        self._to_repeat.add(claim.nonce)
        self._add(claim, cancel or partial(self._backend.cancel, claim))

    def _add(self, claim: Claim, cancel: Cancel) -> None:
        with self._mutex:
            self.pending[claim.nonce] = claim, cancel, clock() + claim.reserved
            if self._thread is not None and self._thread.is_alive():
                return
            try:
                # Interrupted here, the next one starts another thread: two do no harm.
                self._thread = start(self._run, "distlock-cleanup")
                return
            except RuntimeError:  # no more threads can be started: the caller has to wait after all
                pass
        self._try_all()

    def repeat(self, claim: Claim) -> None:
        """Cancel once more what may have been granted after the first cancel."""
        self._add(claim, partial(self._backend.cancel, claim))
        self._to_repeat.discard(claim.nonce)

    @property
    def drained(self) -> bool:
        """Whether all were taken back, and those that may be granted just after that once more."""
        return not self.pending and not self._to_repeat

    def _run(self) -> None:
        for pause in backoff(_FIRST_PAUSE, _LONGEST_PAUSE):
            self._try_all()
            with self._mutex:
                if not self.pending:
                    if self._thread is threading.current_thread():
                        self._thread = None
                    return
            time.sleep(pause)

    def _try_all(self) -> None:
        with self._mutex:
            pending = list(self.pending.items())
        for nonce, entry in pending:
            claim, cancel, lease_ends = entry
            until = max(lease_ends, self._backend.kept_until(claim))
            if clock() < until:
                try:
                    cancel(until)
                except (LockError, OSError):  # the latter: the process can open no more files
                    # Most likely the backend answers for none. But it may be the row of this one
                    # that is locked, so the next round begins with another.
                    with self._mutex:
                        if self.pending.get(nonce) is entry:
                            self.pending[nonce] = self.pending.pop(nonce)
                    return
                except Exception:
                    said = claim.name
                    fields = log_fields(self._backend.alias, said, claim.kind, None, claim.owner)
                    thread_logger.exception("could not cancel the claim for %r", said, extra=fields)
            with self._mutex:
                # One that was added meanwhile is for a request that was granted after the cancel.
                if self.pending.get(nonce) is entry:
                    del self.pending[nonce]


@fork.at_exit
def _drain_all() -> None:
    until = clock() + _AT_EXIT
    while not all(cleanup.drained for cleanup in list(_all())) and clock() < until:
        time.sleep(_DRAIN_PAUSE)
    until = clock() + _AT_EXIT
    for workers in list(_releasing()):
        workers.drain(left(until, math.inf))


def _repeat(cleanup: ref[Cleanup], claim: Claim) -> None:
    if known := cleanup():
        known.repeat(claim)
