"""Frees, in the worker's main process, the locks of tasks that cannot free them themselves.

A task that is revoked or expires never starts; one whose process is killed never ends. The main
process learns of both.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from dataclasses import asdict, replace
from typing import Any

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import states
from celery.signals import task_postrun, task_revoked
from celery.worker.request import Request

from distlock.backends.shared import shared_locks
from distlock.celery import queueing
from distlock.celery.publishing import RunningTask, running_task
from distlock.celery.queueing import HEADER, LockHeader, QueueLockHandle
from distlock.concurrency.threads import start
from distlock.conf import locks
from distlock.exceptions import LockError
from distlock.types.lease import Claim, Kind, Owner

logger = logging.getLogger("distlock.celery")

#: With these errors the process of the task has ended, or is about to.
_PROCESS_ENDED = (WorkerLostError, Terminated, TimeLimitExceeded, SystemExit, KeyboardInterrupt)
#: How often to look whether a process that was killed is gone, and the seconds between two looks.
_LOOKS, _PAUSE = 1200, 0.05


class LockedRequest(Request):  # type: ignore[misc]
    """The request of a :class:`~distlock.celery.LockedTask`, in the worker's main process."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        self._header = replace(
            LockHeader.read(self.request_dict, self.id) or LockHeader(self.id),
            claim_nonce=uuid.uuid4().hex,
            queue_claim_nonce=uuid.uuid4().hex,
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
        # What is not acknowledged by now will be delivered again.
        self._comes_again = self._comes_again or requeued.republished or not self.acknowledged
        start(self._await_death_and_free, "distlock-dead-worker")
        return answer

    def _await_death_and_free(self) -> None:
        if self.worker_pid is not None and not _await_end(self.worker_pid):
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
        if self.task.lock_name is None:
            return
        options = self.task.locking
        backend = locks[options.using]
        claim = Claim(
            self.task.lock_name(self.args, self.kwargs),
            Owner("", "", 0, ""),
            options.lease or backend.settings.lease,
            nonce=self._header.claim_nonce,
        )
        if options.slots is not None:
            shared_locks(backend).cleanup.add(replace(claim, kind=Kind.SEMAPHORE))
            return
        try:
            # This also connects to ZooKeeper: a backend that is not connected cancels nothing.
            held_for = backend.inspect(claim.name).held_for or 0.0
        except LockError:
            held_for = 0.0
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
    """Free the queueing lock of a task that has ended before its body was reached."""
    handle = _queue_lock(sender, sender.request)
    has_run = sender.request._protected  # set by LockedTask.__call__()
    if handle is not None and not has_run and state != states.RETRY:
        queueing.release(handle)


def _queue_lock(task: Any, request: Any) -> QueueLockHandle | None:
    """Return the queueing lock of a task, if it is one of ours and has one."""
    header = LockHeader.read(request.headers, request.id) if hasattr(task, "locking") else None
    return None if header is None else header.queue_lock


def connect_signals() -> None:
    """Handle Celery's signals of tasks that end, in this process and in those that it forks."""
    task_revoked.connect(_on_revoked, dispatch_uid="distlock.celery")
    task_postrun.connect(_on_postrun, dispatch_uid="distlock.celery")
