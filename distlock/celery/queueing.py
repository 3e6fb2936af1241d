"""The lock of a queued task: taken by the process that publishes it, freed by the task's worker.

While the message waits no process renews the lock, so it has a long lease, and ends with it if no
worker takes the message in time. Each call is an owner of its own, whose name contains the task's
id; when the same task is queued again, the same owner takes the lock again. A message header tells
the worker which hold to free.
"""

from __future__ import annotations

import logging
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

from celery import states
from django.utils.asyncio import async_unsafe

from distlock.backends.base import BaseBackend
from distlock.celery.task_options import queueing_backend, raise_interrupt
from distlock.concurrency.clock import clock
from distlock.concurrency.reentry import interrupted_frame, refuse_reentry
from distlock.concurrency.threads import start
from distlock.conf import locks
from distlock.exceptions import BodyEnded, LockError, LockUnavailable
from distlock.locking.blocks import holder_message
from distlock.runtime.events import send_event
from distlock.runtime.hold import Entrant, Hold
from distlock.runtime.manager import manager
from distlock.signals import lock_acquired, lock_released
from distlock.types.lease import Claim, Kind, Lease, LockInfo, Owner, State, log_fields, new_nonce
from distlock.types.owners import (
    NAMED,
    QUEUEING,
    Liveness,
    current_owner,
    describe_queued,
    is_queued,
    queued_owner_name,
    task_id_of,
)

T = TypeVar("T")

logger = logging.getLogger("distlock.celery")

#: How often a lock may be free again by the time its backend is asked who has it.
_TRIES = 10


class AlreadyQueued(LockError):
    """A task under the same queueing lock is queued already, so this call queued nothing.

    ``task_id`` is that of the task that is queued; None where that is not known.
    """

    def __init__(self, message: str, task_id: str | None = None) -> None:
        super().__init__(message, task_id)  # both: result backends make it again from its args
        self.task_id = task_id

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class QueueLockHandle:
    """One hold of a queueing lock. Any process can free exactly this one with it."""

    name: str
    using: str
    owner: str
    token: int
    nonce: str
    duration: float

    @classmethod
    def of(cls, lease: Lease, using: str) -> Self:
        """Return the handle of a lease of this process."""
        return cls(lease.name, using, lease.owner.key, lease.token, lease.nonce, lease.duration)

    @property
    def backend(self) -> BaseBackend:
        """The backend that has the lock."""
        return locks[self.using]

    @property
    def lease(self) -> Lease:
        """The lease. Its deadline counts from now, and of its owner only the key is known."""
        claim = Claim(self.name, Owner(self.owner, "", 0, ""), self.duration, nonce=self.nonce)
        return claim.granted(self.token, clock())

    def log(self, level: int, text: str, *args: object) -> None:
        """Log something of this hold; ``text`` begins with a place for its name."""
        fields = log_fields(self.using, self.name, Kind.LOCK, self.token)
        logger.log(level, text, self.name, *args, extra=fields, stacklevel=2)


#: Raises an error where nothing may be waited for. It is no decorator of what returns a hold: an
#: interrupt may come in a decorator, after the call and before the return.
_refuse_to_block = async_unsafe(
    "A task with a queueing lock would block the event loop here; use"
    " `await sync_to_async(task.delay)()`."
)(refuse_reentry)


def acquire(task: Any, name: str, task_id: str, seconds: float) -> QueueLockHandle:
    """Take a queueing lock for a task that is about to be published.

    If a queued task has it whose result is there, it is broken first: that task will not free it.
    Raises AlreadyQueued, with the id of the task that has it, if one has; LockUnavailable if the
    backend does not answer.
    """
    _refuse_to_block()
    backend = queueing_backend(task.name, task.locking)
    owner = current_owner(queued_owner_name(task_id))
    described = describe_queued(f"{task.name}[{task_id}]")
    keep = partial(QueueLockHandle.of, using=backend.alias)
    for _ in range(_TRIES):
        if handle := _try_or_cancel(backend, Claim(name, owner, seconds, described), keep):
            return handle
        info = backend.inspect(name)
        if info.state is not State.HELD:
            continue
        first = task_id_of(info)
        if first is None or not is_queued(info) or not _has_ended(task, first):
            message = f"task {task.name} is queued already: {holder_message(info)}"
            raise AlreadyQueued(message, first)
        _break(backend, info)
    raise LockUnavailable(
        f"lock {name!r} on {backend.alias!r} changes hands too fast to be asked about"
    )


def _has_ended(task: Any, task_id: str) -> bool:
    """Return whether a task that has a queueing lock has run or been revoked, as far as is known.

    Then the lock is left over: the worker that was to free it died while the backend did not
    answer. A result counts only for a random id: an id that a caller chose may have the result of
    an earlier call.
    """
    try:
        is_random = uuid.UUID(task_id).version == 4
        return is_random and task.backend.get_state(task_id) in states.READY_STATES
    except Exception as error:  # the id is no UUID, or there is no result backend
        raise_interrupt(error)
        logger.debug("not known whether task %s has ended: %s", task_id, error)
        return False


def reacquire(handle: QueueLockHandle, seconds: float, task: str) -> QueueLockHandle | None:
    """Take the lock again for the next message of the same task, for ``seconds`` from now.

    ``task`` is its name and id, for people. The hold keeps its nonce, so that the handle frees it
    even if the answer is lost, or if the handle is on a message that was sent before.
    Returns None if another task has the lock by now.
    """
    try:
        lease = _try(handle.backend, _claim(handle, seconds, describe_queued(task), handle.nonce))
    except BodyEnded:
        raise
    except LockError as error:  # the task is published all the same
        handle.log(logging.WARNING, "queueing lock %r may end before its task starts: %s", error)
        return handle
    return None if lease is None else QueueLockHandle.of(lease, handle.using)


def release(handle: QueueLockHandle) -> None:
    """Free exactly this hold; if the backend does not answer, as soon as it does."""
    backend = handle.backend
    freed = None
    try:
        freed = backend.release(handle.lease)
    except BodyEnded:
        raise
    except LockError as error:
        handle.log(logging.WARNING, "queueing lock %r is freed later: %s", error)
        return
    finally:
        if freed is None:  # also after a time limit, say: nobody else would free it
            release_soon(handle)
    if freed:
        send_event(lock_released, backend, handle.lease)
    else:
        handle.log(logging.DEBUG, "queueing lock %r (token %s) was free already", handle.token)


def release_soon(handle: QueueLockHandle) -> None:
    """Free exactly this hold without making the caller wait, which may be a signal handler."""
    if interrupted_frame() is None:
        handle.backend.cleanup.add(handle.lease.claim)
    else:
        start(handle.backend.cleanup.add, "distlock-undo", handle.lease.claim)


def unqueue(backend: BaseBackend, name: str) -> str | None:
    """Free the lock of a task that has not started yet; return the task's id, None if unknown.

    Raises LockUnavailable if the backend does not answer.
    """
    refuse_reentry()
    for _ in range(_TRIES):
        info = backend.inspect(name)
        if not is_queued(info):
            return None
        if _break(backend, info):
            return task_id_of(info)
    raise LockUnavailable(f"lock {name!r} on {backend.alias!r} changes hands too fast to be freed")


def unqueue_task(backend: BaseBackend, task_id: str) -> None:
    """Free the locks of this task unless it has started; this reads all queueing locks.

    Raises LockUnavailable if the backend does not answer.
    """
    refuse_reentry()
    for info in backend.list(QUEUEING):
        if is_queued(info) and task_id_of(info) == task_id:
            _break(backend, info)


def renew(handle: QueueLockHandle, nonce: str, execution: object) -> Hold | None:
    """Take the lock for a task that starts, and renew it; None if that fails, and it runs without.

    The lock is renewed for no longer than ``execution`` exists: a time limit may interrupt the
    code that frees the lock.
    """
    backend = handle.backend
    described = describe_queued(str(execution), running=True)
    claim = _claim(handle, backend.settings.lease, described, nonce or new_nonce(), renews=True)

    def watch(lease: Lease) -> Hold:
        hold = Hold(backend, lease, Entrant(Liveness(weakref.ref(execution), lambda _: True)))
        manager().watch(hold)
        return hold

    try:
        hold = _try_or_cancel(backend, claim, watch)
    except BodyEnded:
        raise
    except LockError as error:
        handle.log(
            logging.WARNING, "queueing lock %r is not renewed while its task runs: %s", error
        )
        return None
    if hold is None:
        handle.log(logging.INFO, "queueing lock %r is another task's by now")
    return hold


def _claim(
    handle: QueueLockHandle, seconds: float, described: str, nonce: str, *, renews: bool = False
) -> Claim:
    owner = current_owner(handle.owner.removeprefix(NAMED))
    return Claim(handle.name, owner, seconds, described, nonce, renews)


def _try_or_cancel(backend: BaseBackend, claim: Claim, keep: Callable[[Lease], T]) -> T | None:
    """Ask for the lock, and return ``keep(lease)``; a grant that nobody gets is cancelled."""
    unknown = True
    try:
        lease = _try(backend, claim)
        kept = None if lease is None else keep(lease)
        unknown = False  # no call follows, so no interrupt until the caller has it
        return kept
    except LockUnavailable as error:
        unknown = error.maybe_applied
        raise
    finally:
        if unknown:  # also after an interrupt
            backend.cleanup.add(claim)


def _try(backend: BaseBackend, claim: Claim) -> Lease | None:
    lease = backend.try_acquire(claim)
    if lease is not None:
        send_event(lock_acquired, backend, lease)
    return lease


def _break(backend: BaseBackend, info: LockInfo) -> bool:
    """Free the lock; False if it has changed hands since, or its task has started."""
    lease = backend.force_release(info.name, info.token) if info.token is not None else None
    if lease is not None:
        send_event(lock_released, backend, lease)
    return lease is not None
