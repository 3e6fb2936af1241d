"""Ends what runs under a lock with LockLost, as soon as Python can.

There are three kinds of bodies, and one way for each: a signal for the main thread, because only a
signal ends a system call that blocks; an exception that Python raises before the next bytecode for
another thread; a throw by the hub for a greenlet of gevent, several of which share one thread. No
way raises anything after the body has ended.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any, Self

from distlock.concurrency import fork
from distlock.concurrency.pending import Latch
from distlock.concurrency.threads import call_after
from distlock.exceptions import BodyEnded
from distlock.types.lease import Lease
from distlock.types.owners import gevent_patched

#: By default the system ignores this signal, so one that comes late does no harm.
_SIGNAL = signal.SIGURG
#: Seconds until it is sent again. Python misses a signal that comes in the moment in which a system
#: call begins, and handles it when that returns.
_RESEND = 0.5

#: The bodies on the main thread, the innermost last.
_on_main_thread: list[SignalInterrupter] = []


def body_interrupter() -> BodyInterrupter:
    """Return what can end the body that the caller is about to run, as a context manager."""
    if gevent_patched():
        return GreenletInterrupter()
    if threading.current_thread() is threading.main_thread() and _handles_signal():
        return SignalInterrupter()
    return ThreadInterrupter()


class BodyInterrupter:
    """Ends the body of a ``with`` block with LockLost when on_lost() is called."""

    def __init__(self) -> None:
        # on_lost() and __exit__() pop it: the first to come decides whether the body is ended.
        self._armed = deque([True])
        self.loss: BodyEnded | None = None

    def on_lost(self, lease: Lease) -> None:
        """Raise LockLost inside the body, unless it has ended. For Lock's ``on_lost``."""
        try:
            self._armed.pop()
        except IndexError:
            return
        self.loss = BodyEnded(
            f"{lease.claim.kind} {lease.name!r} (token {lease.token}) was lost while what it"
            " protects was running"
        )
        self.raise_in_body(self.loss)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self._armed.pop()
        except IndexError:
            self.await_raised()
        without_message = type(error) is BodyEnded and not error.args
        if self.loss is not None and (error is None or without_message):
            raise self.loss from None

    def raise_in_body(self, loss: BodyEnded) -> None:
        """Raise the loss in the body; called by another thread or greenlet."""
        raise NotImplementedError

    def await_raised(self) -> None:
        """Wait until the exception that was sent has been raised; called where the body ran."""


class SignalInterrupter(BodyInterrupter):
    """For bodies on the main thread."""

    def __enter__(self) -> Self:
        _on_main_thread.append(self)
        return self

    def raise_in_body(self, loss: BodyEnded) -> None:
        ident = threading.main_thread().ident
        if ident is not None and self in _on_main_thread:
            signal.pthread_kill(ident, _SIGNAL)
            call_after(_RESEND, partial(self.raise_in_body, loss))

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with suppress(ValueError):
            _on_main_thread.remove(self)  # from here on the signal raises nothing
        super().__exit__(kind, error, traceback)


class ThreadInterrupter(BodyInterrupter):
    """For bodies on another thread. See PyThreadState_SetAsyncExc() in the C API."""

    def __init__(self) -> None:
        super().__init__()
        self._process = fork.current()
        self._ident = threading.get_ident()
        self._sent = Latch()

    def raise_in_body(self, loss: BodyEnded) -> None:
        # A class: Python makes the exception itself, without a message.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self._ident), ctypes.py_object(BodyEnded)
        )
        self._sent.set()

    def await_raised(self) -> None:
        # It was set before the latch, so it is raised at the next call of a function, if it was
        # not raised yet. Taking it back is no alternative: CPython 3.11 would look for it before
        # every call from then on.
        with suppress(BodyEnded):
            if self._process is fork.current():  # else who was to send it is not in this process
                self._sent.wait(threading.TIMEOUT_MAX)
            _do_nothing()


class GreenletInterrupter(BodyInterrupter):
    """For bodies in a greenlet of gevent."""

    def __init__(self) -> None:
        super().__init__()
        self._gevent: Any = sys.modules["gevent"]
        self._greenlet = self._gevent.getcurrent()

    def raise_in_body(self, loss: BodyEnded) -> None:
        self._gevent.kill(self._greenlet, loss)  # the hub throws it soon; this does not wait

    def await_raised(self) -> None:
        with suppress(BodyEnded):
            for _ in range(3):  # the hub throws it in one of its next rounds
                self._gevent.sleep(0)


def _do_nothing() -> None:
    pass


def _handles_signal() -> bool:
    """Handle the signal; False if somebody else handles it."""
    current = signal.getsignal(_SIGNAL)
    if current in (signal.SIG_DFL, signal.SIG_IGN):
        signal.signal(_SIGNAL, _on_signal)
        return True
    return current is _on_signal


def _on_signal(number: int, frame: object) -> None:
    for interrupter in reversed(_on_main_thread):
        if interrupter.loss is not None:
            _on_main_thread.remove(interrupter)
            raise interrupter.loss
