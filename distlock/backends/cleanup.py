"""Leaves in the background what could not be left, or may have been granted to nobody."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol
from weakref import ref

from distlock.clock import clock, left
from distlock.exceptions import LockError, LockUnavailable
from distlock.threads import start
from distlock.types.lease import Claim
from distlock.watchdog import watchdog

logger = logging.getLogger("distlock")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
#: Seconds between two attempts on the thread of the caller.
_FIRST_RETRY = 0.1
#: Seconds after a withdrawal at which it is repeated, where a request can be under way for long: a
#: server notices after these that a client is gone, and a network sends again for that long.
_AGAIN = (2.5, 30.0, 120.0)

#: Leaves a lock, by a deadline; raises a LockError if the backend cannot be asked.
Leave = Callable[[float], object]


class _Capable(Protocol):
    @property
    def late_requests(self) -> bool: ...


class CanCancel(Protocol):
    """The part of a backend that is needed here."""

    @property
    def capabilities(self) -> _Capable: ...

    def cancel(self, claim: Claim, deadline: float | None = None) -> None: ...


class Cleanup:
    """Claims to take back, by nonce, on one thread that lives while there are any.

    A claim is tried until the backend has answered or the lease it may have got has ended. Where
    a request may arrive late, it is tried again later: the answer was of before that.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._pending: dict[str, tuple[CanCancel, Claim, Leave, float]] = {}
        self._thread: threading.Thread | None = None

    def add(self, backend: CanCancel, claim: Claim, leave: Leave | None = None) -> None:
        """Take the claim back soon, in the way of ``leave``, without making the caller wait."""
        if leave is None and backend.capabilities.late_requests:
            for seconds in _AGAIN:
                if seconds < claim.reserved:
                    watchdog.add(seconds, partial(self._add_again, ref(backend), claim))
        self._add(backend, claim, leave or partial(backend.cancel, claim))

    def _add_again(self, backend: ref[CanCancel], claim: Claim) -> None:
        if known := backend():
            self._add(known, claim, partial(known.cancel, claim))

    def _add(self, backend: CanCancel, claim: Claim, leave: Leave) -> None:
        with self._mutex:
            self._pending[claim.nonce] = (backend, claim, leave, clock() + claim.reserved)
            if self._thread is not None and self._thread.is_alive():
                return
            try:
                # Interrupted here, the next one starts another thread: two do no harm.
                self._thread = start(self._run, "distlock-withdrawals")
                return
            except RuntimeError:  # no more threads can be had: the caller has to wait after all
                pass
        self._try_all()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            self._try_all()
            with self._mutex:
                if not self._pending:
                    if self._thread is threading.current_thread():
                        self._thread = None
                    return
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _try_all(self) -> None:
        with self._mutex:
            pending = list(self._pending.values())
        silent: set[CanCancel] = set()
        for backend, claim, leave, until in pending:
            if clock() < until:
                # A backend that did not answer for one claim will not answer for the next.
                if backend in silent:
                    continue
                try:
                    leave(until)
                except LockError:
                    silent.add(backend)
                    continue
                except Exception:
                    logger.exception("could not cancel the claim for %r", claim.name)
            with self._mutex:
                self._pending.pop(claim.nonce, None)


def leave_with_retry(claim: Claim, leave: Callable[[float], object]) -> None:
    """Leave what a claim may have been granted; try for as long as that could last.

    ``leave`` is given the local time by which it must be done, and may raise LockUnavailable.
    """
    until = clock() + claim.reserved
    pause = _FIRST_RETRY
    while clock() < until:
        try:
            leave(until)
            return
        except LockUnavailable:
            time.sleep(left(until, pause))
            pause = min(pause * 2, _LONGEST_PAUSE)
        except Exception:
            logger.exception("could not leave what was granted of %r", claim.name)
            return
