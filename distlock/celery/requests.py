"""What the worker knows of a task that the pool's process cannot tell any more.

A task that is revoked or expires never starts; one whose process is killed never ends. The worker's
main process sees both, and frees what they have left.
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
from celery.worker.request import Request

from distlock.backends.base import BaseBackend
from distlock.celery import queueing
from distlock.celery.current import innermost
from distlock.celery.headers import HEADER, LockHeader
from distlock.clock import clock
from distlock.conf import locks
from distlock.exceptions import LockError
from distlock.threads import start
from distlock.types.lease import Claim, Owner

logger = logging.getLogger("distlock.celery")

#: By these the process of the task has ended, or is about to.
_DEATHS = (WorkerLostError, Terminated, TimeLimitExceeded, SystemExit, KeyboardInterrupt)
_PAUSE = 0.05
#: Seconds that a process gets to be gone after it was killed.
_PATIENCE = 60.0


class LockedRequest(Request):  # type: ignore[misc]
    """The request of a :class:`~distlock.celery.LockedTask`, in the worker's main process."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        headers = self._request_dict
        self._claim, self._queueing_claim = uuid.uuid4().hex, uuid.uuid4().hex
        self._note = replace(
            LockHeader.read(_custom(headers), self.id) or LockHeader(self.id),
            claim=self._claim,
            queueing_claim=self._queueing_claim,
            events=bool(self.eventer and self.eventer.enabled),
        )
        self._comes_again = False
        headers[HEADER] = self._note.header()

    def reject(self, requeue: bool = False) -> None:
        """See Request.reject()."""
        self._comes_again = self._comes_again or requeue
        super().reject(requeue=requeue)

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        """See Request.on_failure()."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if not isinstance(error, _DEATHS):
            return super().on_failure(exc_info, send_failed_event, return_ok)
        with _watching(self.id) as watched:
            answer = super().on_failure(exc_info, send_failed_event, return_ok)
        # What is not acknowledged by now will be delivered again.
        self._comes_again = self._comes_again or watched.republished or not self.acknowledged
        self._clear()
        return answer

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """See Request.on_timeout()."""
        super().on_timeout(soft, timeout)
        if not soft:
            self._clear()

    def _clear(self) -> None:
        """Free what the task's process held, once it is gone."""
        start(self._clear_now, "distlock-bereaved")

    def _clear_now(self) -> None:
        if self.worker_pid is not None and not _await_end(self.worker_pid):
            return  # its leases end by themselves
        for free in (self._free_queueing_lock, self._free_lock):
            try:
                free()
            except Exception:
                logger.exception("could not free a lock of task %s[%s]", self.name, self.id)

    def _free_queueing_lock(self) -> None:
        ticket = self._note.ticket
        if ticket is not None and not self._comes_again:
            _withdraw_soon(ticket.backend, ticket.name, self._queueing_claim)
            queueing.free_soon(ticket)

    def _free_lock(self) -> None:
        options = self.task.locking
        if self.task.lock_name is None:
            return
        name = self.task.lock_name(self._args, self._kwargs)
        backend = locks[options.using]
        if options.at_least is not None:
            time.sleep(_rest(backend, name, options.at_least))
        _withdraw_soon(backend, name, self._claim, options.lease)


def _rest(backend: BaseBackend, name: str, at_least: float) -> float:
    """Return for how many seconds a lock has to stay taken; the longest, if that is not known."""
    try:
        held_for = backend.inspect(name).held_for
    except LockError:
        held_for = None
    return max(at_least - (held_for or 0.0), 0.0)


def _withdraw_soon(backend: BaseBackend, name: str, nonce: str, lease: float | None = None) -> None:
    """Take back what a process that has ended may have been granted, for as long as it can last."""
    claim = Claim(name, Owner("", "", 0, ""), lease or backend.settings.lease, nonce=nonce)

    def withdraw(deadline: float) -> None:
        backend.inspect(name, deadline)  # a backend that is not connected withdraws nothing
        backend.cancel(claim, deadline)

    queueing.withdraw_soon(backend, claim, withdraw)


class _Watching:
    """Stands for a run while Celery may publish its task anew."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self.lock = None
        self.republished = False

    def replaced_by(self, task: Any, args: Any, kwargs: Any) -> None:
        """Nothing takes its place here."""

    def hand_over(self) -> None:
        """Nothing is kept here."""

    def __enter__(self) -> _Watching:
        self._outer = innermost.set(self)  # type: ignore[arg-type]
        return self

    def __exit__(self, *error: object) -> None:
        innermost.reset(self._outer)


def _watching(task_id: str) -> _Watching:
    return _Watching(task_id)


def _await_end(pid: int) -> bool:
    """Wait until a process is gone; False if it still is not after some time."""
    if pid == os.getpid() or pid <= 0:
        return True  # the pool has no processes: what ran has ended
    until = clock() + _PATIENCE
    while clock() < until:
        try:
            os.kill(pid, 0)
        except OSError:
            return True
        time.sleep(_PAUSE)
    return False


def _custom(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the headers among which the note is: where depends on the message protocol."""
    return headers if HEADER in headers else headers.get("headers") or {}
