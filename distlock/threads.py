"""Threads of our own, and blocking calls made for asyncio on them.

``sync_to_async`` shares one thread among all the synchronous code of a request; a lock that waited
there would stop the very code that is going to release it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_WORKERS = 8


def _new_executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_WORKERS, thread_name_prefix="distlock-async")


_executor = _new_executor()  # starts no thread before the first call


def start(call: Callable[..., object], name: str, *args: object) -> threading.Thread:
    """Run a call on a thread that does not keep the process alive; RuntimeError if none is left."""
    thread = threading.Thread(target=call, args=args, name=name, daemon=True)
    thread.start()
    return thread


def submit(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Run a short blocking call on one of a few threads and return its future."""
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
