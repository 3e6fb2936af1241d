"""Frees, in the worker's main process, the locks of tasks that cannot free them themselves.

A task that is revoked or expires never starts; one whose process is killed never ends. The main
process learns of both.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import states
from celery.signals import task_postrun, task_revoked
from celery.worker.request import Request

from distlock.backends.base import BaseBackend
from distlock.celery import queueing
from distlock.celery.publishing import RunningTask, running_task
from distlock.celery.queueing import HEADER, LockHeader
from distlock.concurrency.clock import clock
from distlock.concurrency.threads import start
from distlock.conf import locks
from distlock.exceptions import LockError
from distlock.types.lease import Claim, Owner

logger = logging.getLogger("distlock.celery")

#: With these errors the process of the task has ended, or is about to.
_PROCESS_ENDED = (WorkerLostError, Terminated, TimeLimitExceeded, SystemExit, KeyboardInterrupt)
#: Seconds between two looks at a process that was killed, and until it is not waited for any more.
_POLL_INTERVAL, _KILL_LIMIT = 0.05, 60.0


class LockedRequest(Request):  # type: ignore[misc]
    """The request of a :class:`~distlock.celery.LockedTask`, in the worker's main process."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        headers = self._request_dict
        self._claim_nonce, self._queue_claim_nonce = uuid.uuid4().hex, uuid.uuid4().hex
        self._header = replace(
            LockHeader.read(_custom(headers), self.id) or LockHeader(self.id),
            claim_nonce=self._claim_nonce,
            queue_claim_nonce=self._queue_claim_nonce,
            events=bool(self.eventer and self.eventer.enabled),
        )
        self._comes_again = False
        headers[HEADER] = self._header.as_dict()

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
        requeued = RunningTask(self.id)  # notices whether Celery publishes the task again
        outer = running_task.set(requeued)
        try:
            answer = super().on_failure(exc_info, send_failed_event, return_ok)
        finally:
            running_task.reset(outer)
        # What is not acknowledged by now will be delivered again.
        self._comes_again = self._comes_again or requeued.republished or not self.acknowledged
        self._free_after_death()
        return answer

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """See Request.on_timeout()."""
        super().on_timeout(soft, timeout)
        if not soft:
            self._free_after_death()

    def _free_after_death(self) -> None:
        """Free what the task's process held, once it is gone."""
        start(self._await_death_and_free, "distlock-dead-worker")

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
            _cancel_soon(handle.backend, handle.name, self._queue_claim_nonce)
            queueing.release_soon(handle)

    def _free_lock(self) -> None:
        options = self.task.locking
        if self.task.lock_name is None:
            return
        name = self.task.lock_name(self._args, self._kwargs)
        backend = locks[options.using]
        if options.at_least is not None:
            time.sleep(_rest(backend, name, options.at_least))
        _cancel_soon(backend, name, self._claim_nonce, options.lease)


def _rest(backend: BaseBackend, name: str, at_least: float) -> float:
    """Return for how many seconds a lock has to stay taken; the longest, if that is not known."""
    try:
        held_for = backend.inspect(name).held_for
    except LockError:
        held_for = None
    return max(at_least - (held_for or 0.0), 0.0)


def _cancel_soon(backend: BaseBackend, name: str, nonce: str, lease: float | None = None) -> None:
    """Free what a process that has ended may have been granted, until its lease ends."""
    claim = Claim(name, Owner("", "", 0, ""), lease or backend.settings.lease, nonce=nonce)

    def cancel(deadline: float) -> None:
        backend.inspect(name, deadline)  # a backend that is not connected would cancel nothing
        backend.cancel(claim, deadline)

    queueing.cancel_soon(backend, claim, cancel)


def _await_end(pid: int) -> bool:
    """Wait until a process is gone; False if it still is not after some time."""
    if pid == os.getpid() or pid <= 0:
        return True  # the pool has no processes: what ran has ended
    until = clock() + _KILL_LIMIT
    while clock() < until:
        try:
            os.kill(pid, 0)
        except OSError:
            return True
        time.sleep(_POLL_INTERVAL)
    return False


def _custom(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the headers that have ours among them: where depends on the message protocol."""
    return headers if HEADER in headers else headers.get("headers") or {}


def _on_revoked(*, sender: Any, request: Any, terminated: bool = False, **kwargs: Any) -> None:
    """Free the queueing lock of a task that will not start."""
    if not terminated and hasattr(sender, "locking"):
        header = LockHeader.read(request.headers, request.id)
        if header is not None and header.queue_lock is not None:
            queueing.release_soon(header.queue_lock)


def _on_postrun(*, sender: Any, task: Any, state: str, **kwargs: Any) -> None:
    """Free the queueing lock of a task that has ended before its body was reached."""
    if not hasattr(sender, "locking") or hasattr(task.request, "distlock_ran"):
        return
    header = LockHeader.read(task.request.headers, task.request.id)
    if header is not None and header.queue_lock is not None and state != states.RETRY:
        queueing.release(header.queue_lock)


def connect_signals() -> None:
    """Handle Celery's signals of tasks that end, in this process and in those that it forks."""
    task_revoked.connect(_on_revoked, dispatch_uid="distlock.celery")
    task_postrun.connect(_on_postrun, dispatch_uid="distlock.celery")
