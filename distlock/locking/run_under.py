"""The lock, or the slot, under which tasks, commands and programs run.

It is left whatever happens. If it is lost, the body can be ended with LockLost, as soon as Python
can do that. There are three kinds of bodies, and one way for each: a signal for the main thread,
because only a signal ends a system call that blocks; an exception that Python raises before the
next bytecode for another thread; a throw by the hub for a greenlet of gevent, several of which
share one thread. No way raises anything after the body has ended.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Self, TypeVar

from distlock.concurrency import fork
from distlock.concurrency.pending import Latch
from distlock.concurrency.threads import call_after
from distlock.exceptions import BodyEnded, LockBusy, LockError
from distlock.locking.base_lock import BaseLock
from distlock.locking.blocks import holder_message
from distlock.locking.lock import Lock
from distlock.locking.shared import Semaphore
from distlock.types.lease import Lease
from distlock.types.owners import current_actor, gevent_patched
from distlock.types.values import checked_count

T = TypeVar("T")

#: In place of a number: the one that ``manage.py locks resize`` has set last, for all.
AGREED: Literal["agreed"] = "agreed"

#: At most so many at a time.
Slots = int | Literal["agreed"]

#: By default the system ignores this signal, so one that comes late does no harm.
_SIGNAL = signal.SIGURG
#: Seconds until it is sent again. Python misses a signal that comes in the moment in which a system
#: call begins, and handles it when that returns.
_RESEND = 0.5

#: The bodies on the main thread, the innermost last.
_on_main_thread: list[SignalInterrupter] = []


def run_under(
    lock: BaseLock,
    acquire: Callable[[], object],
    body: Callable[[], T],
    on_leave_error: Callable[[LockError], object],
) -> T:
    """Take a lock by ``acquire()``, call ``body()``, leave the lock; return what the body returned.

    ``acquire`` raises if the lock cannot be acquired. It is left wherever an error comes, also an
    interrupt between two steps: Ctrl-C or Celery's soft time limit may come at any moment, and the
    process goes on. It may come between ``__enter__()`` and the body of a ``with``, which is then
    not left. So this is a function.

    ``on_leave_error`` is called with the error if the body ended well and the lock could not be
    left: LockLost, or LockUnavailable (it is then freed later, or when its lease ends). It may
    raise. If the body failed, the error of leaving becomes a note of the body's own.
    """
    owner = current_actor(lock._options.owner).owner
    before = lock._entered(owner)
    must_leave = False
    try:
        acquire()
        must_leave = True
        result = body()
        must_leave = False  # release() does it, and is not to be repeated
        try:
            lock.release()
        except LockError as error:
            on_leave_error(error)
        return result
    except BaseException as error:  # whatever it is, others wait for the lock
        # An interrupt may have come after the lock was taken, but before acquire() returned.
        if must_leave or lock._is_inside(owner, before):
            lock.__exit__(type(error), error, error.__traceback__)
        raise


def busy_error(lock: BaseLock) -> LockBusy:
    """Return an error that says who has a lock, as far as its backend can tell.

    It is asked, so this takes time.
    """
    holder = lock._holder()
    try:
        info = lock.info()
        message, holder = holder_message(info), next(iter(info.holders), None)
    except BodyEnded:
        raise
    except LockError:
        message = lock._holder_message(holder)
    error = LockBusy(message)
    error.holder = holder
    return error


def checked_slots(option: str, slots: object, *, at_least: float | None) -> None:
    """Check a number of slots, or None for a lock; ``option`` is what the caller calls it.

    Raises TypeError or ValueError that names the option and its value.
    """
    if isinstance(slots, str) and slots != AGREED:
        raise ValueError(f"{option} must be a number or {AGREED!r}, not {slots!r}")
    if slots not in (None, AGREED):
        checked_count(option, slots)
    if slots is not None and at_least is not None:
        raise ValueError(
            f"at_least={at_least!r} does not go with {option}={slots!r}: a slot that is left is"
            " free at once"
        )


def lock_or_slot(
    name: str, slots: Slots | None, *, at_least: float | None = None, **options: Any
) -> BaseLock:
    """Return a Lock; with ``slots`` a Semaphore with so many seats, of which it takes one.

    ``options`` are those that both have; invalid ones raise an error that names them.
    """
    checked_slots("slots", slots, at_least=at_least)
    value = None if slots == AGREED else slots
    plain = slots is None
    lock = Lock(name, at_least=at_least, **options) if plain else Semaphore(name, value, **options)
    lock.name_is_filled_in = True
    return lock


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
            f"{lease.claim.kind} {lease.name!r} (token {lease.token}) was lost while the work"
            " under it was running"
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
            (lambda: None)()


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
