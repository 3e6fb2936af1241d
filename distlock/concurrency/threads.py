"""Threads of our own, which are daemons that take no signals; and timers, which run on one of them.

How the threads start, what they log by, and how they get work.

A timer is an action at a later time. Nearly every one is cancelled: a statement is answered in
time, a lock is freed before its lease has to be renewed. So making and cancelling one takes no
mutex, and mostly wakes no thread. It may be done by the garbage collector.
"""

from __future__ import annotations

import _thread
import logging
import math
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import attrgetter
from queue import Empty
from typing import Any, Generic, TypeVar

from distlock.concurrency.clock import clock
from distlock.concurrency.fork import PerProcess
from distlock.concurrency.pending import Pending
from distlock.concurrency.reentry import calls_others

T = TypeVar("T")

_ALL_SIGNALS = signal.valid_signals()
#: Seconds that the caller waits until a thread has begun. A signal handler that has interrupted
#: code of ``threading`` may have a mutex of that below it: then the thread begins when it returns.
_LONGEST_START = 1.0
#: Seconds between two looks for an item where a thread cannot be woken.
_PAUSE = 0.01
#: Seconds that the timers' thread sleeps at most, because its sleep counts on another clock than
#: ours, which may stand still while the machine sleeps.
_LONGEST_SLEEP = 30.0
#: Seconds between two looks at all timers, however many are due: what a look costs grows with
#: their number.
_RESOLUTION = 0.01

_by_time = attrgetter("due")

#: What a timer calls.
Action = Callable[[], object]


def without_signals(call: Callable[[], T]) -> T:
    """Return ``call()``; the threads that it starts take none of the process's signals.

    A thread that begins or ends may take a signal although the main thread should. A blocking call
    in that one is then not interrupted, so Ctrl-C, or the soft time limit of a Celery task, has to
    wait for it. See signal(7) and pthread_sigmask(3).
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    # No context manager: an interrupt, of which another thread has had the signal, could come as
    # its __exit__() begins. All signals would stay blocked in this thread.
    try:
        # It also calls the handlers of signals that have just come, which may raise.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
        return call()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(call: Callable[..., object], name: str, *args: object) -> threading.Thread:
    """Run a call on a daemon thread; RuntimeError if no more threads can be started.

    Only for code of our own: a program that the call starts would inherit that it takes no signals.
    """
    return without_signals(partial(_start, call, name, *args))


def start_for_callbacks(call: Callable[..., object], name: str, *args: object) -> threading.Thread:
    """See start(), for calls that run other people's code: programs they start take signals."""
    return start(_with_signals, name, call, *args)


@calls_others
def _with_signals(call: Callable[..., object], *args: object) -> None:
    # A thread has the mask of the one that started it, which may be one that takes none.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    call(*args)


def _start(call: Callable[..., object], name: str, *args: object) -> threading.Thread:
    thread = threading.Thread(target=call, args=args, name=name, daemon=True)
    if sys.is_finalizing():
        return thread  # no thread begins any more, and start() would wait forever
    if threading.current_thread() is threading.main_thread():
        _start_elsewhere(thread)
    else:
        thread.start()
    return thread


def _start_elsewhere(thread: threading.Thread) -> None:
    """Start a thread from one that no signal can interrupt, as it could stop both of them for good.

    ``Thread.start`` waits for an Event, which an interrupt may leave locked.
    """
    begun: Pending[None] = Pending()
    _thread.start_new_thread(begun.settle, (thread.start,))
    if begun.wait(clock() + _LONGEST_START):
        begun.take()


def undo(error: BaseException, call: Callable[..., object], *args: object) -> None:
    """Clean up after an error or an interrupt; see or_undo() in steps.py for what protects this."""
    if isinstance(error, GeneratorExit):
        # A coroutine is being collected as garbage, perhaps while this thread has a mutex of ours.
        call_elsewhere(call, *args)
    else:
        call(*args)


def call_elsewhere(call: Callable[..., object], *args: object) -> None:
    """Clean up on another thread; on this one, which may take long, if none can be started."""
    try:
        start(call, "distlock-undo", *args)
    except RuntimeError:
        call(*args)


@calls_others
def call_and_log(call: Callable[[], object], message: str, *args: object, **options: Any) -> None:
    """Call a function for nobody: what it raises is logged, with ``message``."""
    try:
        call()
    except BaseException:  # even sys.exit(): what this thread does for others must go on
        thread_logger.exception(message, *args, **options)


class _ThreadLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs on threads of our own, where nobody would get the error of a filter or a handler.

    It would end the thread, and with it the renewal of all locks. Like the errors that a handler
    meets in writing a line, it is printed; see ``logging.raiseExceptions``.
    """

    @calls_others
    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        try:
            # Two frames up is who called warning() or the like: logging does not count its own.
            self.logger.log(level, msg, *args, stacklevel=2, **options)
        except BaseException as error:  # it would end the thread
            # Where no thread could be started, a signal's handler may raise here in the main
            # thread.
            in_main = threading.current_thread() is threading.main_thread()
            if in_main and not isinstance(error, Exception):
                raise
            if logging.raiseExceptions and sys.stderr:
                with suppress(Exception):  # stderr may be closed
                    traceback.print_exc()


#: The logger of our own threads; code that runs on the caller's threads has a plain logger.
thread_logger = _ThreadLogger(logging.getLogger("distlock"), {})


def warn_if_threads_stand_still() -> None:
    """Log that nothing is renewed while this process waits for requests, where that is so.

    uWSGI keeps the GIL then, unless it was started with --enable-threads, as newer ones always are.
    In a request, threads run as everywhere.
    """
    uwsgi = sys.modules.get("uwsgi")
    if uwsgi is not None and not getattr(uwsgi, "has_threads", True):
        thread_logger.warning(
            "uWSGI runs no threads while it waits for a request: holds longer than a request (an"
            " election, a group, a lock) are not renewed, and will be lost. Start uWSGI"
            " with --enable-threads"
        )


class WaitQueue(Generic[T]):
    """The queue in which threads wait for work: first in, first out.

    It takes no mutex: the garbage collector may call put() at any time. It is
    ``queue.SimpleQueue``, in plain Python. From Python 3.13 on, a thread that waits in that one is
    in a list of the interpreter, by an entry on its own stack. The child of a fork that calls no
    hooks, as uWSGI's workers are, has the list and not the stack: it crashes when one of its
    threads wakes another one whose entry would be in the same part of the list.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        #: a lock for each thread that waits, first come first: who releases it wakes the thread
        self._waiting: dict[threading.Lock, None] = {}

    def empty(self) -> bool:
        """Return whether there is nothing to get; a moment later it may be otherwise."""
        return not self._items

    def put(self, item: T) -> None:
        """Add an item, and wake a thread that waits; interrupted, it may have woken none."""
        # A waiter is in the list before it looks for an item; here it is the other way round. So
        # one of the two sees the other.
        self._items.append(item)
        self._wake()

    def get(self, timeout: float) -> T:
        """Return the next item; queue.Empty if none comes within ``timeout`` seconds."""
        until = clock() + timeout
        while True:
            with suppress(IndexError):
                item = self._items.popleft()
                if self._items:  # it may have been added when this thread was awake already
                    self._wake()
                return item
            if (left := until - clock()) <= 0.0:
                raise Empty
            try:
                lock = threading.Lock()
            except (MemoryError, RuntimeError):  # memory is short, for a time
                time.sleep(min(left, _PAUSE))
                continue
            lock.acquire()
            self._waiting[lock] = None
            try:
                if not self._items:
                    lock.acquire(timeout=left)
            finally:
                self._waiting.pop(lock, None)

    def _wake(self) -> None:
        for lock in self._waiting.copy():
            with suppress(RuntimeError):  # that thread was woken before
                lock.release()
                return


class ThreadOnDemand(ABC, Generic[T]):
    """Has a thread of its own, which is started when it is needed, and may end when it is not.

    It takes no mutex: the garbage collector may wake the thread at any time.
    """

    def __init__(self, name: str) -> None:
        """``name`` is that of the thread."""
        self._name = name
        #: Wakes the thread; None until one has begun, and after it has ended.
        self._wakeups: WaitQueue[T] | None = None

    def _have_thread(self) -> WaitQueue[T]:
        """Return what wakes the thread; RuntimeError if no more threads can be started."""
        wakeups = self._wakeups
        if wakeups is None:
            # Several may do this at once: one of their threads finds the work of all.
            wakeups = WaitQueue()
            start(self._begin, self._name, wakeups)
        return wakeups

    def _begin(self, wakeups: WaitQueue[T]) -> None:
        # Noted no earlier: others would rely on a thread that may not start.
        if self._wakeups is None:
            self._wakeups = wakeups
            self._run(wakeups)

    @abstractmethod
    def _run(self, wakeups: WaitQueue[T]) -> None:
        """Work on the thread, for as long as ``wakeups`` are those of this object."""

    def _may_end(self, wakeups: WaitQueue[T], work: Callable[[], object]) -> bool:
        """Return whether the thread is to end: unless ``work()`` has come just before.

        Another thread notes its work, then reads ``_wakeups``. This writes ``_wakeups``, then looks
        for work; if that takes the lock of a dictionary or a set, one of the two sees the other.
        """
        if self._wakeups is wakeups:
            self._wakeups = None
        if not work() or self._wakeups is not None:
            return True
        self._wakeups = wakeups
        return False


class Timer:
    """An action that is to be called at the time ``due`` of clock(), unless it is cancelled."""

    __slots__ = ("_actions", "due")

    def __init__(self, due: float, actions: dict[Timer, Action]) -> None:
        self.due = due
        self._actions = actions

    def cancel(self) -> bool:
        """Do not call the action; False if it was cancelled before, or its action has begun."""
        return self._actions.pop(self, None) is not None


class Timers(ThreadOnDemand[float]):
    """The timers of a process, and the thread that calls what is due.

    It is woken by the times at which it is to look.
    """

    def __init__(self) -> None:
        super().__init__("distlock-timers")
        #: The thread that pops an action from here calls or cancels it.
        self._actions: dict[Timer, Action] = {}
        #: Adding a timer that is due earlier than this has to wake the thread.
        self._wakes_at = math.inf

    def call_after(self, seconds: float, action: Action) -> Timer:
        """Call ``action()`` in ``seconds``, on the thread of the timers.

        It must be quick and must not block: the others wait for it. What it raises is logged. It
        may be called some hundredths of a second late. RuntimeError if the thread is needed, and
        no more threads can be started.
        """
        timer, is_set = Timer(clock() + seconds, self._actions), False
        try:
            self._actions[timer] = action
            if timer.due < self._wakes_at:
                self._have_thread().put(timer.due)
            is_set = True
        finally:
            if not is_set:  # nobody would have the timer to cancel it
                timer.cancel()
        return timer

    def _run(self, wakeups: WaitQueue[float]) -> None:
        warn_if_threads_stand_still()
        planned = math.inf
        while self._wakeups is wakeups:
            self._wakes_at = math.inf  # who adds a timer from here on wakes this thread
            try:
                first = self._call_due()
            except MemoryError:  # for a time, perhaps; and all renewals need this thread
                first = 0.0
            now = clock()
            # Keep the planned wake-up even if its timer was cancelled: the next timer, which is
            # mostly due later than that, then need not wake the thread.
            planned = min(first, planned if planned > now else math.inf)
            self._wakes_at = planned
            rest = min(max(planned - now, _RESOLUTION), _LONGEST_SLEEP)
            with suppress(Empty):
                planned = min(planned, wakeups.get(timeout=rest))
        # Another thread has taken over, or is going to: none may rely on what this one has set.
        self._wakes_at = math.inf
        if (successor := self._wakeups) is not None:
            successor.put(math.inf)

    def _call_due(self) -> float:
        """Call what is due, and return when the next action will be."""
        # A copy is made in one atomic step, while a dict that is iterated over must not change.
        for timer in sorted(self._actions.copy(), key=_by_time):
            if timer.due > clock():
                return timer.due
            action = self._actions.pop(timer, None)
            if action is not None:
                call_and_log(action, "a timer's action failed")
                del action  # it may be the last reference to large objects
        return math.inf


_timers = PerProcess(Timers)


def call_after(seconds: float, action: Action) -> Timer:
    """See Timers.call_after(), of this process."""
    return _timers().call_after(seconds, action)
