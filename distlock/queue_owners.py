"""The owners of queueing locks: each is one queued call of a Celery task, and has its id."""

from __future__ import annotations

import hashlib
import uuid

from distlock.lease import LockInfo, Owner
from distlock.names import checked_owner
from distlock.owners import NAMED

_QUEUED = "celery:"
#: So begins what stands for an id that is too long for an owner, or that no database can store.
_HASHED = "sha256="


def new_owner_name(task_id: str) -> str:
    """Return a name for the owner of a queued call; each call of this function makes another."""
    begins = f"{_QUEUED}{uuid.uuid4().hex}:"
    try:
        return checked_owner(begins + task_id)
    except ValueError:
        return begins + _hashed(task_id)


def belongs_to(owner: Owner, task_id: str) -> bool:
    """Return whether the owner of a lock is a queued call with this task id."""
    return _id_in(owner) in (task_id, _hashed(task_id))


def task_id_of(info: LockInfo) -> str | None:
    """Return the id of the queued task that has a lock; None if there is none, or none is known."""
    said = _id_in(info.owner) if info.owner is not None else None
    if said is None or not said.startswith(_HASHED):
        return said
    described = info.description.rpartition("], ")[0].partition("[")[2]
    return described if _hashed(described) == said else None


def _id_in(owner: Owner) -> str | None:
    key = owner.key.removeprefix(NAMED)
    if not key.startswith(_QUEUED):
        return None
    return key.removeprefix(_QUEUED).partition(":")[2] or None


def _hashed(task_id: str) -> str:
    return _HASHED + hashlib.sha256(task_id.encode(errors="surrogatepass")).hexdigest()
