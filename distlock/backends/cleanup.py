"""Takes back in the background what may have been granted to nobody, or could not be released."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol
from weakref import WeakSet, ref

from distlock.concurrency import fork
from distlock.concurrency.backoff import backoff
from distlock.concurrency.clock import clock
from distlock.concurrency.threads import start, thread_logger
from distlock.concurrency.timers import call_after
from distlock.exceptions import LockError
from distlock.types.lease import Claim

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
#: Seconds after a cancellation at which it is repeated, where a request can be under way for long:
#: a statement whose answer was not waited for may be carried out just after it, a server notices
#: after 2.5 s that a client is gone, and a network sends again for that long.
_REPEAT_AFTER = (0.2, 2.5, 30.0, 120.0)

#: Seconds that the end of the process waits for claims that are being taken back: a signal that
#: ends a program often comes while it takes a lock.
_AT_EXIT, _SETTLE_PAUSE = 2.0, 0.005

#: Takes a claim back by a deadline; raises a LockError if the backend cannot be asked.
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


_all: WeakSet[Cleanup] = WeakSet()


class Cleanup:
    """Claims that one backend has to take back, on one thread that lives while there are any.

    A claim is cancelled again and again, until the backend has answered or the lease that it may
    have got has ended; see also BaseBackend.kept_until(). Where a request may arrive late
    (``Capabilities.late_requests``), the cancel is repeated later, because the request may arrive
    after the first one.
    """

    def __init__(self, backend: CanCancel) -> None:
        self._backend = backend
        self.after_fork_in_child()
        fork.reset_in_child(self)
        _all.add(self)

    def after_fork_in_child(self) -> None:
        """Have nothing to take back: the claims are the parent's."""
        self._mutex = threading.Lock()
        self._pending: dict[str, tuple[Claim, Cancel, float]] = {}
        self._thread: threading.Thread | None = None
        #: the nonces of claims whose cancel has not been repeated yet
        self._to_repeat: set[str] = set()

    @property
    def pending(self) -> int:
        """How many claims have not been taken back yet."""
        return len(self._pending)

    def add(self, claim: Claim, cancel: Cancel | None = None) -> None:
        """Take a claim back soon, by calling ``cancel``, without making the caller wait."""
        if cancel is None and self._backend.capabilities.late_requests:
            for seconds in _REPEAT_AFTER:
                if seconds < claim.reserved:
                    with suppress(RuntimeError):  # no more threads can be had: it is not repeated
                        call_after(seconds, partial(_repeat, ref(self), claim))
                        self._to_repeat.add(claim.nonce)
        self._add(claim, cancel or partial(self._backend.cancel, claim))

    def _add(self, claim: Claim, cancel: Cancel) -> None:
        with self._mutex:
            self._pending[claim.nonce] = claim, cancel, clock() + claim.reserved
            if self._thread is not None and self._thread.is_alive():
                return
            try:
                # Interrupted here, the next one starts another thread: two do no harm.
                self._thread = start(self._run, "distlock-cleanup")
                return
            except RuntimeError:  # no more threads can be had: the caller has to wait after all
                pass
        self._try_all()

    def repeat(self, claim: Claim) -> None:
        """Cancel once more what may have been granted after the first cancel."""
        self._add(claim, partial(self._backend.cancel, claim))
        self._to_repeat.discard(claim.nonce)

    @property
    def settled(self) -> bool:
        """Whether all were taken back, and those that may be granted just after that once more."""
        return not self._pending and not self._to_repeat

    def _run(self) -> None:
        for pause in backoff(_FIRST_PAUSE, _LONGEST_PAUSE):
            self._try_all()
            with self._mutex:
                if not self._pending:
                    if self._thread is threading.current_thread():
                        self._thread = None
                    return
            time.sleep(pause)

    def _try_all(self) -> None:
        with self._mutex:
            pending = list(self._pending.items())
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
                        if self._pending.get(nonce) is entry:
                            self._pending[nonce] = self._pending.pop(nonce)
                    return
                except Exception:
                    said, fields = claim.name, claim.log_fields(self._backend.alias)
                    thread_logger.exception("could not cancel the claim for %r", said, extra=fields)
            with self._mutex:
                # One that was added meanwhile is for a request that was granted after the cancel.
                if self._pending.get(nonce) is entry:
                    del self._pending[nonce]


@fork.at_exit
def _settle_all() -> None:
    until = clock() + _AT_EXIT
    while not all(cleanup.settled for cleanup in list(_all)) and clock() < until:
        time.sleep(_SETTLE_PAUSE)


def _repeat(cleanup: ref[Cleanup], claim: Claim) -> None:
    if known := cleanup():
        known.repeat(claim)
