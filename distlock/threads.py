"""Threads of our own, and blocking calls made for asyncio on them.

``sync_to_async`` shares one thread among all the synchronous code of a request; a lock that waited
there would stop the very code that is going to release it.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from distlock.bell import Bell

T = TypeVar("T")

#: Seconds that a thread stays for more calls.
_LINGER = 5.0


@contextmanager
def without_signals() -> Iterator[None]:
    """Let the threads that are started in this block take none of the process's signals.

    A thread that begins or ends may take a signal although the main thread is there for it. What
    that one is blocked in is then not interrupted, so that Ctrl-C, or the soft time limit of a
    Celery task, has to wait for it. See signal(7) and pthread_sigmask(3).
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # In here, because it also calls the handlers of signals that have just come.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        yield  # a new thread begins with the mask of the one that starts it
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(call: Callable[..., object], name: str, *args: object) -> threading.Thread:
    """Run a call on a thread that does not keep the process alive; RuntimeError if none is left.

    It is for code of our own: processes that it started would take no signals either.
    """
    with without_signals():
        return start_for_callbacks(call, name, *args)


def start_for_callbacks(call: Callable[..., object], name: str, *args: object) -> threading.Thread:
    """See start(), for calls that run other people's code."""
    thread = threading.Thread(target=call, args=args, name=name, daemon=True)
    if sys.is_finalizing():
        return thread  # none would begin any more, and whoever started it would wait for that
    if threading.current_thread() is threading.main_thread():
        _start_elsewhere(thread)
    else:
        thread.start()
    return thread


def _start_elsewhere(thread: threading.Thread) -> None:
    """Start a thread from one that no signal can interrupt, as it could stop both of them for good.

    ``Thread.start`` waits for an Event; see Bell for what that can come to.
    """
    over, problems = Bell(), []

    def begin() -> None:
        try:
            thread.start()
        except BaseException as error:
            problems.append(error)
        over.ring()

    _thread.start_new_thread(begin, ())
    over.wait(threading.TIMEOUT_MAX)
    if problems:
        raise problems[0]


class NotDone(TimeoutError):
    """A call was not done in time; ``begun`` tells whether it may still have an effect."""

    def __init__(self, begun: bool) -> None:
        super().__init__("a call on another thread was not done in time")
        self.begun = begun


class Workers:
    """A few threads for blocking calls; further calls wait in line, first come, first served.

    The threads are daemons, so that the end of the process waits for none of them.
    """

    def __init__(self, most: int) -> None:
        """``most`` is the number of threads. None is started before the first call."""
        self._most = most
        self.reset()
        _all_workers.add(self)

    def reset(self) -> None:
        """Have no threads, and no calls: in the child of a fork, those are the parent's."""
        self._mutex = threading.Lock()
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0  # calls that wait in line or run
        self._pending: set[Future[Any]] = set()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run a call on one of the threads and return its future; RuntimeError if there is none."""
        future: Future[T] = Future()
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        with self._mutex:
            self._unfinished += 1
            self._calls.put(partial(self._run, future, call))
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if len(self._threads) < min(self._unfinished, self._most):
                try:
                    self._threads.append(start(self._work, "distlock-async"))
                except RuntimeError:  # no more threads can be had
                    if not self._threads:
                        future.cancel()
                        raise
        return future

    async def run(
        self,
        call: Callable[[], T],
        limit: float | None = None,
        undo: Callable[[], object] | None = None,
    ) -> T:
        """Run a call, and wait for it for ``limit`` seconds at the most; NotDone after that.

        What has begun runs to its end, whether anybody waits for it or not. With ``undo``, a call
        that nobody waits for any more is not begun, and if it has been, and does not return None,
        it is undone: by ``undo``, on a thread of its own.
        """
        future = self.submit(call)
        outcome = asyncio.wrap_future(future)
        # When it comes nobody may wait any more, and asyncio logs errors that nobody has seen.
        outcome.add_done_callback(_note)
        try:
            await asyncio.wait([outcome], timeout=limit)
        except BaseException:
            if undo is not None and not future.cancel():
                future.add_done_callback(partial(_undo, undo))
            raise
        if outcome.done():
            return outcome.result()
        begun = not future.cancel()
        if undo is not None and begun:
            future.add_done_callback(partial(_undo, undo))
        raise NotDone(begun)

    def settle(self, seconds: float) -> None:
        """Wait until all calls are done, or for so many seconds."""
        wait(list(self._pending), seconds)

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_LINGER)
            except Empty:
                with self._mutex:
                    if self._calls.empty():
                        self._threads.remove(threading.current_thread())
                        return
                continue
            call()
            del call  # it may be the last to know a lot of things

    def _run(self, future: Future[T], call: Callable[[], T]) -> None:
        if not future.set_running_or_notify_cancel():
            return self._finish()
        # A call that follows when this one is told to be over needs no other thread.
        try:
            result = call()
        except BaseException as error:
            self._finish()
            future.set_exception(error)
        else:
            self._finish()
            future.set_result(result)

    def _finish(self) -> None:
        with self._mutex:
            self._unfinished -= 1


def _note(outcome: asyncio.Future[Any]) -> None:
    if not outcome.cancelled():
        outcome.exception()


def _undo(undo: Callable[[], object], ended: Future[Any]) -> None:
    if ended.cancelled() or (ended.exception() is None and ended.result() is None):
        return
    try:
        start(undo, "distlock-undo")
    except RuntimeError:  # no more threads can be had: whoever notes the end has to wait after all
        undo()


_all_workers: weakref.WeakSet[Workers] = weakref.WeakSet()


def _after_fork() -> None:
    for workers in list(_all_workers):
        workers.reset()  # the threads of before stayed with the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
