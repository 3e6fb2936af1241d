"""The activity of the code that takes a lock: each activity of a thread is an owner of its own.

It also describes a hold that was given no description. In a request that Django handles this is the
method and the path; no middleware is needed. Elsewhere it is the text of :func:`activity`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.core.signals import request_finished, request_started

from distlock.concurrency import fork, work
from distlock.concurrency.work import Work
from distlock.types.lease import MAX_DESCRIPTION
from distlock.types.values import escaped


@dataclass(slots=True, eq=False)
class _Doing:
    """An activity and the one around it.

    A context is copied to threads and to tasks, which may outlive the activity. So the end of the
    activity is noted here, on the object that all copies share.
    """

    text: str
    outer: _Doing | None
    #: "request" or "task" for what signals tell the end of
    kind: str = ""
    #: the piece of work that it is of a thread; None in a task, which is an owner by itself
    work: Work | None = None
    ended: bool = False

    def begin(self) -> None:
        _current.set(self)
        if self.work is not None:
            self.work.begin()

    def end(self) -> None:
        if self.work is not None:
            self.work.end()
        self.ended = True


_UID = "distlock.activity"

_current: ContextVar[_Doing | None] = ContextVar("distlock_activity", default=None)

#: ASGI requests by the object that all tasks and threads of a request share. Up to Django 6.0 the
#: receivers of its signals run in a task of their own: others do not see the variables they set.
_requests: WeakKeyDictionary[ThreadSensitiveContext, _Doing] = WeakKeyDictionary()


@contextmanager
def activity(text: str) -> Iterator[None]:
    """Mark a piece of work: one turn of a loop that works for others, such as a job of a queue.

    In a thread the ``with`` block is an owner of its own: a lock that is acquired inside and not
    released there is not left to the next piece of work. This is logged as an error, and the lock
    is free when its lease ends. The block may enter the locks that the code around it holds.

    ``text`` describes all locks taken there without a description. It is cut to the length of a
    description, and its unprintable characters are escaped; an empty one keeps the outer activity,
    perhaps a path with a secret in it, from being shown.

    Requests that Django handles, Celery's tasks, jobs of executors (``concurrent.futures``,
    ``sync_to_async()``) and of ``multiprocessing.pool.ThreadPool``, and ``LockedCommand`` need no
    mark. Raises TypeError if ``text`` is no text.
    """
    if not isinstance(text, str):
        raise TypeError(f"an activity is described by a str, not {text!r}")
    doing = _new(text)
    try:
        try:
            doing.begin()
            yield
        finally:
            doing.end()
    finally:  # once more, for an interrupt may have come while it was ended
        doing.end()
        # A generator may end in another context than the one in which it began.
        if _current.get() is doing:
            _current.set(_running())


def current_activity() -> str:
    """Return what is going on here; empty if nobody has said anything."""
    if _current.get() is None and SyncToAsync.thread_sensitive_context.get(None) is None:
        return ""  # the usual case
    doing = _running()
    return doing.text if doing else ""


def watch() -> None:
    """Follow the requests and the background tasks of this process.

    Celery's are followed if it has been imported before the apps are ready, as in each worker.
    """
    request_started.connect(_on_started, dispatch_uid=_UID)
    request_finished.connect(_on_finished, dispatch_uid=_UID)
    if (celery := sys.modules.get("celery.signals")) is not None:
        celery.task_prerun.connect(_on_celery_task, weak=False, dispatch_uid=_UID)
        celery.task_postrun.connect(_on_task_end, weak=False, dispatch_uid=_UID)
    with suppress(ImportError):  # before Django 6
        from django.tasks.signals import task_finished, task_started

        task_started.connect(_on_django_task, dispatch_uid=_UID)
        task_finished.connect(_on_task_end, dispatch_uid=_UID)


def _on_started(
    *,
    environ: Mapping[str, Any] | None = None,
    scope: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> None:
    fork.current()  # so that watches go on here, if this is a worker's first request
    _end("request")  # one of this thread whose server never closed the response
    if environ is not None:
        raw = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}"[:MAX_DESCRIPTION]
        # PEP 3333: each character of these stands for the byte of its number.
        path = raw.encode("latin-1", "replace").decode("utf-8", "replace")
        text = f"{environ.get('REQUEST_METHOD', '')} {path}"
    elif scope is not None:
        text = f"{scope.get('method', '')} {scope.get('path', '')}"
    else:
        return
    # A request of ASGI is many jobs and tasks, each of which is a piece of work already.
    request = _new(text, "request", is_work=environ is not None)
    request.begin()
    if shared := SyncToAsync.thread_sensitive_context.get(None):
        _requests[shared] = request


def _on_finished(**kwargs: Any) -> None:
    _end("request")


def _on_celery_task(*, task_id: str, task: Any, **kwargs: Any) -> None:
    _new(f"Celery task {task.name}[{task_id}]", "task").begin()


def _on_django_task(*, task_result: Any, **kwargs: Any) -> None:
    _new(f"task {task_result.task.module_path}[{task_result.id}]", "task").begin()


def _on_task_end(**kwargs: Any) -> None:
    _end("task")


def _new(text: str, kind: str = "", is_work: bool = True) -> _Doing:
    text = escaped(text[: MAX_DESCRIPTION + 1])
    if len(text) > MAX_DESCRIPTION:
        text = f"{text[: MAX_DESCRIPTION - 1]}…"
    loop = asyncio._get_running_loop()
    if loop is not None and asyncio.current_task(loop) is not None:
        is_work = False  # the task is an owner by itself
    return _Doing(text, _running(), kind, work.new_work() if is_work else None)


def _end(kind: str) -> None:
    """End the innermost activity of a kind, with whatever goes on inside it."""
    doing = last = _running()
    while last is not None and last.kind != kind:
        last = last.outer
    # Another thread may end a request of its own in a copy of this context.
    if last is None or (last.work is not None and not last.work.is_here):
        return
    while doing is not None and doing is not last.outer:
        doing.end()
        doing = doing.outer
    _current.set(_running())


def _running() -> _Doing | None:
    doing = _current.get()
    while doing is not None and doing.ended:
        doing = doing.outer
    if doing is None and (shared := SyncToAsync.thread_sensitive_context.get(None)):
        doing = _requests.get(shared)
    return doing if doing and not doing.ended else None
