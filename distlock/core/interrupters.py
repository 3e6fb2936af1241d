"""Ends what runs under a lock with LockLost, as soon as Python can.

What runs is told in the way that there is: the main thread by a signal, which also ends a system
call that blocks; another thread by an exception that Python raises there before the next bytecode;
a greenlet by throwing it in. None of them comes after the body has ended.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from distlock.bell import Bell
from distlock.exceptions import LockLost
from distlock.types.lease import Lease
from distlock.types.owners import gevent_patched

#: Ignored unless somebody asks for it, so that one that comes late does no harm.
_SIGNAL = getattr(signal, "SIGURG", None)

_on_main_thread: list[SignalInterrupter] = []


def terminator() -> BodyInterrupter:
    """Return the way to end what the caller is about to run, for use as a context manager."""
    if gevent_patched():
        return GreenletInterrupter()
    if threading.current_thread() is threading.main_thread() and _listens():
        return SignalInterrupter()
    return ThreadInterrupter()


class BodyInterrupter:
    """Ends the body of a ``with`` block with LockLost once it is told of the loss."""

    def __init__(self) -> None:
        self._armed = deque([True])  # popping it decides who comes first: the loss or the end
        self.loss: LockLost | None = None

    def on_lost(self, lease: Lease) -> None:
        """Raise LockLost inside the body, unless it has ended. For Lock's ``on_lost``."""
        try:
            self._armed.pop()
        except IndexError:
            return
        self.loss = LockLost(
            f"lock {lease.name!r} (token {lease.token}) was lost while what it protects was running"
        )
        self._raise(self.loss)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._armed.pop()
        except IndexError:
            self._await()
        wordless = type(error) is LockLost and not error.args
        if self.loss is not None and (error is None or wordless):
            raise self.loss from None  # it may have come without words, or not at all

    def _raise(self, loss: LockLost) -> None:
        """Raise the loss in the body; called by another thread or greenlet."""
        raise NotImplementedError

    def _await(self) -> None:
        """Let what is on its way come, or not come any more; called by the body's own."""


class SignalInterrupter(BodyInterrupter):
    """For what runs on the main thread."""

    def __enter__(self) -> Self:
        _on_main_thread.append(self)
        return self

    def _raise(self, loss: LockLost) -> None:
        ident = threading.main_thread().ident
        if ident is not None and _SIGNAL is not None:
            signal.pthread_kill(ident, _SIGNAL)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(ValueError):
            _on_main_thread.remove(self)  # from here on the signal means nothing
        super().__exit__(kind, error, traceback)


class ThreadInterrupter(BodyInterrupter):
    """For what runs on another thread. See PyThreadState_SetAsyncExc() in the C API."""

    def __init__(self) -> None:
        super().__init__()
        self._ident = threading.get_ident()
        self._sent = Bell()

    def _raise(self, loss: LockLost) -> None:
        # A class: Python makes the exception itself.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self._ident), ctypes.py_object(LockLost)
        )
        self._sent.ring()

    def _await(self) -> None:
        # It was set before the bell rang, so it comes at the next call of a function, if it has not
        # come yet. To take it back would leave CPython 3.11 looking for it before every call, and,
        # where a profiler or tracer raises an error, for ever.
        with suppress(LockLost):
            self._sent.wait(threading.TIMEOUT_MAX)
            _nothing()


class GreenletInterrupter(BodyInterrupter):
    """For what runs in a greenlet of gevent."""

    def __init__(self) -> None:
        super().__init__()
        self._gevent: Any = sys.modules["gevent"]
        self._greenlet = self._gevent.getcurrent()

    def _raise(self, loss: LockLost) -> None:
        self._gevent.kill(self._greenlet, loss)  # soon, without waiting for it

    def _await(self) -> None:
        with suppress(LockLost):
            for _ in range(3):  # the hub throws it in one of its next rounds
                self._gevent.sleep(0)


def _nothing() -> None:
    pass


def _listens() -> bool:
    """Listen to the signal; False if that is somebody else's."""
    if _SIGNAL is None:
        return False
    current = signal.getsignal(_SIGNAL)
    if current in (signal.SIG_DFL, signal.SIG_IGN):
        signal.signal(_SIGNAL, _on_signal)
        return True
    return current is _on_signal


def _on_signal(number: int, frame: object) -> None:
    for told in reversed(_on_main_thread):
        if told.loss is not None:
            _on_main_thread.remove(told)
            raise told.loss
