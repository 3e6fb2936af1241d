"""Owners of queueing locks: the name of each owner contains the id of its queued Celery task."""

from __future__ import annotations

import hashlib
import uuid

from distlock.backends.base import BaseBackend
from distlock.types.arguments import MAX_DESCRIPTION, checked_owner
from distlock.types.lease import LockInfo, Owner, State
from distlock.types.owners import NAMED
from distlock.types.printable import escaped

#: The names of all queueing locks begin with this, so that no running task has the same lock.
PREFIX = "queueing:"

_QUEUED = "celery:"
#: A hash that begins with this replaces an id that is too long, or that no database can store.
_HASHED = "sha256="


def new_owner_name(task_id: str) -> str:
    """Return a name for the owner of a queued call; each call of this function makes another."""
    begins = f"{_QUEUED}{uuid.uuid4().hex}:"
    try:
        return checked_owner(begins + task_id)
    except ValueError:
        return begins + _hashed(task_id)


def describe(task: str, *, running: bool = False) -> str:
    """Return the description of a queueing lock; ``task`` is the name and the id of its task."""
    state = ", running" if running else ", queued"
    return escaped(f"Celery task {task}")[: MAX_DESCRIPTION - len(state)] + state


def is_queued(info: LockInfo) -> bool:
    """Return whether the lock's owner, or last owner, is a queued call that has not started yet."""
    return (
        info.state is not State.FREE
        and info.owner is not None
        and _id_in(info.owner) is not None
        and not info.renews  # it is renewed from the start of its task on
    )


def belongs_to(info: LockInfo, task_id: str) -> bool:
    """Return whether the lock's owner, or last owner, is the task with this id."""
    return info.owner is not None and _id_in(info.owner) in (task_id, _hashed(task_id))


def locks_of(backend: BaseBackend, task_id: str) -> list[LockInfo]:
    """Return the queueing locks that the task with this id has in a backend; reads all of them."""
    return [info for info in backend.list(PREFIX) if belongs_to(info, task_id)]


def task_id_of(info: LockInfo) -> str | None:
    """Return the id of the queued task that has a lock; None if there is none or it is unknown."""
    found = _id_in(info.owner) if info.owner is not None else None
    if found is None or not found.startswith(_HASHED):
        return found
    described = info.description.rpartition("], ")[0].partition("[")[2]
    return described if _hashed(described) == found else None


def _id_in(owner: Owner) -> str | None:
    key = owner.key.removeprefix(NAMED)
    if not key.startswith(_QUEUED):
        return None
    return key.removeprefix(_QUEUED).partition(":")[2] or None


def _hashed(task_id: str) -> str:
    return _HASHED + hashlib.sha256(task_id.encode(errors="surrogatepass")).hexdigest()
