"""Threads of our own, and blocking calls made for asyncio on them.

``sync_to_async`` shares one thread among all the synchronous code of a request; a lock that waited
there would stop the very code that is going to release it.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from distlock.bell import Bell

P = ParamSpec("P")
T = TypeVar("T")

_WORKERS = 8


def _new_executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_WORKERS, thread_name_prefix="distlock-async")


_executor = _new_executor()  # starts no thread before the first call


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


def submit(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Run a short blocking call on one of a few threads and return its future."""
    with without_signals():
        return _executor.submit(call, *args, **kwargs)


async def in_thread(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a short blocking call on another thread, and see it through.

    A cancelled caller stops waiting, but the call still runs to its end: half a release is none.
    """
    return await asyncio.shield(asyncio.wrap_future(submit(call, *args, **kwargs)))


async def in_thread_or_undone(
    call: Callable[[], T | None], undo: Callable[[], object], limit: float | None = None
) -> T | None:
    """Run a short blocking call that takes something; TimeoutError after ``limit`` seconds.

    See in_thread(). If the caller is gone when the call ends, it is undone, unless it returned
    None: by ``undo``, on a thread of its own. Whoever undoes it earlier may come before it began.
    """
    running = submit(call)
    try:
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(running)), limit)
    except BaseException as error:
        if not (running.done() and running.exception() is error):
            running.add_done_callback(lambda ended: _undo(ended, undo))
        raise


def _undo(ended: Future[T | None], undo: Callable[[], object]) -> None:
    if ended.exception() is None and ended.result() is None:
        return
    try:
        start(undo, "distlock-undo")
    except RuntimeError:  # no more threads can be had: whoever notes the end has to wait after all
        undo()


def _after_fork() -> None:
    global _executor
    _executor = _new_executor()  # the threads of the old one stayed with the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
