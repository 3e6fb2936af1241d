"""Sends a task to its queue, once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from celery import states
from celery.app.task import Context
from celery.utils.time import maybe_iso8601, maybe_make_aware
from django.utils.asyncio import async_unsafe
from kombu.utils.uuid import uuid

from distlock.celery import queueing
from distlock.celery.current import current_run
from distlock.celery.errors import AlreadyQueued
from distlock.celery.headers import HEADER, LockHeader, QueueLockHandle
from distlock.celery.options import queueing_backend
from distlock.celery.results import LockedResult
from distlock.exceptions import LockError
from distlock.types.lease import LONGEST_LEASE

logger = logging.getLogger("distlock.celery")

#: Seconds that a lock is held for a message that may not wait any longer.
_SHORTEST = 1.0

#: Options of a call by which others wait for its result under the id that it was given.
_CANVAS = ("chain", "chord", "group_id", "link")


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
    note = LockHeader.read(headers, task_id)
    headers.pop(HEADER, None)
    run = current_run(task_id)
    if note is None and run is not None:
        note = run.replaced_by(task, args, kwargs)
    anew = note is not None
    if note is not None:
        # The task itself, queued anew; its place is not to be disputed.
        if run is not None:
            run.hand_over()
            if run.lock is not None:  # it has run, and is tried again for a reason of its own
                note = replace(note, busy=0, unavailable=0)
        note = note.republished(_again(task, task_id, note.ticket, options))
    elif task.queueing_name is not None:
        try:
            note = LockHeader(task_id, ticket=_take(task, args, kwargs, task_id, options))
        except AlreadyQueued as error:
            return _queued_already(task, error, args, kwargs, known_id, options)
    if note is not None:
        headers[HEADER] = note.header()
    if headers:
        options["headers"] = headers
    try:
        result = send(args, kwargs, task_id=task_id, **options)
    except BaseException:
        # The run of a task that could not be queued anew knows whether its message comes again.
        if note is not None and note.ticket is not None and not (anew and run is not None):
            queueing.free(note.ticket)
        raise
    if anew and run is not None:
        run.republished = True
    if note is not None and note.ticket is not None and isinstance(result, LockedResult):
        result.queueing_lock = note.ticket.name
    return result


@async_unsafe(
    "A task with a queueing lock would block the event loop here; use"
    " `await sync_to_async(task.delay)()`."
)
def _take(
    task: Any, args: Any, kwargs: Any, task_id: str, options: Mapping[str, Any]
) -> QueueLockHandle:
    return queueing.take(
        task.queueing_name(args, kwargs),
        queueing_backend(task.name, task.locking),
        lifetime(task, options),
        task.name,
        task_id,
        partial(_has_ended, task),
    )


def _has_ended(task: Any, task_id: str) -> bool:
    """Return whether a task that its lock shows as queued has run or been revoked, as far as known.

    Its lock may be left over: whoever was to free it died while the backend did not answer. An id
    that someone has chosen may have the result of an earlier call.
    """
    try:
        state = task.backend.get_state(task_id)
    except Exception as error:  # there need be no result backend
        logger.debug("not known whether task %s has ended: %s", task_id, error)
        return False
    return state == states.REVOKED or (state in states.READY_STATES and _is_random(task_id))


def _is_random(task_id: str) -> bool:
    try:
        return UUID(task_id).version == 4
    except ValueError:
        return False


def _again(
    task: Any, task_id: str, ticket: QueueLockHandle | None, options: Mapping[str, Any]
) -> QueueLockHandle | None:
    """Take the lock of a task again that is queued anew; return what frees it."""
    if ticket is None:
        return None
    try:
        lease = queueing.again(ticket, lifetime(task, options), f"{task.name}[{task_id}]")
    except LockError as error:  # a task that is to be tried again must not be lost for it
        logger.warning("queueing lock %r may end before its task comes: %s", ticket.name, error)
        return ticket
    return None if lease is None else QueueLockHandle.of(lease, ticket.using)


def _queued_already(
    task: Any,
    error: AlreadyQueued,
    args: Any,
    kwargs: Any,
    known_id: str | None,
    options: Mapping[str, Any],
) -> Any:
    """Answer a call that queues nothing; callbacks linked to it are not called.

    Where others know the id that this call was to have, nobody must wait for it for ever: it counts
    as failed, and so do the rest of its chain and the body of its chord. It is not raised there,
    where it would leave a group half published, or fail the task before in a chain.
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
            chain=options.get("chain"),
            chord=options.get("chord"),
            group=options.get("group_id"),
            group_index=options.get("group_index"),
            errbacks=_listed(options.get("link_error")),
            root_id=options.get("root_id"),
            parent_id=options.get("parent_id"),
            delivery_info={},
        )
        ignored = options.get("ignore_result", task.ignore_result)
        task.backend.mark_as_failure(known_id, error, request=request, store_result=not ignored)
    if in_canvas and known_id is not None:
        return task.AsyncResult(known_id)
    if task.locking.on_queued == "raise" or error.task_id is None:
        raise error
    return task.AsyncResult(error.task_id)


def lifetime(task: Any, options: Mapping[str, Any]) -> float:
    """Return for how many seconds the lock of a call is held unless its task comes for it.

    It covers the time until the task may start and ``queueing_ttl`` from then on, but no time at
    which it must not start any more.
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


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
