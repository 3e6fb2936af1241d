"""Owners of queueing locks: the name of each owner contains the id of its queued Celery task."""

from __future__ import annotations

import uuid

from distlock.backends.base import BaseBackend
from distlock.types.arguments import checked_label
from distlock.types.lease import MAX_DESCRIPTION, LockInfo, State
from distlock.types.owners import NAMED
from distlock.types.values import escaped

#: The names of all queueing locks begin with this, so that no running task has the same lock.
PREFIX = "queueing:"

_QUEUED = "celery:"


def new_owner_name(task_id: str) -> str:
    """Return a name for the owner of a queued call; each call of this function makes another.

    An id that is too long for it, or that no database can store, is left out, and then not known.
    """
    begins = f"{_QUEUED}{uuid.uuid4().hex}:"
    try:
        return checked_label("owner", begins + task_id)
    except ValueError:
        return begins


def describe(task: str, *, running: bool = False) -> str:
    """Return the description of a queueing lock; ``task`` is the name and the id of its task."""
    state = ", running" if running else ", queued"
    return escaped(f"Celery task {task}")[: MAX_DESCRIPTION - len(state)] + state


def is_queued(info: LockInfo) -> bool:
    """Return whether the lock's owner, or last owner, is a queued call that has not started yet."""
    return (
        info.state is not State.FREE
        and info.owner is not None
        and info.owner.key.startswith(NAMED + _QUEUED)
        and not info.renews  # it is renewed from the start of its task on
    )


def task_id_of(info: LockInfo) -> str | None:
    """Return the id of the task that has a lock; None if there is none or it is unknown."""
    if info.owner is None or not info.owner.key.startswith(NAMED + _QUEUED):
        return None
    return info.owner.key.removeprefix(NAMED + _QUEUED).partition(":")[2] or None


def locks_of(backend: BaseBackend, task_id: str) -> list[LockInfo]:
    """Return the queueing locks that the task with this id has in a backend; reads all of them."""
    return [info for info in backend.list(PREFIX) if task_id_of(info) == task_id]
