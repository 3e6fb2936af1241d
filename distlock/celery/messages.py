"""The messages of locked tasks: a task is published unless the same call is queued already.

And the worker's main process frees the locks of tasks that cannot free them themselves: one that is
revoked or expires never starts, one whose process is killed never ends. The main process learns of
both.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Self, cast

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import states
from celery.app.task import Context
from celery.signals import task_postrun, task_revoked
from celery.utils.time import maybe_iso8601, maybe_make_aware
from celery.worker.request import Request
from kombu.utils.functional import maybe_list

from distlock.celery import queueing
from distlock.celery.queueing import AlreadyQueued, QueueLockHandle
from distlock.concurrency.threads import start
from distlock.conf import locks
from distlock.exceptions import LockError
from distlock.locking.base_lock import BaseLock
from distlock.records.shared_backend import shared_locks
from distlock.runtime.hold import Hold
from distlock.runtime.manager import manager
from distlock.types.lease import LONGEST_LEASE, Claim, Owner, new_nonce

logger = logging.getLogger("distlock.celery")

#: The message header with all that this package adds to a task's message.
HEADER = "distlock"

#: The shortest lease of a queueing lock, in seconds: for a message that expires at once.
_SHORTEST = 1.0

#: Options of a call that is part of a canvas: others may wait for its result by its id.
_CANVAS = ("chain", "chord", "group_id", "link")

#: Options of a call that are attributes of its request under the same name.
_OF_REQUEST = ("chain", "chord", "group_index", "root_id", "parent_id")

#: With these errors the process of the task has ended, or is about to.
_PROCESS_ENDED = (WorkerLostError, Terminated, TimeLimitExceeded, SystemExit, KeyboardInterrupt)
#: How often to look whether a process that was killed is gone, and the seconds between two looks.
_LOOKS, _PAUSE = 1200, 0.05


@dataclass(frozen=True, slots=True)
class LockHeader:
    """The message header of the task ``task_id``.

    In a message it is a dict of these fields.

    - ``busy``: how often the task was requeued because its lock was busy.
    - ``unavailable``: how often in a row it was requeued after that because the backend of its lock
      could not be asked.
    - ``queue_lock``: the hold of its queueing lock.

    The worker that receives the message adds the rest:

    - ``claim_nonce``, ``queue_claim_nonce``: the nonces of the claims that are made for this
      delivery, on the running lock and on the queueing lock. The worker's main process cancels
      these claims if the process of the task dies.
    - ``events``: whether the worker sends events.
    """

    task_id: str
    busy: int = 0
    unavailable: int = 0
    queue_lock: QueueLockHandle | None = None
    claim_nonce: str = ""
    queue_claim_nonce: str = ""
    events: bool = False

    @classmethod
    def read(cls, headers: Mapping[str, Any] | None, task_id: str | None) -> Self | None:
        """Return the header of this task; None if there is none, or it is another task's.

        A task may publish another one with its own headers. Then this header is among them, too.
        """
        found = (headers or {}).get(HEADER)
        if not isinstance(found, Mapping) or found.get("task_id") != task_id:
            return None
        # A message of a newer version may have more fields.
        known = {field.name: found[field.name] for field in fields(cls) if field.name in found}
        handle = known.get("queue_lock")
        return cls(**{**known, "queue_lock": QueueLockHandle(**handle) if handle else None})


class RunningTask:
    """The task whose code runs in this thread or greenlet, and may publish the same task again.

    That code is the task's own body, or Celery's when it requeues a task whose process has died.
    """

    def __init__(self, header: LockHeader) -> None:
        self.header = header
        #: the lock that the task holds, or the semaphore of which it has a seat
        self.lock: BaseLock | None = None
        #: the hold of its queueing lock that is renewed while it runs
        self.renewed: Hold | None = None
        #: whether the body was called, or was about to be
        self.body_begun = False
        #: whether the queueing lock was freed when the task started
        self.queue_lock_freed = False
        #: whether the task has been published again meanwhile
        self.republished = False

    def stop_renewal(self) -> None:
        """Stop renewing the queueing lock. It is freed at the end, or by the next worker."""
        renewed, self.renewed = self.renewed, None
        if renewed is not None:
            manager().unwatch(renewed)


#: The innermost running task.
running_task: ContextVar[RunningTask | None] = ContextVar("distlock_running_task", default=None)


def publish(
    task: Any,
    send: Callable[..., Any],
    args: Any,
    kwargs: Any,
    known_id: str | None,
    options: dict[str, Any],
) -> Any:
    """Send a call of ``task`` unless one is queued already; returns the result to wait for.

    ``send`` is Celery's own ``apply_async``; ``known_id`` the id that the caller has chosen.
    """
    task_id = known_id or str(uuid.uuid4())
    headers = dict(options.pop("headers", None) or {})
    header = LockHeader.read(headers, task_id)
    headers.pop(HEADER, None)
    running = _running_here(task, task_id, header, args, kwargs)
    if running is not None:
        header = _published_again(header or running.header, running)
    result = None
    handle = None if header is None else header.queue_lock
    try:
        if header is None and task.queueing_name is not None:
            name = task.queueing_name(args, kwargs)
            try:
                handle = queueing.acquire(task, name, task_id, lifetime(task, options))
            except AlreadyQueued as error:
                return _result_of_first(task, error, args, kwargs, known_id, options)
            header = LockHeader(task_id, queue_lock=handle)
        elif header is not None and handle is not None:
            handle = queueing.reacquire(handle, lifetime(task, options), f"{task.name}[{task_id}]")
            header = replace(header, queue_lock=handle)
        if header is not None:
            headers[HEADER] = asdict(header)
        if headers:
            options["headers"] = headers
        result = send(args, kwargs, task_id=task_id, **options)
    finally:
        # A running task that could not be published again knows whether its message comes again,
        # and frees its queueing lock then, unless it has freed it when it started.
        frees_it = running is None or running.queue_lock_freed
        if result is None and frees_it and handle is not None:
            queueing.release(handle)
    if running is not None:
        running.republished = True
    return result


def _running_here(
    task: Any, task_id: str, header: LockHeader | None, args: Any, kwargs: Any
) -> RunningTask | None:
    """Return the running task if it publishes itself again; ``header`` is that of the call.

    Or if the call takes its place and its id (``Task.replace()``), under the same queueing lock.
    """
    running = running_task.get()
    if running is None or running.header.task_id != task_id:
        return None
    handle, name = running.header.queue_lock, task.queueing_name
    if header is None and (handle is None or name is None or name(args, kwargs) != handle.name):
        return None
    return running


def _published_again(header: LockHeader, running: RunningTask) -> LockHeader:
    """Return the header for the next message of the same task, which keeps its queueing lock."""
    running.stop_renewal()
    if running.body_begun:  # it is retried for a reason of its own
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
        logger.warning("%s; callbacks linked to this call will not be called", error)
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
            errbacks=maybe_list(options.get("link_error")),
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
    aware = maybe_make_aware(cast(datetime, maybe_iso8601(moment)), app.timezone)
    return (aware - datetime.now(UTC)).total_seconds()


class LockedRequest(Request):
    """The request of a :class:`~distlock.celery.LockedTask`, in the worker's main process."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self._header = replace(
            LockHeader.read(self.request_dict, self.id) or LockHeader(self.id),
            claim_nonce=new_nonce(),
            queue_claim_nonce=new_nonce(),
            events=bool(self.eventer and self.eventer.enabled),
        )
        self._comes_again = False
        self.request_dict[HEADER] = asdict(self._header)

    def reject(self, requeue: bool = False) -> None:
        """See Request.reject()."""
        self._comes_again = self._comes_again or requeue
        super().reject(requeue=requeue)

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        """See Request.on_failure()."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if not isinstance(error, _PROCESS_ENDED):
            return super().on_failure(exc_info, send_failed_event, return_ok)
        # publish() notes on it whether Celery publishes the task again.
        requeued = RunningTask(self._header)
        outer = running_task.set(requeued)
        try:
            answer = super().on_failure(exc_info, send_failed_event, return_ok)
        finally:
            running_task.reset(outer)
        # A message that is not acknowledged by now will be delivered again.
        self._comes_again = self._comes_again or requeued.republished or not self.acknowledged
        start(self._await_death_and_free, "distlock-dead-worker")
        return answer

    def _await_death_and_free(self) -> None:
        if self.worker_pid is not None and not _await_end(int(self.worker_pid)):
            return  # its leases end by themselves
        for free in (self._free_queue_lock, self._free_lock):
            try:
                free()
            except Exception:
                logger.exception("could not free a lock of task %s[%s]", self.name, self.id)

    def _free_queue_lock(self) -> None:
        handle = self._header.queue_lock
        if handle is not None and not self._comes_again:
            queueing.release_soon(handle)  # as the publisher took it
            queueing.release_soon(replace(handle, nonce=self._header.queue_claim_nonce))

    def _free_lock(self) -> None:
        task: Any = self.task
        if task.lock_name is None:
            return
        options = task.locking
        backend = locks[options.using]
        claim = Claim(
            task.lock_name(self.args, self.kwargs),
            Owner("", "", 0, ""),
            options.lease or backend.settings.lease,
            nonce=self._header.claim_nonce,
            kind=options.kind,
        )
        if options.slots is not None:
            shared_locks(backend).cleanup.add(claim)
            return
        held_for = 0.0
        with suppress(LockError):
            # This also connects to ZooKeeper: a backend that is not connected cancels nothing.
            held_for = backend.inspect(claim.name).held_for or 0.0
        time.sleep(max((options.at_least or 0.0) - held_for, 0.0))
        backend.cleanup.add(claim)


def _await_end(pid: int) -> bool:
    """Wait until a process is gone; False if it still is not after a minute."""
    if pid == os.getpid():
        return True  # the pool has no processes: what ran has ended
    for _ in range(_LOOKS):
        try:
            os.kill(pid, 0)
        except OSError:
            return True
        time.sleep(_PAUSE)
    return False


def _on_revoked(*, sender: Any, request: Any, terminated: bool = False, **kwargs: Any) -> None:
    """Free the queueing lock of a task that will not start."""
    handle = _queue_lock(sender, request)
    if handle is not None and not terminated:
        queueing.release_soon(handle)


def _on_postrun(*, sender: Any, state: str, **kwargs: Any) -> None:
    """Free the queueing lock of a task that has ended, if its execution could not."""
    handle = _queue_lock(sender, sender.request)
    is_settled = getattr(sender.request, "distlock_settled", False)  # set by TaskExecution
    if handle is not None and not is_settled and state != states.RETRY:
        queueing.release(handle)


def _queue_lock(task: Any, request: Any) -> QueueLockHandle | None:
    """Return the queueing lock of a task, if it is one of ours and has one."""
    header = LockHeader.read(request.headers, request.id) if hasattr(task, "locking") else None
    return None if header is None else header.queue_lock


task_revoked.connect(_on_revoked)
task_postrun.connect(_on_postrun)
