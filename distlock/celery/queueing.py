"""The lock of a queued task: taken by the process that publishes it, freed by its worker.

No process watches over it while the message waits, so it is not renewed and ends by itself when
nobody has come for it in time. Each call is an owner of its own, whose name says which task it is;
when the same task is queued anew, the same owner takes the lock again.
"""

from __future__ import annotations

import logging
import uuid
import weakref
from collections.abc import Callable

from distlock.backends.base import BaseBackend
from distlock.backends.cleanup import Cancel
from distlock.celery.errors import AlreadyQueued
from distlock.celery.headers import QueueLockHandle
from distlock.core.events import send_event
from distlock.core.held import Entry, HeldLease
from distlock.core.manager import manager
from distlock.core.queueing_owners import (
    belongs_to,
    describe,
    is_queued,
    new_owner_name,
    task_id_of,
)
from distlock.exceptions import LockError, LockUnavailable
from distlock.signals import lock_acquired, lock_released
from distlock.types.lease import Claim, Lease, LockInfo, State
from distlock.types.owners import NAMED, Liveness, current_owner

logger = logging.getLogger("distlock.celery")

#: How often a lock may be free again by the time it is asked who has it.
_TRIES = 10


def take(
    name: str,
    backend: BaseBackend,
    seconds: float,
    task: str,
    task_id: str,
    has_ended: Callable[[str], bool],
) -> QueueLockHandle:
    """Take a queueing lock for a task that is about to be published.

    It is taken over from a queued task that ``has_ended``, because that one will not come for it.
    Raises AlreadyQueued, with the id of the task that has it, if one has; LockUnavailable if the
    backend cannot be asked.
    """
    using = backend.alias
    owner = current_owner(new_owner_name(task_id))
    for _ in range(_TRIES):
        claim = Claim(name, owner, seconds, describe(f"{task}[{task_id}]"))
        if lease := _ask_or_withdraw(backend, claim):
            return QueueLockHandle.of(lease, using)
        info = backend.inspect(name)
        if info.state is not State.HELD or info.owner is None:
            continue
        first = task_id_of(info)
        if first is not None and is_queued(info) and has_ended(first):
            _unqueue(backend, info)
            continue
        raise AlreadyQueued(
            f"task {task} is queued already: lock {name!r} on {using!r} (token {info.token}) is"
            f" held by {info.description or info.owner}",
            first,
        )
    raise LockUnavailable(f"lock {name!r} on {using!r} changes hands too fast to be asked about")


def again(ticket: QueueLockHandle, seconds: float, task: str) -> Lease | None:
    """Take the lock again for the next message of the same task, for ``seconds`` from now.

    ``task`` is its name and id, for people. The hold keeps its nonce, so that the ticket frees it
    even if the answer is lost, or if the ticket is on a message that was sent before.
    Returns None if another task has the lock by now.
    """
    return _ask(ticket.backend, _claim(ticket, seconds, describe(task), ticket.nonce))


def free(ticket: QueueLockHandle) -> None:
    """Free exactly this hold; if the backend does not answer, as soon as it does."""
    backend = ticket.backend
    try:
        freed = backend.release(ticket.lease)
    except LockError as error:
        logger.warning("queueing lock %r is freed later: %s", ticket.name, error)
        free_soon(ticket)
        return
    if freed:
        send_event(lock_released, backend, ticket.lease)
    else:
        logger.debug("queueing lock %r (token %s) was free already", ticket.name, ticket.token)


def unqueue(backend: BaseBackend, name: str, task_id: str | None = None) -> LockInfo | None:
    """Free the lock of a task that has not started yet; return what it was, None if there is none.

    With ``task_id`` it is freed only if that task has it.
    Raises LockUnavailable if the backend cannot be asked.
    """
    for _ in range(_TRIES):
        info = backend.inspect(name)
        if not is_queued(info) or not (task_id is None or belongs_to(info, task_id)):
            return None
        if _unqueue(backend, info):
            return info
    raise LockUnavailable(f"lock {name!r} on {backend.alias!r} changes hands too fast to be freed")


def _unqueue(backend: BaseBackend, info: LockInfo) -> bool:
    """Free the lock unless it has changed hands since, or its task has started."""
    lease = backend.force_release(info.name, info.token) if info.token is not None else None
    if lease is not None:
        send_event(lock_released, backend, lease)
    return lease is not None


def free_soon(ticket: QueueLockHandle) -> None:
    """Free exactly this hold without making the caller wait."""
    withdraw_soon(ticket.backend, ticket.claim)


def withdraw_soon(backend: BaseBackend, claim: Claim, leave: Cancel | None = None) -> None:
    """Take back what was granted to this claim, if anything, without making the caller wait."""
    backend.cleanup.add(claim, leave)


class Kept:
    """A queueing lock that is renewed for as long as its task runs.

    ``run`` stands for the task: when it is no more, the lock is not renewed, should a time limit
    have kept it from being freed.
    """

    def __init__(self, ticket: QueueLockHandle, lease: Lease, run: object) -> None:
        self.ticket = QueueLockHandle.of(lease, ticket.using)
        self._hold = HeldLease(
            ticket.backend,
            lease,
            Entry(Liveness(weakref.ref(run), lambda _: True)),
        )
        manager.watch(self._hold)

    def end(self) -> None:
        """Renew it no more."""
        manager.unwatch(self._hold)


def keep(ticket: QueueLockHandle, nonce: str | None, run: object) -> Kept | None:
    """Keep the lock of a task that starts; None if that cannot be, and it runs without."""
    backend = ticket.backend
    described = describe(str(run), running=True)
    nonce = nonce or uuid.uuid4().hex
    claim = _claim(ticket, backend.settings.lease, described, nonce, renews=True)
    try:
        lease = _ask_or_withdraw(backend, claim)
    except LockError as error:
        logger.warning("queueing lock %r is not kept while its task runs: %s", ticket.name, error)
        return None
    if lease is None:
        logger.info("queueing lock %r has passed to another task", ticket.name)
        return None
    return Kept(ticket, lease, run)


def _claim(
    ticket: QueueLockHandle, seconds: float, described: str, nonce: str, *, renews: bool = False
) -> Claim:
    who = current_owner(ticket.owner.removeprefix(NAMED))
    return Claim(ticket.name, who, seconds, described, nonce, renews)


def _ask_or_withdraw(backend: BaseBackend, claim: Claim) -> Lease | None:
    """Ask for the lock; what was granted by an answer that is lost is freed again."""
    try:
        return _ask(backend, claim)
    except BaseException as error:
        if not (isinstance(error, LockUnavailable) and not error.maybe_applied):
            backend.cleanup.add(claim)
        raise


def _ask(backend: BaseBackend, claim: Claim) -> Lease | None:
    lease = backend.try_acquire(claim)
    if lease is not None:
        send_event(lock_acquired, backend, lease)
    return lease
