"""Who cannot go on before a job of an executor, or a task, has ended.

``await sync_to_async(save)()`` and ``async_to_sync(save)()`` make one piece of work of two: the one
that calls stands still until the other one returns. Neither asyncio nor asgiref says who waits for
what, so this reads their callbacks. What it does not find out counts as nobody.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from asyncio import Future as TaskFuture
from concurrent.futures import Future
from contextlib import suppress
from types import FrameType
from typing import Any

from asgiref.sync import AsyncToSync


def tasks_awaiting(job: Future[Any]) -> list[asyncio.Task[Any]]:
    """Return the tasks that await a job of an executor, as ``asyncio.to_thread()`` does."""
    seen: set[int] = set()
    futures: list[Any] = [job]
    tasks: list[asyncio.Task[Any]] = []
    while futures:
        future = futures.pop()
        if id(future) in seen:
            continue
        seen.add(id(future))
        for callback in _callbacks(future):
            waiting = getattr(callback, "__self__", None)
            if isinstance(waiting, asyncio.Task):
                tasks.append(waiting)
                continue
            # A future whose outcome is passed on to another one, as by asyncio.shield().
            futures.extend(
                value
                for value in _closed_over(callback)
                if isinstance(value, Future | TaskFuture) and not isinstance(value, asyncio.Task)
            )
    return tasks


def runs_the_loop(task: asyncio.Task[Any]) -> bool:
    """Return whether the current thread runs its event loop until this very task is done."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is asyncio.BaseEventLoop.run_until_complete.__code__:
            return frame.f_locals.get("future") is task
        frame = frame.f_back
    return False


def thread_awaiting(task: asyncio.Task[Any]) -> threading.Thread | None:
    """Return the thread that waits in async_to_sync() for a task or for its whole event loop."""
    executor: Any = AsyncToSync.loop_thread_executors.get(task.get_loop())
    if executor is not None:
        return executor._work_thread  # type: ignore[no-any-return]
    # In the loop of a server: the task is the call itself.
    frame = getattr(task.get_coro(), "cr_frame", None)
    if frame is None or frame.f_code is not AsyncToSync.main_wrap.__code__:
        return None
    for callback in _callbacks(frame.f_locals["call_result"]):
        for value in _closed_over(callback):
            if isinstance(thread := getattr(value, "_work_thread", None), threading.Thread):
                return thread
    return None


def _callbacks(future: Any) -> list[Any]:
    if isinstance(future, Future):
        return list(getattr(future, "_done_callbacks", ()))
    return [callback for callback, _ in getattr(future, "_callbacks", None) or ()]


def _closed_over(callback: Any) -> list[Any]:
    values = []
    for cell in getattr(callback, "__closure__", None) or ():
        with suppress(ValueError):  # not set yet
            values.append(cell.cell_contents)
    return values
