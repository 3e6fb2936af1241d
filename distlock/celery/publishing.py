"""Publishes a task, unless the same call is queued already."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from celery.app.task import Context
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.functional import maybe_list
from kombu.utils.uuid import uuid

from distlock.celery import queueing
from distlock.celery.queueing import HEADER, AlreadyQueued, LockHeader
from distlock.core.base_lock import BaseLock
from distlock.core.held import HeldLease
from distlock.core.manager import manager
from distlock.types.lease import LONGEST_LEASE, new_nonce

logger = logging.getLogger("distlock.celery")

#: The shortest lease of a queueing lock, in seconds: for a message that expires at once.
_SHORTEST = 1.0

#: Options of a call that is part of a canvas: others may wait for its result by its id.
_CANVAS = ("chain", "chord", "group_id", "link")

#: Options of a call that are attributes of its request under the same name.
_OF_REQUEST = ("chain", "chord", "group_index", "root_id", "parent_id")


class RunningTask:
    """The task whose code runs in this thread or greenlet, and may publish the same task again.

    That code is the task's own body, or Celery's when it requeues a task whose process has died.
    """

    def __init__(self, header: LockHeader) -> None:
        self.header = header
        #: the lock that the task holds, or the semaphore of which it has a seat
        self.lock: BaseLock | None = None
        #: the hold of its queueing lock that is renewed while it runs
        self.renewed: HeldLease | None = None
        #: whether the queueing lock was freed when the task started
        self.queue_lock_freed = False
        #: whether the task has been published again meanwhile
        self.republished = False

    def stop_renewal(self) -> None:
        """Stop renewing the queueing lock. It is freed at the end, or by the next worker."""
        renewed, self.renewed = self.renewed, None
        if renewed is not None:
            manager.unwatch(renewed)

    def is_queued_under(self, task: Any, args: Any, kwargs: Any) -> bool:
        """Return whether a call has the same queueing lock as this task."""
        handle = self.header.queue_lock
        return (
            handle is not None
            and task.queueing_name is not None
            and task.queueing_name(args, kwargs) == handle.name
        )


#: The innermost running task.
running_task: ContextVar[RunningTask | None] = ContextVar("distlock_running_task", default=None)


def publish(
    task: Any,
    send: Callable[..., Any],
    args: Any,
    kwargs: Any,
    task_id: str | None,
    options: dict[str, Any],
) -> Any:
    """Send a call of ``task`` unless one is queued already; returns the result to wait for.

    ``send`` is Celery's own ``apply_async``.
    """
    known_id = task_id
    task_id = task_id or uuid()
    headers = dict(options.pop("headers", None) or {})
    header = LockHeader.read(headers, task_id)
    headers.pop(HEADER, None)
    running = running_task.get()
    if running is not None and running.header.task_id != task_id:
        running = None
    if header is None and running is not None:
        if running.is_queued_under(task, args, kwargs):
            header = running.header  # Task.replace(): this call takes the task's place, and its id
        else:
            running = None
    if header is not None:
        header = _published_again(header, running)
    try:
        if header is None:
            if task.queueing_name is not None:
                name = task.queueing_name(args, kwargs)
                try:
                    handle = queueing.acquire(task, name, task_id, lifetime(task, options))
                except AlreadyQueued as error:
                    return _result_of_first(task, error, args, kwargs, known_id, options)
                header = LockHeader(task_id, queue_lock=handle)
        elif header.queue_lock is not None:
            described = f"{task.name}[{task_id}]"
            again = queueing.reacquire(header.queue_lock, lifetime(task, options), described)
            header = replace(header, queue_lock=again)
        if header is not None:
            headers[HEADER] = asdict(header)
        if headers:
            options["headers"] = headers
        result = send(args, kwargs, task_id=task_id, **options)
    except BaseException:
        # A running task that could not be published again knows whether its message comes again,
        # and frees its queueing lock then, unless it has freed it when it started.
        frees_it_later = running is not None and not running.queue_lock_freed
        if header is not None and header.queue_lock is not None and not frees_it_later:
            queueing.release(header.queue_lock)
        raise
    if running is not None:
        running.republished = True
    return result


def _published_again(header: LockHeader, running: RunningTask | None) -> LockHeader:
    """Return the header for the next message of the same task, which keeps its queueing lock."""
    if running is None:
        return header
    running.stop_renewal()
    if running.lock is not None:  # it has run, and is retried for a reason of its own
        header = replace(header, busy=0, unavailable=0)
    if running.queue_lock_freed and header.queue_lock is not None:
        # A release that was not answered is repeated, and must not free the next hold.
        header = replace(header, queue_lock=replace(header.queue_lock, nonce=new_nonce()))
    return header


def _result_of_first(
    task: Any,
    error: AlreadyQueued,
    args: Any,
    kwargs: Any,
    known_id: str | None,
    options: Mapping[str, Any],
) -> Any:
    """Return the result of the first call, or raise; callbacks linked to this call are not called.

    If others know the id of this call, they may wait for its result. So the id is marked as failed,
    and with it the rest of its chain and the body of its chord. In a chain, group or chord nothing
    is raised: an error would leave a group half published, or fail the task before in a chain.
    """
    if options.get("link") is not None:
        logger.warning("%s; what is linked to this call will not be called", error)
    else:
        logger.info("%s", error)
    in_canvas = any(options.get(option) is not None for option in _CANVAS)
    if known_id is not None and known_id != error.task_id:
        request = Context(
            id=known_id,
            task=task.name,
            args=args or (),
            kwargs=kwargs or {},
            group=options.get("group_id"),
            errbacks=maybe_list(options.get("link_error")),  # type: ignore[no-untyped-call]
            delivery_info={},
            **{option: options.get(option) for option in _OF_REQUEST},
        )
        ignored = options.get("ignore_result", task.ignore_result)
        task.backend.mark_as_failure(known_id, error, request=request, store_result=not ignored)
    if in_canvas and known_id is not None:
        return task.AsyncResult(known_id)
    if task.locking.on_queued == "raise" or error.task_id is None:
        raise error
    return task.AsyncResult(error.task_id)


def lifetime(task: Any, options: Mapping[str, Any]) -> float:
    """Return for how many seconds a call's queueing lock is held if its task does not start.

    That is the time until the task may start and ``queueing_ttl`` from then on, but not longer than
    until the task expires.
    """
    app = task.app
    seconds = float(task.locking.queueing_ttl)
    if countdown := options.get("countdown"):
        seconds += max(float(countdown), 0.0)
    elif eta := options.get("eta"):
        seconds += max(_seconds_until(app, eta), 0.0)
    expires = options.get("expires", task.expires)
    if expires is not None:
        ends = float(expires) if isinstance(expires, (int, float)) else _seconds_until(app, expires)
        seconds = min(seconds, ends)
    return min(max(seconds, _SHORTEST), LONGEST_LEASE)


def _seconds_until(app: Any, moment: datetime | str) -> float:
    aware: datetime = maybe_make_aware(maybe_iso8601(moment), app.timezone)
    return (aware - datetime.now(UTC)).total_seconds()
